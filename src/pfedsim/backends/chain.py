"""A module read as the chain of operations that the native backend knows, or the reason why it is not
one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

CONV, LINEAR, STAGE = range(3)


class Unfit(Exception):
    """Why a network cannot run natively."""


@dataclass
class Link:
    """One operation; a stage is norm, ReLU and max pool in this order, each optional."""

    kind: int
    shape: tuple[int, ...]
    out: tuple[int, ...]
    of_head: bool
    name: str = ""
    module: nn.Module | None = None
    """the convolution or linear layer"""
    norm: str = ""
    batch_norm: nn.BatchNorm1d | nn.BatchNorm2d | None = None
    relu: bool = False
    pool: tuple[int, int] = (1, 1)


@dataclass
class Chain:
    links: list[Link] = field(default_factory=list)
    head: int = 0
    """the first link of the head"""

    def norms(self) -> list[str]:
        return [link.norm for link in self.links if link.norm]


def chain_of(module: nn.Module, shape: tuple[int, ...], head: str | None = None) -> Chain:
    """The chain that `module` computes on samples of this shape; `head` must be its tail. Raises
    `Unfit`."""
    nodes = _trace(module)
    modules = dict(module.named_modules())
    chain, here, seen, in_head = Chain(), tuple(int(n) for n in shape), set[str](), False
    for before, node in pairwise(nodes):
        if node.op == "output":
            if node.args[0] is not before:
                raise Unfit("the network's output is not one tensor at the end of a chain")
            break
        if [n for n in node.all_input_nodes if n is not before] or len(before.users) != 1:
            raise Unfit(
                f"{_title(node)} joins or splits the chain: only plain chains of layers run natively"
            )
        of_head = head is not None and any(
            path == head for path, _ in node.meta.get("nn_module_stack", {}).values()
        )
        if in_head and not of_head:
            raise Unfit(f"{_title(node)} follows the head {head!r}, which must be the network's tail")
        if of_head and not in_head:
            chain.head, in_head = len(chain.links), True
        layer = modules[str(node.target)] if node.op == "call_module" else _as_module(node)
        if list(layer.parameters()) and str(node.target) in seen:
            raise Unfit(f"layer {node.target!r} is used twice")
        seen.add(str(node.target))
        here = _add(chain, layer, str(node.target), here, of_head)
    if head is not None and not in_head:
        raise Unfit(f"the head {head!r} is not part of the network's forward pass")
    if not chain.links or chain.head == len(chain.links):
        raise Unfit("the network or its head computes nothing")
    if len(here) != 1:
        raise Unfit(f"the network gives {here} per sample, not one score per class")
    unused = [
        name
        for name, m in modules.items()
        if isinstance(m, nn.modules.batchnorm._NormBase) and name not in seen
    ]
    if unused:
        raise Unfit(f"norm layer {unused[0]!r} is not part of the network's forward pass")
    return chain


def _trace(module: nn.Module) -> list[fx.Node]:
    try:
        nodes = list(fx.symbolic_trace(module).graph.nodes)
    except Exception as error:
        raise Unfit(f"its forward pass cannot be traced ({type(error).__name__}: {error})") from None
    if sum(node.op == "placeholder" for node in nodes) != 1:
        raise Unfit("its forward pass takes more than one input")
    strange = [
        node
        for node in nodes[1:]
        if node.op not in ("call_module", "call_function", "call_method", "output")
    ]
    if strange:
        raise Unfit(f"its forward pass reads {_title(strange[0])} directly")
    return nodes


def _title(node: fx.Node) -> str:
    return f"{node.op.removeprefix('call_')} {getattr(node.target, '__name__', node.target)!r}"


def _as_module(node: fx.Node) -> nn.Module:
    """A functional form as the module that does the same."""
    args, options = node.args[1:], node.kwargs

    def takes(names: list[str], make: Callable[..., nn.Module]) -> nn.Module:
        given = {
            k: v
            for k, v in (dict(zip(names, args, strict=False)) | options).items()
            if k not in ("input", "inplace")
        }
        if any(isinstance(v, fx.Node) for v in given.values()):
            raise Unfit(f"{_title(node)} depends on a computed value")
        return make(**given)

    if node.target in (F.relu, torch.relu, F.relu_, "relu", "relu_"):
        return nn.ReLU()
    if node.target in (torch.flatten, "flatten"):
        return takes(
            ["start_dim", "end_dim"], lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim)
        )
    if node.target in (F.max_pool2d, torch.max_pool2d):
        return takes(
            ["kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"], nn.MaxPool2d
        )
    raise Unfit(f"{_title(node)} is not known to the native backend")


def _add(
    chain: Chain, layer: nn.Module, name: str, shape: tuple[int, ...], of_head: bool
) -> tuple[int, ...]:
    """The shape after `layer`, which is added to the chain."""
    out: tuple[int, ...]
    if isinstance(layer, nn.Identity) or (
        isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p == 0
    ):
        return shape
    if type(layer) is nn.Flatten:
        if layer.start_dim != 1 or layer.end_dim not in (-1, len(shape)):
            raise Unfit(f"flatten {name!r} keeps some dimensions apart")
        return (_volume(shape),)
    if type(layer) is nn.Conv2d:
        out = _conv_out(layer, name, shape)
        chain.links.append(Link(CONV, shape, out, of_head, name, layer))
    elif type(layer) is nn.Linear:
        if len(shape) != 1:
            raise Unfit(f"linear layer {name!r} is fed {shape} per sample; flatten first")
        _expect(
            layer.in_features == shape[0],
            f"linear layer {name!r} expects {layer.in_features} features, not {shape[0]}",
        )
        out = (layer.out_features,)
        chain.links.append(Link(LINEAR, shape, out, of_head, name, layer))
    elif type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d):
        assert isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))
        _check_norm(layer, name, shape)
        out = shape
        chain.links.append(Link(STAGE, shape, out, of_head, norm=name, batch_norm=layer))
    elif type(layer) is nn.ReLU:
        out = shape
        stage = _open_stage(chain, shape, of_head)
        if stage is None or stage.relu or stage.pool != (1, 1):
            stage = Link(STAGE, shape, out, of_head)
            chain.links.append(stage)
        stage.relu = True
    elif type(layer) is nn.MaxPool2d:
        pool, out = _pool_out(layer, name, shape)
        stage = _open_stage(chain, shape, of_head)
        if stage is None or stage.pool != (1, 1):
            stage = Link(STAGE, shape, out, of_head)
            chain.links.append(stage)
        stage.pool, stage.out = pool, out
    else:
        raise Unfit(f"layer {name!r} is a {type(layer).__name__}, which the native backend does not know")
    return out


def _open_stage(chain: Chain, shape: tuple[int, ...], of_head: bool) -> Link | None:
    """The last link, where it is a stage that can take more: on this side of the head, and not reshaped
    since."""
    last = chain.links[-1] if chain.links else None
    return (
        last
        if last is not None and last.kind == STAGE and last.of_head == of_head and last.out == shape
        else None
    )


def _conv_out(layer: nn.Conv2d, name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    title = f"convolution {name!r}"
    _expect(layer.stride == (1, 1), f"{title} has stride {layer.stride}; only 1 runs natively")
    _expect(layer.dilation == (1, 1) and layer.groups == 1, f"{title} has dilation or groups")
    _expect(
        isinstance(layer.padding, tuple) and layer.padding_mode == "zeros",
        f"{title} has padding {layer.padding!r} ({layer.padding_mode})",
    )
    _expect(
        len(shape) == 3 and shape[0] == layer.in_channels,
        f"{title} expects {layer.in_channels} channels of images, not {shape}",
    )
    height, width = (shape[k + 1] + 2 * int(layer.padding[k]) - layer.kernel_size[k] + 1 for k in (0, 1))
    _expect(min(height, width) > 0, f"{title} is larger than its input {shape}")
    return layer.out_channels, height, width


def _pool_out(
    layer: nn.MaxPool2d, name: str, shape: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    def pair(value: Any) -> tuple[int, int]:
        a, b = value if isinstance(value, (tuple, list)) else (value, value)
        return int(a), int(b)

    pool, stride = pair(layer.kernel_size), pair(layer.stride or layer.kernel_size)
    plain = (
        pair(layer.padding) == (0, 0)
        and pair(layer.dilation) == (1, 1)
        and not layer.ceil_mode
        and not layer.return_indices
    )
    _expect(
        pool == stride and plain,
        (
            f"max pool {name!r} overlaps, skips, pads or rounds up; only kernel = stride, rounded down, runs "
            "natively"
        ),
    )
    _expect(len(shape) == 3, f"max pool {name!r} is fed {shape} per sample, not images")
    out = shape[0], shape[1] // pool[0], shape[2] // pool[1]
    _expect(min(out) > 0, f"max pool {name!r} is larger than its input {shape}")
    return pool, out


def _check_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str, shape: tuple[int, ...]) -> None:
    title = f"norm layer {name!r}"
    _expect(layer.affine and layer.track_running_stats, f"{title} has no weights or keeps no statistics")
    _expect(layer.momentum is not None, f"{title} has momentum=None")
    _expect(
        len(shape) == (3 if isinstance(layer, nn.BatchNorm2d) else 1), f"{title} is fed {shape} per sample"
    )
    _expect(
        layer.num_features == shape[0], f"{title} expects {layer.num_features} channels, not {shape[0]}"
    )


def _expect(fits: bool, otherwise: str) -> None:
    if not fits:
        raise Unfit(otherwise)


def _volume(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
