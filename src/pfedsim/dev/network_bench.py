"""Whole networks on one core: a step of training and a pass of scoring on both backends, against PyTorch in the
better of its two memory formats, and as a share of what the core can do."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pfedsim.backends import native
from pfedsim.backends.base import Backend
from pfedsim.backends.torch import TorchNet
from pfedsim.core.layout import layout_of
from pfedsim.dev.networks import VGG6, PFLlibCNN, PflResearchCNN
from pfedsim.models.lenet5 import LeNet5
from pfedsim.models.mobilenetv2 import MobileNetV2
from pfedsim.models.resnet20 import ResNet20

NETWORKS: list[tuple[str, Callable[..., nn.Module], tuple[int, ...]]] = [
    ("LeNet5", LeNet5, (3, 32, 32)),
    ("PFLlib's CNN", PFLlibCNN, (3, 32, 32)),
    ("PFLlib's CNN", PFLlibCNN, (1, 28, 28)),
    ("pfl-research's CNN", PflResearchCNN, (3, 32, 32)),
    ("VGG-6 with batch norm", VGG6, (3, 32, 32)),
    ("ResNet-20", ResNet20, (3, 32, 32)),
    ("MobileNetV2", MobileNetV2, (3, 64, 64)),
]
BATCHES = (32, 10)
CLASSES, WORK = 10, 1e10  # floating-point operations that one repetition does at least
FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def peak_gflops(repetitions: int = 5) -> float:
    """The most that this core does, by CPU time: multiply-adds on registers alone, or a matrix product of torch where
    that is faster."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)

    def products() -> float:
        torch.mm(a, b)
        return 2 * 1024**3

    ways = [products, *([native.peak] if native.available() else [])]
    for way in ways:
        way()
    return max(_rate(way) for _ in range(repetitions) for way in ways) / 1e9


def _rate(way: Callable[[], float]) -> float:
    began = time.process_time()
    done = way()
    return done / max(1e-9, time.process_time() - began)


def mflop(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Floating-point operations of convolutions and linear layers for one sample, forward and backward, in
    millions; the first layer needs no gradient by its input."""
    passes: list[float] = []

    def count(layer: Any, _: Any, out: torch.Tensor) -> None:
        passes.append(2e-6 * layer.weight.numel() * out[0].numel() / out.shape[1])

    kinds = (nn.Conv1d, nn.Conv2d, nn.Linear)
    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return 3 * sum(passes) - passes[0]


def measure(repetitions: int, peak: float, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row for each network and batch size."""
    rows = []
    for name, kind, shape in NETWORKS:
        for batch in BATCHES:
            row = _measured(kind, shape, batch, repetitions, peak)
            rows.append({"network": f"{name} {'x'.join(map(str, shape))}", "batch": batch} | row)
            cells = ", ".join(f"{k} {v:.2f}" for k, v in row.items())
            say(f"{rows[-1]['network']}, batch {batch}: {cells}")
    return rows


def _measured(
    kind: Callable[..., nn.Module], shape: tuple[int, ...], batch: int, repetitions: int, peak: float
) -> dict[str, float]:
    torch.manual_seed(0)
    module = kind(shape, CLASSES)
    work = mflop(module, shape)
    x, y = torch.randn(batch, *shape), torch.randint(0, CLASSES, (batch,))
    steps = max(1, round(WORK / (1e6 * work * batch)))
    train: dict[str, Callable[[int], None]] = {}
    score: dict[str, Callable[[int], None]] = {}
    for name, form in FORMATS.items():
        plain: Any = kind(shape, CLASSES)
        train[name], score[name] = _plain(plain.to(memory_format=form), x.to(memory_format=form), y)
    for name, net in _backends(module, shape).items():
        train[name], score[name] = _on(net, module, x, y)
    trained = _seconds(train, steps, repetitions)
    scored = _seconds(score, 3 * steps, repetitions)
    best, fastest = min(trained[form] for form in FORMATS), min(scored[form] for form in FORMATS)
    row = {
        "mflop": work,
        "torch_ms": 1e3 * best,
        "torch_share": work * batch / best / peak / 1e3,
        "torch_backend_times": best / trained["torch backend"],
    }
    if "native backend" in trained:
        row["native_ms"] = 1e3 * trained["native backend"]
        row["native_times"] = best / trained["native backend"]
        row["native_share"] = work * batch / trained["native backend"] / peak / 1e3
        row["native_scoring_times"] = fastest / scored["native backend"]
    return row


def _backends(module: nn.Module, shape: tuple[int, ...]) -> dict[str, Backend]:
    layout, zero, one = layout_of(module), torch.zeros(1), torch.ones(1)
    found: dict[str, Backend] = {}
    if native.available():
        found["native backend"] = native.NativeNet(module, layout, "classifier", zero, one, shape)
    found["torch backend"] = TorchNet(module, layout, "classifier", zero, one, torch.device("cpu"))
    return found


def _plain(
    module: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Steps of a plain PyTorch loop, and passes in eval mode."""
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def train(steps: int) -> None:
        module.train()
        for _ in range(steps):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(x), y))
            optimizer.step()

    def score(passes: int) -> None:
        module.eval()
        with torch.no_grad():
            for _ in range(passes):
                module(x)

    return train, score


def _on(
    net: Backend, module: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Steps of a backend in one call, and passes in eval mode."""
    layout = layout_of(module)
    state = module.state_dict()
    theta = layout.flat({name: state[name] for name in layout.names}).clone()
    ready, numbers = net.ready(x), torch.arange(len(y))

    def train(steps: int) -> None:
        net.descend(theta, theta[layout.buffers], ready, y, [numbers] * steps, 0.01, layout.trainable)

    def score(passes: int) -> None:
        for _ in range(passes):
            net.logits(theta, ready)

    return train, score


def _seconds(ways: dict[str, Callable[[int], None]], steps: int, repetitions: int) -> dict[str, float]:
    """CPU seconds of one step, the median over repetitions in turns."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(1)
    for _ in range(repetitions):
        for name, way in ways.items():
            began = time.process_time()
            way(steps)
            took[name].append((time.process_time() - began) / steps)
    return {name: median(found) for name, found in took.items()}
