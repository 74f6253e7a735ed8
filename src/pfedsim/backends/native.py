"""Graphs of the usual layers on the CPU by our own C++: one to seven times as fast as eager PyTorch.

The library is found beside this file as `_native*.so`. Where it is missing `available()` is False and
nothing else happens."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, reduce
from math import prod
from operator import add
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim.backends.base import AutogradNet, Reopened
from pfedsim.backends.graph import DROPOUT, GROUP, MEAN, STAGE, Node, Unfit, graph_of, sides
from pfedsim.backends.torch import normalised
from pfedsim.core.layout import Layout
from pfedsim.errors import Error

_WORDS = [
    *("kind", "a", "b", "in_", "height", "width", "out", "out_height", "out_width"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "groups"),
    *("pool_h", "pool_w", "norm", "act", "count_pad", "by_element"),
    *("weight", "bias", "mean", "variance", "weight_trains", "bias_trains"),
]
_ENTRIES = 1 << 22  # of dropout masks and augmented samples that one call takes
_STATE = 5056  # bytes of the state of torch's generator, as csrc/abi.cpp reads it


class _Op(ctypes.Structure):
    """csrc/net.h: Op."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _WORDS),
        ("momentum", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("keep", ctypes.c_double),
    ]


@cache
def _library() -> ctypes.CDLL | None:
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            library = ctypes.CDLL(str(path))
            library.pfedsim_op_size.restype = ctypes.c_int64
            if library.pfedsim_op_size() != ctypes.sizeof(_Op):
                continue  # built from other sources
        except (OSError, AttributeError):
            continue
        p, n, d, c = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p
        signatures: dict[str, tuple[list[type], type | None]] = {
            "kernel_set": ([c], c),
            "create": ([p, n, n, n, n, c], p),
            "destroy": ([p], None),
            "forward": ([p, p, p, p, n, p], ctypes.c_int),
            "backward": ([p, p, p, p, p, p, p], ctypes.c_int),
            "evaluate": ([p, p, p, n, n, n, p], ctypes.c_int),
            "head_gradient": ([p, p, p, n, p, p, p, p, p], ctypes.c_int),
            "moments": ([p, p, p, n, p, p], ctypes.c_int),
            "descend": ([p, p, p, p, p, p, p, p, n, p, n, d, d, d, p], ctypes.c_int),
            "space": ([p, n, n], n),
            "peak": ([c, n], n),
            "draw": ([p, d, n, p], None),
            "mix": ([p, p, p, n, n, n, n, p], ctypes.c_int),
            "squares": ([p, p, p, n], d),
            "move": ([p, p, d, n], None),
        }
        if not all(hasattr(library, f"pfedsim_{name}") for name in signatures):
            continue  # built from other sources
        for name, (arguments, result) in signatures.items():
            function = getattr(library, f"pfedsim_{name}")
            function.argtypes, function.restype = arguments, result
        return library
    return None


def available() -> bool:
    """Whether the library was built and loads."""
    return _library() is not None


def unfit(module: nn.Module, shape: tuple[int, ...], head: str | None = None) -> str | None:
    """Why this network cannot run natively on samples of this shape; None where it can."""
    try:
        graph_of(module, shape, head)
    except Unfit as why:
        return str(why)
    return None


def kernel_set(kernels: str = "auto") -> str:
    """The kernels that run where `kernels` is asked for: "portable", "avx2" or "avx512"; "" where there are
    none."""
    library = _library()
    found = library.pfedsim_kernel_set(kernels.encode()) if library else None
    return found.decode() if found else ""


def peak(kernels: str = "auto", turns: int = 2_000_000) -> float:
    """Floating-point operations done by multiply-adds on registers alone: time it for the most that a core can
    do."""
    library = _library()
    assert library is not None
    return float(library.pfedsim_peak(kernels.encode(), turns))


def mix(rows: Sequence[Tensor], table: Sequence[Sequence[float]], threads: int = 1) -> list[Tensor]:
    """sum(w row) / sum(w) for each line of weights, row by row in the given order, in float64: the bits of
    `rows.weighted_means`, on any number of threads."""
    library = _library()
    assert library is not None
    held = [_floats(row) for row in rows]
    if (
        not held
        or any(len(line) != len(held) for line in table)
        or {row.shape for row in held} != {held[0].shape}
    ):
        raise ValueError(f"means of {len(rows)} rows by lines of {[len(line) for line in table]} weights")
    totals = [reduce(add, line, 0.0) for line in table]  # sum() of floats compensates from Python 3.12 on
    means = [torch.empty_like(held[0]) for _ in table]
    weights = torch.tensor(table, dtype=torch.float64)
    sums = torch.tensor(totals, dtype=torch.float64)
    size = held[0].numel()
    out = _pointers(means)
    if library.pfedsim_mix(
        _pointers(held), _at(weights), _at(sums), len(held), len(means), size, threads, out
    ):
        raise MemoryError(f"the means of {len(held)} rows ran out of memory; use fewer clients")
    return means


def squares(row: Tensor, spans: Tensor, start: Tensor | None = None) -> float:
    """The sum of squares of a vector's entries, or of their differences from `start`, in these spans (first, last) of
    it, in float64: finite exactly if all of them are."""
    library = _library()
    assert library is not None
    row, start = _floats(row), None if start is None else _floats(start)
    if row.ndim != 1 or (start is not None and start.shape != row.shape):
        raise ValueError(f"a step to {tuple(row.shape)} entries")
    return float(library.pfedsim_squares(row.data_ptr(), _at(start), spans.data_ptr(), len(spans)))


def _draw(masks: Sequence[Tensor], keep: Sequence[float]) -> None:
    """Fills each mask as mask.bernoulli_(keep) would, from torch's generator, which moves on as far."""
    library = _library()
    assert library is not None
    if not _draws_like_torch():
        for mask, share in zip(masks, keep, strict=True):
            mask.bernoulli_(share)
        return
    state = torch.get_rng_state()
    for mask, share in zip(masks, keep, strict=True):
        library.pfedsim_draw(_at(state), share, mask.numel(), _at(mask))
    torch.set_rng_state(state)


@cache
def _draws_like_torch() -> bool:
    """Whether our draws are torch's bit by bit: builds of torch may draw in other ways."""
    library, generator = _library(), torch.Generator().manual_seed(1)
    assert library is not None
    state, ours = generator.get_state(), torch.empty(1000)
    if state.numel() != _STATE:
        return False
    library.pfedsim_draw(_at(state), 0.3, len(ours), _at(ours))
    theirs = torch.empty_like(ours).bernoulli_(0.3, generator=generator)
    return torch.equal(ours, theirs) and torch.equal(state, generator.get_state())


def move(values: Tensor, step: Tensor, lr: float) -> None:
    """values -= lr * step, with the bits of those two operations and one pass over the memory."""
    library = _library()
    assert library is not None
    library.pfedsim_move(values.data_ptr(), step.data_ptr(), lr, values.numel())


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


class NativeNet(Reopened):
    """A network as functions of its flat vector."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        head: str,
        mean: Tensor,
        std: Tensor,
        shape: tuple[int, ...],
        kernels: str = "auto",
    ):
        self.device = torch.device("cpu")
        library = _library()
        if library is None:
            raise Error(
                "the native backend was not built here; use backend = torch, or install pfedsim with a "
                "C++17 compiler at hand"
            )
        graph = graph_of(module, tuple(shape), head)
        self._library, self._layout, self._mean, self._std = library, layout, mean.cpu(), std.cpu()
        shapes = [tuple(shape), *(node.out for node in graph.nodes)]
        self._shape, self._width = tuple(shape), head_width(graph.nodes[graph.head], shapes[graph.cut])
        self._classes = graph.nodes[-1].out[0]
        self._norms, self._sites = graph.norms(), [_values_per_channel(node) for node in graph.norms()]
        self._drops = [node for node in graph.nodes if node.kind == DROPOUT]
        self._buffers = layout.buffers.cpu().nonzero()[:, 0]
        count = len(graph.nodes)
        ops = (_Op * count)(*(_described(node, layout) for node in graph.nodes))
        self._net = library.pfedsim_create(ops, count, graph.head, graph.cut, layout.size, kernels.encode())
        if not self._net:
            raise Error(f"there are no {kernels!r} kernels on this machine; it has {kernel_set()!r}")
        self.kernels = kernel_set(kernels)

    def __del__(self) -> None:
        if getattr(self, "_net", None):
            self._library.pfedsim_destroy(self._net)

    def ready(self, x: Tensor) -> Tensor:
        """Stored samples as the network takes them: bytes to 0..1, then the set's mean and deviation."""
        return normalised(x, self._mean, self._std)

    def grad(
        self,
        theta: Tensor,
        statistics: Tensor,
        x: Tensor,
        targets: Tensor,
        at_features: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, float]:
        """Gradient and value of the mean cross-entropy in train mode with the norm statistics given, and
        those that follow."""
        theta = self._with(theta, statistics)
        x, count = self._samples(x, self._shape, training=True)
        hard, soft = self._targets(targets, count)
        extra, kept = None, self._kept([count])
        if at_features is None:
            self._call("forward", _at(theta), _at(x), _at(kept), count, None)
        else:
            features = torch.empty(count, *self._width)
            self._call("forward", _at(theta), _at(x), _at(kept), count, _at(features))
            extra = _floats(at_features(features))
            if extra.shape != features.shape:
                raise Error(
                    f"at_features gave a gradient of shape {tuple(extra.shape)} for features of shape "
                    f"{tuple(features.shape)}"
                )
        gradient, loss = torch.zeros(self._layout.size), ctypes.c_double()
        self._call(
            "backward", _at(theta), _at(hard), _at(soft), _at(extra), _at(gradient), ctypes.byref(loss)
        )
        return gradient, theta[self._buffers], loss.value

    def grad_of(
        self, theta: Tensor, statistics: Tensor, loss: Callable[[AutogradNet], Tensor]
    ) -> tuple[Tensor, Tensor, float]:
        """Autograd cannot differentiate what runs natively."""
        raise Error("a loss written for autograd needs backend = torch")

    def descend(
        self,
        theta: Tensor,
        statistics: Tensor,
        x: Tensor,
        y: Tensor,
        steps: Sequence[Tensor],
        lr: float,
        moves: Tensor,
        momentum: float = 0.0,
        decay: float = 0.0,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, list[float]]:
        """A whole phase of SGD in one call: `steps` holds each step's sample numbers. The model, the
        statistics and each step's loss; the same bits as `grad` and the update of `client.train`, step by
        step."""
        theta = self._with(theta, statistics)
        x, _ = self._samples(x, self._shape)
        hard, soft = self._targets(y, len(x))
        if not steps:
            return theta, theta[self._buffers], []
        order = torch.cat(list(steps)).to(torch.int64)
        self._check_batch(min(len(step) for step in steps))
        if int(order.min()) < 0 or int(order.max()) >= len(x):
            raise Error(f"steps name samples outside 0..{len(x) - 1}")
        mask = moves.to(torch.uint8).contiguous()
        if mask.shape != theta.shape:
            raise Error(
                f"the mask of what moves has shape {tuple(mask.shape)}, the model's is {tuple(theta.shape)}"
            )
        losses = list[float]()
        for part in self._parts(steps, augment is not None):
            lengths = [len(step) for step in part]
            kept, ends = self._kept(lengths), torch.tensor(lengths, dtype=torch.int64).cumsum(0)
            order, found = torch.cat(part).to(torch.int64), torch.empty(len(part), dtype=torch.float64)
            seen = [x, hard, soft]
            if augment is not None:  # the steps' own images one after another, in place of the stored ones
                images = torch.cat([augment(x.index_select(0, step)) for step in part])
                seen = [images, *(None if t is None else t.index_select(0, order) for t in (hard, soft))]
                order = torch.arange(len(order))
            here = [_at(t) for t in (theta, *seen, order, kept, ends)]
            self._call("descend", *here, len(part), _at(mask), not losses, lr, momentum, decay, _at(found))
            losses += found.tolist()
        return theta, theta[self._buffers], losses

    def _parts(self, steps: Sequence[Tensor], augmented: bool) -> list[list[Tensor]]:
        """Steps that one call takes: all, but for the memory of dropout masks and augmented samples."""
        sample = sum(prod(node.shape) for node in self._drops) + augmented * prod(self._shape)
        each = len(steps) if not sample else max(1, _ENTRIES // (sample * max(len(step) for step in steps)))
        return [list(steps[k : k + each]) for k in range(0, len(steps), each)]

    def _kept(self, batches: Sequence[int]) -> Tensor | None:
        """What dropout keeps in batches of these sizes, drawn from torch's generator as torch itself would:
        batch by batch, layer by layer."""
        if not self._drops:
            return None
        sizes = [count * prod(node.shape) for count in batches for node in self._drops]
        kept = torch.empty(sum(sizes))
        _draw(kept.split(sizes), [1 - node.module.p for node in self._drops] * len(batches))  # type: ignore
        return kept

    def space(self, batch: int, training: bool = True) -> int:
        """Bytes of work space for batches of this size."""
        return int(self._library.pfedsim_space(self._net, batch, training))

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class scores in eval mode, with the norm statistics inside `theta`."""
        return self._evaluate(theta, x, self._shape, True, True, (self._classes,))

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """The head's input in eval mode."""
        return self._evaluate(theta, x, self._shape, True, False, self._width)

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The classifier's scores for features `z`, in eval mode."""
        return self._evaluate(theta, z, self._width, False, True, (self._classes,))

    def _evaluate(
        self, theta: Tensor, x: Tensor, shape: tuple[int, ...], body: bool, tail: bool, out: tuple[int, ...]
    ) -> Tensor:
        theta = self._model(theta)
        x, count = self._samples(x, shape)
        result = torch.empty(count, *out)
        self._call("evaluate", _at(theta), _at(x), count, body, tail, _at(result))
        return result

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> float:
        """Mean cross-entropy in eval mode."""
        return float(F.cross_entropy(self.logits(theta, x).double(), y))

    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the classifier's mean cross-entropy at features `z`: by `theta` and by `z`, in eval
        mode."""
        theta = self._model(theta)
        z, count = self._samples(z, self._width)
        hard, soft = self._targets(targets, count)
        gradient, by_z, loss = torch.zeros(self._layout.size), torch.empty_like(z), ctypes.c_double()
        self._call(
            "head_gradient",
            _at(theta),
            _at(z),
            count,
            _at(hard),
            _at(soft),
            _at(gradient),
            _at(by_z),
            ctypes.byref(loss),
        )
        return gradient, by_z

    def moments(self, theta: Tensor, x: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Count, mean and population variance per channel at each norm layer's input, in eval mode."""
        theta = self._model(theta)
        x, count = self._samples(x, self._shape)
        sizes = [channels for channels, _ in self._sites]
        means, variances = (torch.empty(sum(sizes), dtype=torch.float64) for _ in range(2))
        self._call("moments", _at(theta), _at(x), count, _at(means), _at(variances))
        parts = zip(
            (node.name for node in self._norms),
            self._sites,
            torch.split(means.float(), sizes),
            torch.split(variances.float(), sizes),
            strict=True,
        )
        found = {name: (count * pixels, mean, variance) for name, (_, pixels), mean, variance in parts}
        return [found[name] for name, _ in self._layout.norms]

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, f"pfedsim_{name}")(self._net, *arguments):
            raise MemoryError("the native backend ran out of memory; use smaller batches")

    def _model(self, theta: Tensor) -> Tensor:
        if theta.shape != (self._layout.size,):
            raise Error(
                f"a model has {self._layout.size} entries; this vector has shape {tuple(theta.shape)}"
            )
        return _floats(theta)

    def _with(self, theta: Tensor, statistics: Tensor) -> Tensor:
        """A copy of `theta` with these norm statistics."""
        theta = self._model(theta).clone()
        theta[self._buffers] = statistics
        return theta

    def _samples(self, x: Tensor, shape: tuple[int, ...], training: bool = False) -> tuple[Tensor, int]:
        if tuple(x.shape[1:]) != shape:
            raise Error(f"samples have shape {tuple(x.shape[1:])}; the network takes {shape}")
        if training:
            self._check_batch(len(x))
        return _floats(x), len(x)

    def _check_batch(self, smallest: int) -> None:
        if smallest < 1 or any(smallest * pixels < 2 for _, pixels in self._sites):
            raise ValueError(
                f"a batch of {smallest}: norm layers need more than one value per channel in train mode"
            )

    def _targets(self, targets: Tensor, count: int) -> tuple[Tensor | None, Tensor | None]:
        """Hard labels or soft targets, whichever they are."""
        if targets.dtype.is_floating_point:
            if targets.shape != (count, self._classes):
                raise Error(
                    f"soft targets have shape {tuple(targets.shape)}; {count} samples of {self._classes} "
                    "classes are expected"
                )
            return None, _floats(targets)
        if targets.shape != (count,):
            raise Error(f"labels have shape {tuple(targets.shape)}; {count} are expected")
        if count and (int(targets.min()) < 0 or int(targets.max()) >= self._classes):
            raise Error(
                f"labels reach from {int(targets.min())} to {int(targets.max())}; the network has "
                f"{self._classes} classes"
            )
        return targets.detach().to(torch.int64).contiguous(), None


def _floats(t: Tensor) -> Tensor:
    return t.detach().to(torch.float32).contiguous()


def _at(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()


def head_width(first: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the head's input, flattened where the body flattens it."""
    return first.shape if prod(first.shape) == prod(shape) else shape


def _values_per_channel(node: Node) -> tuple[int, int]:
    """Channels of a norm's input, and values of each in one sample."""
    if isinstance(node.module, nn.LayerNorm):
        return prod(node.shape), 1
    channels, height, width = sides(node.shape)
    return channels, height * width


def _described(node: Node, layout: Layout) -> _Op:
    starts = dict(zip(layout.names, layout.starts, strict=True))
    layer, prefix = node.module, node.name
    op = _Op(kind=node.kind, a=node.a, b=node.b, groups=node.groups, act=node.act)
    op.in_, op.height, op.width = sides(node.shape)
    op.out, op.out_height, op.out_width = sides(node.out)
    op.kernel_h, op.kernel_w = node.kernel
    op.stride_h, op.stride_w = node.stride
    op.pad_h, op.pad_w = node.padding
    op.pool_h, op.pool_w = node.pool
    op.weight = op.bias = op.mean = op.variance = -1
    if node.kind == STAGE and isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
        op.norm, op.momentum, op.epsilon = True, float(layer.momentum or 0.0), layer.eps
        op.mean, op.variance = starts[f"{prefix}.running_mean"], starts[f"{prefix}.running_var"]
    if node.kind == GROUP and isinstance(layer, (nn.GroupNorm, nn.LayerNorm)):
        op.epsilon, op.by_element = layer.eps, isinstance(layer, nn.LayerNorm)
    if node.kind == MEAN:
        op.count_pad = getattr(layer, "count_include_pad", True)
    if isinstance(layer, nn.Dropout):
        op.keep = 1 - layer.p
    for word in ("weight", "bias") if prefix else ():
        parameter = getattr(layer, word)
        if parameter is not None:
            setattr(op, word, starts[f"{prefix}.{word}"])
            setattr(op, f"{word}_trains", parameter.requires_grad)
    return op
