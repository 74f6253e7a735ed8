"""A network's architecture as a table of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pfedsim import models
from pfedsim.core.layout import Layout, layout_of, norm_layers

if TYPE_CHECKING:
    from torch import Tensor, nn

EXAMPLES = {"mobilenetv2": ((3, 64, 64), 200), "mlp": ((13,), 2), "cnn1d": ((6, 100), 7)}
"""default sample shape and number of classes: those of a suitable data set"""
USUAL = ((3, 32, 32), 10)


@dataclass
class Row:
    """A layer with the norm and activation that follow it."""

    part: str
    group: str
    layer: str
    out: tuple[int, ...]
    parameters: int
    times: int = 1


def described(
    name: str, shape: tuple[int, ...] | None = None, classes: int | None = None, head: str = "classifier"
) -> tuple[Table, str]:
    """The architecture as a table, with repeated blocks shown once, and a line on its parameters."""
    usual = EXAMPLES.get(name, USUAL)
    shape, classes = shape or usual[0], classes or usual[1]
    module = models.build(name, shape, classes)
    layout = layout_of(module, head)
    table = Table(
        title=f"{name}, samples {' x '.join(map(str, shape))}, {classes} classes", title_justify="left"
    )
    for heading in ("part", "layer", "output", "parameters", "times"):
        table.add_column(heading, justify="right" if heading in ("parameters", "times") else "left")
    part = ""
    for row in _collapsed(_rows(module, shape, head)):
        shown = "" if row.part == part else row.part
        table.add_row(
            shown, row.layer, " x ".join(map(str, row.out)), f"{row.parameters:,}", f"x {row.times}"
        )
        part = row.part
    return table, _total(layout)


def work_space(name: str, shape: tuple[int, ...] | None, classes: int | None, head: str, batch: int) -> str:
    """What the native backend needs beside the model for batches of this size, or why it does not run."""
    import torch

    from pfedsim.backends import make

    usual = EXAMPLES.get(name, USUAL)
    shape, classes = shape or usual[0], classes or usual[1]
    module = models.build(name, shape, classes)
    zero, one = torch.zeros(1), torch.ones(1)
    kind, net, why = make(
        "auto", module, layout_of(module, head), head, zero, one, shape, torch.device("cpu")
    )
    if kind != "native":
        return f"work space: none of its own ({why})"
    sizes = [net.space(batch, training) / 1e6 for training in (True, False)]  # type: ignore[attr-defined]
    return f"native backend, batch {batch}: {sizes[0]:.1f} MB of work space in training, {sizes[1]:.1f} MB in scoring"


def _total(layout: Layout) -> str:
    trainable = int(layout.trainable.sum())
    head = int((layout.head & layout.trainable).sum())
    return (
        f"{trainable:,} parameters: feature extractor {trainable - head:,}, classifier {head:,}; "
        f"{len(layout.norms)} norm layers with {int(layout.buffers.sum()):,} running statistics"
    )


def _rows(module: nn.Module, shape: tuple[int, ...], head: str) -> list[Row]:
    """Every layer, in call order."""
    import torch

    rows: list[Row] = []
    classifier = set(module.get_submodule(head).modules())
    norms = set(norm_layers(module).values())

    def called(path: str, layer: nn.Module) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
            part = "classifier" if layer in classifier else "extractor"
            name = type(layer).__name__
            size = sum(p.numel() for p in layer.parameters())
            if rows and (layer in norms or name.startswith(("ReLU", "Sigmoid", "Tanh", "GELU", "SiLU"))):
                rows[-1].layer += f" + {'BN' if name.startswith('BatchNorm') else name}"
                rows[-1].parameters += size
            else:
                rows.append(
                    Row(part, ".".join(path.split(".")[:2]), _layer(layer), tuple(out.shape[1:]), size)
                )

        return hook

    hooks = [
        m.register_forward_hook(called(path, m))
        for path, m in module.named_modules()
        if not list(m.children())
    ]
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(1, *shape))
    finally:
        for handle in hooks:
            handle.remove()
    return rows


def _layer(layer: nn.Module) -> str:
    """The layer in the paper's notation."""
    name = type(layer).__name__
    for torch_name, printed in (("Conv2d", "Conv2D"), ("Conv1d", "Conv1D"), ("Pool2d", "Pool2D")):
        name = name.replace(torch_name, printed)
    if hasattr(layer, "kernel_size") and hasattr(layer, "in_channels"):
        words = {
            "in": layer.in_channels,
            "out": layer.out_channels,
            "kernel": layer.kernel_size,
            "stride": layer.stride,
            "pad": layer.padding,
        }
        groups = f", groups={layer.groups}" if getattr(layer, "groups", 1) != 1 else ""
        return f"{name}({', '.join(f'{k}={_one(v)}' for k, v in words.items())}{groups})"
    if hasattr(layer, "out_features"):
        return f"FC(out={layer.out_features})"
    if hasattr(layer, "kernel_size"):
        return f"{name}({_one(layer.kernel_size)}, {_one(layer.stride)})"
    if hasattr(layer, "output_size"):
        return f"{name}({_one(layer.output_size)})"
    return f"{name}({layer.p})" if hasattr(layer, "p") else f"{name}()"


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _collapsed(rows: list[Row]) -> list[Row]:
    """Show a repeated block of layers once, with its number of repetitions."""
    blocks: list[list[Row]] = []
    for row in rows:
        if blocks and blocks[-1][0].group == row.group:
            blocks[-1].append(row)
        else:
            blocks.append([row])
    shown: list[list[Row]] = []
    for block in blocks:
        if shown and [(r.layer, r.out) for r in shown[-1]] == [(r.layer, r.out) for r in block]:
            for row in shown[-1]:
                row.times += 1
        else:
            shown.append(block)
    return [row for block in shown for row in block]
