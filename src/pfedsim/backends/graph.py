"""A module read as the graph of operations that the native backend knows, or the reason why it is none."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

CONV, LINEAR, STAGE, ADD, MAX, MEAN, DROPOUT, GROUP = range(8)
NONE, RELU, RELU6, HARDSWISH, SILU, GELU = range(6)
ACTS: dict[type[nn.Module], int] = {
    nn.ReLU: RELU,
    nn.ReLU6: RELU6,
    nn.Hardswish: HARDSWISH,
    nn.SiLU: SILU,
    nn.GELU: GELU,
}
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
CONVS = (nn.Conv1d, nn.Conv2d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d)
AVERAGES = (nn.AvgPool1d, nn.AvgPool2d)
TO_ONE_SIZE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)


class Unfit(Exception):
    """Why a network cannot run natively."""


@dataclass
class Node:
    """One operation; a stage is batch norm, activation and max pool in this order, each optional."""

    kind: int
    a: int
    """the value that it reads: 0 is the network's input, k + 1 what operation k makes"""
    shape: tuple[int, ...]
    out: tuple[int, ...]
    of_head: bool
    name: str = ""
    """of the layer that has the tensors, "" where none has"""
    module: nn.Module | None = None
    b: int = -1
    act: int = NONE
    pool: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1


@dataclass
class Graph:
    """Operations in order, the head's last."""

    nodes: list[Node] = field(default_factory=list)
    head: int = 0
    """the first operation of the head"""
    cut: int = 0
    """the value that the head reads"""

    def norms(self) -> list[Node]:
        """The norm layers' operations, in order."""
        return [n for n in self.nodes if n.kind == GROUP or (n.kind == STAGE and n.module is not None)]


def graph_of(module: nn.Module, shape: tuple[int, ...], head: str | None = None) -> Graph:
    """The graph that `module` computes on samples of this shape; `head` must be its tail. Raises `Unfit`."""
    reader = _Reader(module, tuple(int(n) for n in shape), head)
    for node in _trace(module):
        reader.read(node)
    return reader.graph()


def sides(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width: a signal has one row, a flat vector one pixel a channel."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    return (shape[0], 1, shape[1]) if len(shape) == 2 else (prod(shape), 1, 1)


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


class _Reader:
    """Reads traced nodes one by one; `where` tells each one's value and shape."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], head: str | None):
        self.modules, self.head, self.shape = dict(module.named_modules()), head, shape
        self.found, self.seen, self.in_head = Graph(), set[str](), head is None
        self.where: dict[fx.Node, tuple[int, tuple[int, ...]]] = {}
        self.sizes, self.batch = set[fx.Node](), set[fx.Node]()  # x.shape; x.shape[0]
        self.output: tuple[int, tuple[int, ...]] = (0, ())

    def read(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.where[node] = (0, self.shape)
            return
        if node.op == "output":
            _expect(isinstance(node.args[0], fx.Node), "the network's output is not one tensor")
            self.output = self.where[node.args[0]]  # type: ignore[index]
            return
        if self._is_size(node):
            return
        of_head = self._of_head(node)
        if _is_sum(node):
            self._sum(node, of_head)
            return
        inputs = [n for n in node.all_input_nodes if n not in self.batch]
        _expect(
            len(inputs) == 1 and node.args[:1] == (inputs[0],),
            f"{_title(node)} joins tensors in a way that the native backend does not know",
        )
        layer = self.modules[str(node.target)] if node.op == "call_module" else self._as_module(node)
        name = str(node.target) if node.op == "call_module" else ""
        if name in self.seen and list(layer.parameters()):
            raise Unfit(f"layer {name!r} is used twice")
        self.seen.add(name)
        value, shape = self.where[inputs[0]]
        self._check_cut(node, value, of_head)
        self.where[node] = self._add(layer, name or str(node.target), value, shape, of_head)

    def graph(self) -> Graph:
        found, (last, shape) = self.found, self.output
        if not self.in_head:
            raise Unfit(f"the head {self.head!r} is not part of the network's forward pass")
        if not found.nodes or (self.head is not None and found.head == len(found.nodes)):
            raise Unfit("the network or its head computes nothing")
        read = {value for node in found.nodes for value in (node.a, node.b)}
        idle = [k for k in range(1, len(found.nodes)) if k not in read]
        _expect(not idle, "it computes something that its output does not depend on")
        _expect(last == len(found.nodes), "the network's output is not what it computes last")
        _expect(len(shape) == 1, f"the network gives {shape} per sample, not one score per class")
        norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
        unused = [
            name for name, m in self.modules.items() if isinstance(m, norms) and name not in self.seen
        ]
        _expect(not unused, f"norm layer {unused[:1]} is not part of the network's forward pass")
        return found

    def _is_size(self, node: fx.Node) -> bool:
        """Whether the node asks for the number of samples, as x.size(0) or x.shape[0], or is on its way there."""
        shape = (node.target == "size" and len(node.args) == 1) or (
            node.target is getattr and node.args[1:] == ("shape",)
        )
        of_sizes = node.target is operator.getitem and node.args[0] in self.sizes
        first = node.args[1:] == (0,) and (node.target == "size" or of_sizes)
        if shape:
            self.sizes.add(node)
        if first:
            self.batch.add(node)
        return bool(shape or first)

    def _as_module(self, node: fx.Node) -> nn.Module:
        """A functional form as the module that does the same; views that flatten each sample are Flatten."""
        if node.target not in ("view", "reshape", torch.reshape) or not isinstance(node.args[0], fx.Node):
            return _as_module(node)
        asked: Any = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
        volume = prod(self.where[node.args[0]][1])
        flat = len(asked) == 2 and (asked[0] in self.batch or asked[0] == -1) and asked[1] in (-1, volume)
        _expect(flat, f"{_title(node)} does not flatten each sample")
        return nn.Flatten()

    def _of_head(self, node: fx.Node) -> bool:
        """Whether the node belongs to the head, which must be the tail."""
        inside = self.head is None or any(
            path == self.head for path, _ in node.meta.get("nn_module_stack", {}).values()
        )
        if self.head is not None and self.in_head and not inside:
            raise Unfit(f"{_title(node)} follows the head {self.head!r}, which must be the network's tail")
        if inside and not self.in_head:
            self.in_head, self.found.head = True, len(self.found.nodes)
            self.found.cut = self.where[node.all_input_nodes[0]][0]
        return inside and self.head is not None

    def _check_cut(self, node: fx.Node, value: int, of_head: bool) -> None:
        _expect(
            not of_head or value == self.found.cut or value > self.found.head,
            f"{_title(node)} of the head reads more than the head's input",
        )

    def _append(self, node: Node) -> tuple[int, tuple[int, ...]]:
        self.found.nodes.append(node)
        return len(self.found.nodes), node.out

    def _sum(self, node: fx.Node, of_head: bool) -> None:
        a, b = node.args[:2]
        _expect(
            isinstance(a, fx.Node) and isinstance(b, fx.Node) and not node.kwargs.get("alpha"),
            f"{_title(node)} adds something that is not a branch of the network",
        )
        (at, shape), (bt, other) = self.where[a], self.where[b]  # type: ignore[index]
        _expect(shape == other, f"{_title(node)} adds branches of shapes {shape} and {other}")
        for value in (at, bt):
            self._check_cut(node, value, of_head)
        self.where[node] = self._append(Node(ADD, at, shape, shape, of_head, b=bt))

    def _add(
        self, layer: nn.Module, name: str, value: int, shape: tuple[int, ...], of_head: bool
    ) -> tuple[int, tuple[int, ...]]:
        """The value and shape after `layer`, which is added to the graph."""
        kind = type(layer)
        dropout = isinstance(layer, nn.modules.dropout._DropoutNd)
        if isinstance(layer, nn.Identity) or (dropout and layer.p == 0):
            return value, shape
        if kind is nn.Flatten:
            assert isinstance(layer, nn.Flatten)
            if layer.start_dim != 1 or layer.end_dim not in (-1, len(shape)):
                raise Unfit(f"flatten {name!r} keeps some dimensions apart")
            return value, (prod(shape),)
        if kind in ACTS or kind in MAX_POOLS:
            return self._staged(layer, name, value, shape, of_head)
        makers: list[tuple[bool, Callable[..., Node]]] = [
            (kind in CONVS, _conv),
            (kind is nn.Linear, _linear),
            (kind in BATCH_NORMS, _batch_norm),
            (kind in (nn.GroupNorm, nn.LayerNorm), _group_norm),
            (kind in AVERAGES, _average),
            (kind in TO_ONE_SIZE, _to_one_size),
            (kind is nn.Dropout, _dropout),
        ]
        for fits, make in makers:
            if fits:
                return self._append(make(layer, name, value, shape, of_head))
        raise Unfit(f"layer {name!r} is a {kind.__name__}, which the native backend does not know")

    def _staged(
        self, layer: nn.Module, name: str, value: int, shape: tuple[int, ...], of_head: bool
    ) -> tuple[int, tuple[int, ...]]:
        """An activation or a pool: part of the stage before it, where that is the last thing and open."""
        stage = self._open_stage(value, shape, of_head)
        if type(layer) in ACTS:
            _expect(
                not isinstance(layer, nn.GELU) or layer.approximate == "none",
                f"activation {name!r} approximates GELU",
            )
            if stage is None or stage.act or stage.pool != (1, 1):
                return self._append(Node(STAGE, value, shape, shape, of_head, act=ACTS[type(layer)]))
            stage.act = ACTS[type(layer)]
            return value, shape
        pool = _max_pool(layer, name, value, shape, of_head)
        fused = pool.kernel == pool.stride and pool.padding == (0, 0)
        if not fused or prod(pool.kernel) == 1:
            return self._append(pool)
        if stage is None or stage.pool != (1, 1) or stage.act > RELU6:
            return self._append(Node(STAGE, value, shape, pool.out, of_head, pool=pool.kernel))
        stage.pool, stage.out = pool.kernel, pool.out
        return value, pool.out

    def _open_stage(self, value: int, shape: tuple[int, ...], of_head: bool) -> Node | None:
        """The last operation, where it is a stage that can take more: on this side of the head, read by
        nobody else and not reshaped since."""
        last = self.found.nodes[-1] if self.found.nodes else None
        if last is None or value != len(self.found.nodes) or last.kind != STAGE:
            return None
        readers = [user for node, (at, _) in self.where.items() if at == value for user in node.users]
        chained = {node for node, (at, _) in self.where.items() if at == value}
        others = [user for user in readers if user not in chained]
        return last if last.of_head == of_head and last.out == shape and len(others) == 1 else None


def _is_sum(node: fx.Node) -> bool:
    return node.target in (operator.add, operator.iadd, torch.add, "add", "add_")


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

    window = ["kernel_size", "stride", "padding"]
    acts: dict[Any, nn.Module] = {
        **dict.fromkeys((F.relu, torch.relu, F.relu_, "relu", "relu_"), nn.ReLU()),
        F.relu6: nn.ReLU6(),
        F.hardswish: nn.Hardswish(),
        F.silu: nn.SiLU(),
    }
    if node.target in acts:
        return acts[node.target]
    if node.target is F.gelu:
        return takes(["approximate"], nn.GELU)
    if node.target in (torch.flatten, "flatten"):
        return takes(
            ["start_dim", "end_dim"], lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim)
        )
    if node.target in (F.max_pool2d, torch.max_pool2d):
        return takes([*window, "dilation", "ceil_mode", "return_indices"], nn.MaxPool2d)
    if node.target in (F.avg_pool2d, torch._C._nn.avg_pool2d):
        return takes([*window, "ceil_mode", "count_include_pad", "divisor_override"], nn.AvgPool2d)
    if node.target in (F.adaptive_avg_pool2d,):
        return takes(["output_size"], nn.AdaptiveAvgPool2d)
    raise Unfit(f"{_title(node)} is not known to the native backend")


def _pair(value: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a layer's setting; a signal has one row, whose setting is `value` along it."""
    given = tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(value),)
    if len(shape) == 2:
        return -1, given[0]
    return (given[0], given[0]) if len(given) == 1 else (given[0], given[1])


def _window(layer: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Kernel, stride and padding as pairs."""
    strides = layer.stride if layer.stride is not None else layer.kernel_size
    kernel, stride, padding = (_pair(v, shape) for v in (layer.kernel_size, strides, layer.padding))
    if len(shape) == 2:
        return (1, kernel[1]), (1, stride[1]), (0, padding[1])
    return kernel, stride, padding


def _slid(
    title: str,
    shape: tuple[int, ...],
    channels: int,
    window: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
) -> tuple[int, ...]:
    """The shape that a window leaves as it slides, rounded down."""
    (_, height, width), (kernel, stride, padding) = sides(shape), window
    out = [(side + 2 * padding[k] - kernel[k]) // stride[k] + 1 for k, side in enumerate((height, width))]
    fits = all(side + 2 * padding[k] >= kernel[k] for k, side in enumerate((height, width)))
    _expect(fits, f"{title} is larger than its input {shape}")
    return (channels, out[1]) if len(shape) == 2 else (channels, out[0], out[1])


def _conv(layer: Any, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    title = f"convolution {name!r}"
    _expect(
        not isinstance(layer.padding, str) and layer.padding_mode == "zeros",
        f"{title} has padding {layer.padding!r} ({layer.padding_mode})",
    )
    _expect(set(layer.dilation) == {1}, f"{title} has dilation")
    _expect(
        len(shape) == (3 if isinstance(layer, nn.Conv2d) else 2) and shape[0] == layer.in_channels,
        f"{title} expects {layer.in_channels} channels, not samples of shape {shape}",
    )
    window = _window(layer, shape)
    out = _slid(title, shape, layer.out_channels, window)
    return Node(CONV, value, shape, out, of_head, name, layer, -1, NONE, (1, 1), *window, layer.groups)


def _linear(layer: nn.Linear, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    _expect(len(shape) == 1, f"linear layer {name!r} is fed {shape} per sample; flatten first")
    _expect(
        layer.in_features == shape[0],
        f"linear layer {name!r} expects {layer.in_features} features, not {shape[0]}",
    )
    return Node(LINEAR, value, shape, (layer.out_features,), of_head, name, layer)


def _batch_norm(
    layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str, value: int, shape: tuple[int, ...], of_head: bool
) -> Node:
    title = f"norm layer {name!r}"
    _expect(layer.affine and layer.track_running_stats, f"{title} has no weights or keeps no statistics")
    _expect(layer.momentum is not None, f"{title} has momentum=None")
    ranks = (3,) if isinstance(layer, nn.BatchNorm2d) else (1, 2)
    _expect(len(shape) in ranks, f"{title} is fed {shape} per sample")
    _expect(
        layer.num_features == shape[0], f"{title} expects {layer.num_features} channels, not {shape[0]}"
    )
    return Node(STAGE, value, shape, shape, of_head, name, layer)


def _group_norm(layer: Any, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    if isinstance(layer, nn.LayerNorm):
        _expect(
            tuple(layer.normalized_shape) == shape,
            f"norm layer {name!r} takes a part of the sample {shape}; only the whole runs natively",
        )
        return Node(GROUP, value, shape, shape, of_head, name, layer)
    _expect(
        layer.num_channels == shape[0],
        f"norm layer {name!r} expects {layer.num_channels} channels, not {shape[0]}",
    )
    return Node(GROUP, value, shape, shape, of_head, name, layer, groups=layer.num_groups)


def _max_pool(layer: Any, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    title = f"max pool {name!r}"
    dilation = layer.dilation if isinstance(layer.dilation, (tuple, list)) else (layer.dilation,)
    plain = set(dilation) == {1} and not layer.ceil_mode and not layer.return_indices
    _expect(plain, f"{title} is dilated, rounds up or returns places; that does not run natively")
    out, window = _pooled(layer, title, shape)
    return Node(MAX, value, shape, out, of_head, "", None, -1, NONE, (1, 1), *window)


def _average(layer: Any, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    title = f"average pool {name!r}"
    plain = not layer.ceil_mode and getattr(layer, "divisor_override", None) is None
    _expect(plain, f"{title} rounds up or has a divisor of its own; that does not run natively")
    out, window = _pooled(layer, title, shape)
    return Node(MEAN, value, shape, out, of_head, "", layer, -1, NONE, (1, 1), *window)


def _pooled(layer: Any, title: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """The shape after a pool, and its window."""
    rank = 3 if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)) else 2
    _expect(len(shape) == rank, f"{title} is fed {shape} per sample")
    window = _window(layer, shape)
    return _slid(title, shape, shape[0], window), window


def _to_one_size(layer: Any, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    title = f"average pool {name!r}"
    _expect(
        len(shape) == (3 if isinstance(layer, nn.AdaptiveAvgPool2d) else 2),
        f"{title} is fed {shape} per sample",
    )
    asked = layer.output_size if isinstance(layer.output_size, (tuple, list)) else [layer.output_size]
    wanted = tuple(
        side if n is None else int(n) for side, n in zip(shape[1:], [*asked, *asked], strict=False)
    )
    _expect(
        all(side % n == 0 for side, n in zip(shape[1:], wanted, strict=True)),
        f"{title} makes {wanted} of {shape[1:]}, which it does not divide",
    )
    kernel = tuple(side // n for side, n in zip(shape[1:], wanted, strict=True))
    pair = (1, kernel[0]) if len(kernel) == 1 else (kernel[0], kernel[1])
    out = (shape[0], *wanted)
    return Node(MEAN, value, shape, out, of_head, "", layer, -1, NONE, (1, 1), pair, pair)


def _dropout(layer: nn.Dropout, name: str, value: int, shape: tuple[int, ...], of_head: bool) -> Node:
    return Node(DROPOUT, value, shape, shape, of_head, "", layer)


def _expect(fits: bool, otherwise: str) -> None:
    if not fits:
        raise Unfit(otherwise)
