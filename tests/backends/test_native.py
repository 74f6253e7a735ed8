"""The native backend against PyTorch in float64, and against itself to the bit."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim.backends import native
from pfedsim.backends.native import NativeNet
from pfedsim.backends.torch import TorchNet
from pfedsim.core.layout import Layout, layout_of
from pfedsim.core.rows import weighted_means
from pfedsim.errors import Error
from pfedsim.models.lenet5 import LeNet5

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library was not built")
KERNELS = [name for name in ("portable", "avx2", "avx512") if native.kernel_set(name)]
ZERO, ONE = torch.zeros(1), torch.ones(1)


class Net(nn.Module):
    def __init__(self, *body: nn.Module, classifier: nn.Module):
        super().__init__()
        self.body, self.classifier = nn.Sequential(*body), classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x))


def flat(module: nn.Module, layout: Layout | None = None) -> Tensor:
    layout = layout or layout_of(module)
    return layout.flat({name: t for name, t in module.state_dict().items() if name in layout.names}).clone()


def lively(module: nn.Module) -> nn.Module:
    """The same with norm weights and statistics that are not those of a new layer."""
    for layer in module.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.weight.data.uniform_(-1.5, 1.5)
            layer.bias.data.uniform_(-0.5, 0.5)
            layer.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr, operator]
            layer.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr, operator]
    return module


def made(
    module: nn.Module, shape: tuple[int, ...], kernels: str = "auto"
) -> tuple[NativeNet, Layout, Tensor]:
    layout = layout_of(module)
    return NativeNet(module, layout, "classifier", ZERO, ONE, shape, kernels), layout, flat(module)


def exact(
    module: nn.Module, x: Tensor, targets: Tensor, at_features: Tensor | None = None
) -> tuple[Tensor, Tensor, float, float]:
    """Gradient, statistics and loss in float64, and the distance to the nearest pool tie or ReLU zero that
    matters."""
    layout = layout_of(module)
    module = copy.deepcopy(module).double().train()
    gaps: list[float] = []
    kept: list[Tensor] = []
    zeroed = {
        id(b) for a, b in _neighbours(module) if isinstance(a, nn.ReLU) and isinstance(b, nn.MaxPool2d)
    }
    pooled = {
        id(a) for a, b in _neighbours(module) if isinstance(a, nn.ReLU) and isinstance(b, nn.MaxPool2d)
    }

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        v = inputs[0].detach()
        if isinstance(layer, nn.ReLU) and id(layer) not in pooled:
            gaps.append(float(v.abs().min()))
        if isinstance(layer, nn.MaxPool2d):
            k = int(layer.kernel_size)  # type: ignore[arg-type]
            windows = F.unfold(v.flatten(0, 1)[:, None], k, stride=k).transpose(1, 2).flatten(0, 1)
            if windows.shape[1] > 1:
                top = windows.topk(2).values
                apart = top[:, 0] - top[:, 1]
                alive = top[:, 0] > 0 if id(layer) in zeroed else torch.ones(len(top), dtype=torch.bool)
                gaps.append(float(apart[alive].min()) if alive.any() else 1.0)
            if id(layer) in zeroed:
                alive_values = windows.max(1).values
                gaps.append(
                    float(alive_values[alive_values > 0].min()) if (alive_values > 0).any() else 1.0
                )

    for layer in module.modules():
        layer.register_forward_pre_hook(watch)
    module.get_submodule("classifier").register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    loss = F.cross_entropy(module(x.double()), targets.double() if targets.is_floating_point() else targets)
    total = loss if at_features is None else loss + (at_features.double() * kept[0]).sum()
    total.backward()
    parameters = dict(module.named_parameters())
    state = module.state_dict()
    grads = [
        parameters[n].grad
        if n in parameters and parameters[n].grad is not None
        else torch.zeros_like(state[n])
        for n in layout.names
    ]
    gradient = torch.cat([g.reshape(-1) for g in grads if g is not None])
    statistics = torch.cat([state[n].reshape(-1) for n in layout.names])[layout.buffers]
    return gradient, statistics, float(loss.detach()), min(gaps, default=1.0)


def _neighbours(module: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Layers and what follows them, for networks that use each layer once, in the order of their making."""
    leaves = [m for m in module.modules() if not list(m.children())]
    return list(pairwise(leaves))


def apart(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-6))


def lenet_chain(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """LeNet5 with layers of its own, so that hooks tell them apart."""
    c, h, w = shape
    left = (((h - 4) // 2 - 4) // 2) * (((w - 4) // 2 - 4) // 2)
    body = [
        nn.Conv2d(c, 6, 5),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    dense = [nn.Flatten(), nn.Linear(16 * left, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return Net(*body, *dense, classifier=nn.Linear(84, classes))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("shape", "classes"), [((3, 32, 32), 10), ((1, 28, 28), 62)])
def test_lenet_gradients_match_float64(kernels: str, shape: tuple[int, int, int], classes: int) -> None:
    torch.manual_seed(1)
    module = lenet_chain(shape, classes)
    net, layout, theta = made(module, shape, kernels)
    fair, drawn = 0, 0
    for batch in (2, 3, 8, 12, 16, 17, 24, 31, 32, 33):
        for _ in range(2):
            x, y = torch.randn(batch, *shape), torch.randint(0, classes, (batch,))
            want, statistics, loss, gap = exact(module, x, y)
            got, moved, value = net.grad(theta, theta[layout.buffers], x, y)
            assert apart(moved, statistics) < 1e-6
            assert abs(value - loss) < 1e-5
            drawn += 1
            if gap > 1e-6:
                fair += 1
                assert apart(got, want) < 1e-5, (batch, gap)
    assert fair >= 0.9 * drawn


@st.composite
def chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], int]:
    """A random chain, the shape of its samples and its number of classes."""
    channels, height, width = draw(st.integers(1, 4)), draw(st.integers(6, 13)), draw(st.integers(6, 13))
    shape, body = (channels, height, width), list[nn.Module]()
    for _ in range(draw(st.integers(0, 3))):
        kernel, pad = (
            (draw(st.integers(1, 5)), draw(st.integers(1, 5))),
            (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        )
        after = height + 2 * pad[0] - kernel[0] + 1, width + 2 * pad[1] - kernel[1] + 1
        if min(after) < 1:
            continue
        out = draw(st.integers(1, 13))
        body.append(nn.Conv2d(channels, out, kernel, padding=pad, bias=draw(st.booleans())))
        channels, (height, width) = out, after
        for layer in draw(st.permutations(["norm", "relu", "pool"]))[: draw(st.integers(0, 3))]:
            pool = draw(st.integers(1, 3)) if layer == "pool" else 1
            if layer == "pool" and min(height, width) < 2 * pool:
                continue
            height, width = height // pool, width // pool
            body.append(
                {
                    "norm": nn.BatchNorm2d(channels, momentum=0.3),
                    "relu": nn.ReLU(),
                    "pool": nn.MaxPool2d(pool),
                }[layer]
            )
    body.append(nn.Flatten())
    features = channels * height * width
    for _ in range(draw(st.integers(0, 2))):
        out = draw(st.integers(1, 40))
        body.append(nn.Linear(features, out, bias=draw(st.booleans())))
        body += [nn.BatchNorm1d(out)] if draw(st.booleans()) else []
        body += [nn.ReLU()] if draw(st.booleans()) else []
        features = out
    classes = draw(st.integers(2, 20))
    return Net(*body, classifier=nn.Linear(features, classes, bias=draw(st.booleans()))), shape, classes


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chains(), st.integers(6, 70), st.sampled_from(KERNELS), st.booleans(), st.integers(0, 2**31))
def test_any_chain_matches_float64(
    chain: tuple[nn.Module, tuple[int, ...], int], batch: int, kernels: str, soft: bool, seed: int
) -> None:
    module, shape, classes = chain
    torch.manual_seed(seed)
    for p in module.parameters():
        p.data.normal_(0, p[0].numel() ** -0.5)
    lively(module)
    net, layout, theta = made(module, shape, kernels)
    x = torch.randn(batch, *shape)
    targets = torch.rand(batch, classes) if soft else torch.randint(0, classes, (batch,))
    assert apart(net.logits(theta, x), copy.deepcopy(module).double().eval()(x.double()).detach()) < 1e-5
    want, statistics, loss, gap = exact(module, x, targets)
    got, moved, value = net.grad(theta, theta[layout.buffers], x, targets)
    assert apart(moved, statistics) < 1e-6
    assert abs(value - loss) < 1e-5 * (1 + abs(loss))
    assume(gap > 1e-6)
    reference = TorchNet(copy.deepcopy(module), layout, "classifier", ZERO, ONE, torch.device("cpu"))
    usual = apart(
        reference.grad(theta, theta[layout.buffers], x, targets)[0], want
    )  # a norm over few samples can be ill-conditioned
    assert apart(got, want) < max(1e-5, 3 * usual)


def test_twenty_steps_stay_with_float64() -> None:
    torch.manual_seed(2)
    module = lenet_chain((3, 32, 32), 10)
    net, layout, theta = made(module, (3, 32, 32))
    x, y = torch.randn(320, 3, 32, 32), torch.randint(0, 10, (320,))
    steps = list(torch.randperm(320).split(16))
    got, _, _ = net.descend(theta, theta[layout.buffers], x, y, steps, 0.05, layout.trainable, 0.9, 1e-3)
    reference = copy.deepcopy(module).double().train()
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for step in steps:
        optimiser.zero_grad()
        F.cross_entropy(reference(x[step].double()), y[step]).backward()
        optimiser.step()
    want = torch.cat([reference.state_dict()[name].reshape(-1) for name in layout.names])
    assert apart(got, want) < 1e-4


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.5, 1e-4)])
@pytest.mark.parametrize("part", ["trainable", "body", "head"])
def test_descend_has_the_bits_of_single_steps(
    kernels: str, momentum: float, decay: float, part: str
) -> None:
    torch.manual_seed(3)
    module = lively(LeNet5((1, 20, 18), 7))
    net, layout, start = made(module, (1, 20, 18), kernels)
    x, y = torch.randn(45, 1, 20, 18), torch.randint(0, 7, (45,))
    steps, lr, moves = (
        [s for _ in range(2) for s in torch.randperm(45).split(17)],
        0.03,
        getattr(layout, part) & layout.trainable,
    )
    theta, statistics, velocity, losses = start, start[layout.buffers], torch.zeros_like(start), []
    for step in steps:  # as in client.train
        direction, statistics, loss = net.grad(theta, statistics, x[step], y[step])
        if decay:
            direction = direction + decay * theta
        if momentum:
            direction = velocity = momentum * velocity + direction
        theta = torch.where(moves, theta - lr * direction, theta)
        theta[layout.buffers] = statistics
        losses.append(loss)
    got, moved, values = net.descend(start, start[layout.buffers], x, y, steps, lr, moves, momentum, decay)
    assert torch.equal(got, theta)
    assert torch.equal(moved, statistics)
    assert values == losses


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("all_move", [True, False])
def test_a_wide_linear_layer_takes_its_step_with_the_bits_of_single_ones(
    kernels: str, all_move: bool
) -> None:
    torch.manual_seed(12)
    module = Net(
        nn.Flatten(),
        nn.Linear(4 * 33 * 33, 11),
        nn.ReLU(),
        nn.Linear(11, 300),
        classifier=nn.Linear(300, 5),
    )
    net, layout, start = made(module, (4, 33, 33), kernels)
    x, y, steps = torch.randn(12, 4, 33, 33), torch.randint(0, 5, (12,)), list(torch.arange(12).split(5))
    moves = layout.trainable.clone()
    moves[100] = all_move
    theta, velocity = start, torch.zeros_like(start)
    for step in steps:
        gradient, _, _ = net.grad(theta, theta[layout.buffers], x[step], y[step])
        velocity = 0.5 * velocity + (gradient + 0.01 * theta)
        theta = torch.where(moves, theta - 0.1 * velocity, theta)
    got, _, _ = net.descend(start, start[layout.buffers], x, y, steps, 0.1, moves, 0.5, 0.01)
    assert torch.equal(got, theta)


@pytest.mark.parametrize("kernels", KERNELS)
def test_bits_do_not_depend_on_what_ran_before(kernels: str) -> None:
    torch.manual_seed(4)
    shape = (2, 9, 11)
    body = [
        nn.Conv2d(2, 7, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(7),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(140, 11),
        nn.ReLU(),
    ]
    module = lively(Net(*body, classifier=nn.Linear(11, 3)))
    fresh, layout, theta = made(module, shape, kernels)
    used, _, _ = made(module, shape, kernels)
    wild = torch.full((50, *shape), float("inf"))
    used.grad(theta, theta[layout.buffers], wild, torch.zeros(50, dtype=torch.int64))
    used.logits(theta, wild)
    for batch in (5, 33, 2):
        x, y = torch.randn(batch, *shape), torch.randint(0, 3, (batch,))
        for a, b in zip(
            fresh.grad(theta, theta[layout.buffers], x, y),
            used.grad(theta, theta[layout.buffers], x, y),
            strict=True,
        ):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        assert torch.equal(fresh.logits(theta, x), used.logits(theta, x))
    x = torch.randn(70, *shape)
    assert torch.equal(fresh.logits(theta, x)[33:40], fresh.logits(theta, x[33:40]))


def test_at_features_adds_a_gradient_at_the_head() -> None:
    torch.manual_seed(5)
    module = lively(lenet_chain((1, 24, 24), 5))
    net, layout, theta = made(module, (1, 24, 24))
    x, y, extra = torch.randn(9, 1, 24, 24), torch.randint(0, 5, (9,)), torch.randn(9, 84)
    seen: list[Tensor] = []

    def at_features(z: Tensor) -> Tensor:
        seen.append(z)
        return extra

    got, _, _ = net.grad(theta, theta[layout.buffers], x, y, at_features)
    want, _, _, gap = exact(module, x, y, extra)
    assert gap > 1e-6
    assert apart(got, want) < 1e-5
    kept = copy.deepcopy(module).double().train().get_submodule("body")(x.double())
    assert apart(seen[0], kept.detach()) < 1e-5


@pytest.mark.parametrize("kernels", KERNELS)
def test_all_verbs_agree_with_the_torch_backend(kernels: str) -> None:
    torch.manual_seed(6)
    head = nn.Sequential(nn.Linear(5 * 2 * 3, 14), nn.BatchNorm1d(14), nn.ReLU(), nn.Linear(14, 6))
    body = [
        nn.BatchNorm2d(2),
        nn.Conv2d(2, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Identity(),
        nn.Dropout(0.0),
    ]
    module = lively(Net(*body, classifier=head))
    shape = (2, 8, 11)
    net, layout, theta = made(module, shape, kernels)
    reference = TorchNet(copy.deepcopy(module), layout, "classifier", ZERO, ONE, torch.device("cpu"))
    x, y = torch.randn(75, *shape) + 3, torch.randint(0, 6, (75,))
    z, soft = reference.features(theta, x), torch.rand(75, 6)
    for got, want in [
        (net.logits(theta, x), reference.logits(theta, x)),
        (net.features(theta, x), z),
        (net.head(theta, z), reference.head(theta, z)),
        *zip(net.head_grad(theta, z, y), reference.head_grad(theta, z, y), strict=True),
        *zip(net.head_grad(theta, z, soft), reference.head_grad(theta, z, soft), strict=True),
    ]:
        assert got.shape == want.shape
        assert apart(got, want.double()) < 1e-5
    assert abs(net.loss(theta, x, y) - reference.loss(theta, x, y)) < 1e-6
    for (n, mean, variance), (m, mean_, variance_) in zip(
        net.moments(theta, x), reference.moments(theta, x), strict=True
    ):
        assert n == m
        assert apart(mean, mean_.double()) < 1e-5
        assert apart(variance, variance_.double()) < 1e-5
    assert torch.equal(
        net.ready(torch.arange(256, dtype=torch.uint8)),
        reference.ready(torch.arange(256, dtype=torch.uint8)),
    )


def test_frozen_parameters_and_biases_before_norms_have_no_gradient() -> None:
    torch.manual_seed(7)
    module = LeNet5((1, 16, 16), 4)
    module.fc1.weight.requires_grad_(False)
    net, layout, theta = made(module, (1, 16, 16))
    gradient, _, _ = net.grad(
        theta, theta[layout.buffers], torch.randn(6, 1, 16, 16), torch.randint(0, 4, (6,))
    )
    by_name = layout.named(gradient)
    for name in ("fc1.weight", "conv1.bias", "conv2.bias", "bn1.running_mean", "bn2.running_var"):
        assert not by_name[name].any(), name
    assert all(
        by_name[name].any()
        for name in ("conv1.weight", "bn1.weight", "bn1.bias", "fc1.bias", "classifier.weight")
    )


def test_a_vector_in_any_order_works() -> None:
    torch.manual_seed(8)
    module = lively(LeNet5((1, 16, 16), 4))
    net, layout, theta = made(module, (1, 16, 16))
    sizes = [layout.view(theta, name).numel() for name in layout.names]
    order = torch.randperm(len(sizes)).tolist()
    places = torch.cat([torch.arange(layout.starts[k], layout.starts[k] + sizes[k]) for k in order])
    starts = [sum(sizes[j] for j in order[: order.index(k)]) for k in range(len(sizes))]
    masks = {
        name: getattr(layout, name)[places] for name in ("head", "body", "norm", "buffers", "trainable")
    }
    other = replace(layout, starts=tuple(starts), **masks)
    turned = NativeNet(module, other, "classifier", ZERO, ONE, (1, 16, 16))
    x, y = torch.randn(6, 1, 16, 16), torch.randint(0, 4, (6,))
    moved = theta[places]
    assert torch.equal(
        turned.grad(moved, moved[other.buffers], x, y)[0],
        net.grad(theta, theta[layout.buffers], x, y)[0][places],
    )


def test_mix_has_the_bits_of_the_mean_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(9)
    for size, count, means in ((1, 1, 1), (5, 3, 2), (62094, 11, 10), (1027, 40, 17), (133, 2100, 24)):
        rows = list(torch.randn(count, size) * 100)
        table = [
            [0.1 + 3.7 * k + m if (k + m) % 3 else 0.0 for k in range(count)] for m in range(1, means + 1)
        ]
        mixed = native.mix(rows, table)
        assert all(one.equal(*native.mix(rows, [line])) for one, line in zip(mixed, table, strict=True))
        with monkeypatch.context() as without:
            without.setattr(native, "available", lambda: False)
            assert all(map(torch.equal, mixed, weighted_means(rows, table)))
    with pytest.raises(ValueError, match="means of 0 rows"):
        native.mix([], [])
    with pytest.raises(ValueError, match=r"lines of \[2\] weights"):
        native.mix([torch.zeros(3)], [[1.0, 2.0]])


def test_a_row_that_weighs_nothing_is_not_looked_at() -> None:
    broken, whole = torch.full((9,), float("nan")), torch.ones(9)
    assert native.mix([broken, whole], [[0.0, 2.0]])[0].equal(whole)
    table = [[float(m == 3), 2.0] for m in range(9)]  # eight of them together
    for m, mean in enumerate(native.mix([broken, whole], table)):
        assert mean.isnan().all() if m == 3 else mean.equal(whole)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("where", ["input", "weight", "last"])
def test_nan_stays_nan(kernels: str, normed: bool, where: str) -> None:
    torch.manual_seed(10)
    body = [
        nn.Conv2d(1, 3, 3),
        *([nn.BatchNorm2d(3)] if normed else []),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(27, 8),
        nn.ReLU(),
    ]
    module = Net(*body, classifier=nn.Linear(8, 3))
    net, layout, theta = made(module, (1, 8, 8), kernels)
    x, y, nan = torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,)), float("nan")
    if where == "input":
        x[2, 0, 4, 4] = nan
    else:
        layout.view(theta, "body.0.weight" if where == "weight" else "classifier.bias").view(-1)[0] = nan
    reference = TorchNet(copy.deepcopy(module), layout, "classifier", ZERO, ONE, torch.device("cpu"))
    assert torch.equal(net.logits(theta, x).isnan(), reference.logits(theta, x).isnan())
    got, want = (
        net.grad(theta, theta[layout.buffers], x, y),
        reference.grad(theta, theta[layout.buffers], x, y),
    )
    assert got[2] != got[2]
    assert bool((got[0].isnan() >= want[0].isnan()).all()), "a NaN is hidden"
    assert torch.equal(got[1].isnan(), want[1].isnan())


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("size", [2, 3])
def test_a_lone_nan_wins_its_pool(kernels: str, size: int) -> None:
    module = Net(nn.MaxPool2d(size), nn.ReLU(), nn.Flatten(), classifier=nn.Linear(4, 2))
    net, _, theta = made(module, (1, 2 * size, 2 * size), kernels)
    x = torch.randn(size * size, 1, 2 * size, 2 * size)
    for k in range(size * size):
        x[k, 0, k // size, k % size] = float("nan")
    assert torch.equal(net.features(theta, x).isnan(), F.max_pool2d(x, size).flatten(1).isnan())


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.classifier = nn.Conv2d(1, 4, 3), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.classifier(F.relu(torch.flatten(x, 1)).flatten(1))


def test_functional_forms_are_known() -> None:
    torch.manual_seed(11)
    module = Functional()
    assert native.unfit(module, (1, 8, 8)) is None
    net, _, theta = made(module, (1, 8, 8))
    x = torch.randn(4, 1, 8, 8)
    assert apart(net.logits(theta, x), module(x).detach().double()) < 1e-5


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.classifier = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x * self.linear(x))


class Idle(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        self.linear(x)
        return self.classifier(x)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.linear(z + x)


class Bypass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.classifier = nn.Linear(4, 4), Joined()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.linear(x), x)


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.classifier(x))


REFUSED = [
    (Net(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), classifier=nn.Linear(32, 2)), (1, 8, 8), "dilation"),
    (
        Net(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), classifier=nn.Linear(128, 2)),
        (1, 8, 8),
        "padding",
    ),
    (
        Net(
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"),
            nn.Flatten(),
            classifier=nn.Linear(128, 2),
        ),
        (1, 8, 8),
        "padding",
    ),
    (Net(nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), classifier=nn.Linear(9, 2)), (1, 8, 8), "max pool"),
    (Net(nn.Flatten(), nn.Tanh(), classifier=nn.Linear(64, 2)), (1, 8, 8), "Tanh"),
    (Net(nn.GELU("tanh"), nn.Flatten(), classifier=nn.Linear(64, 2)), (1, 8, 8), "approximates"),
    (Net(nn.LayerNorm(8), nn.Flatten(), classifier=nn.Linear(64, 2)), (1, 8, 8), "a part of the sample"),
    (Net(nn.AdaptiveAvgPool2d(3), nn.Flatten(), classifier=nn.Linear(9, 2)), (1, 8, 8), "divide"),
    (
        Net(nn.AvgPool2d(3, ceil_mode=True), nn.Flatten(), classifier=nn.Linear(9, 2)),
        (1, 8, 8),
        "rounds up",
    ),
    (
        Net(nn.BatchNorm2d(1, affine=False), nn.Flatten(), classifier=nn.Linear(64, 2)),
        (1, 8, 8),
        "no weights",
    ),
    (
        Net(nn.BatchNorm2d(1, momentum=None), nn.Flatten(), classifier=nn.Linear(64, 2)),
        (1, 8, 8),
        "momentum",
    ),
    (Net(nn.Flatten(), classifier=nn.Linear(63, 2)), (1, 8, 8), "63 features"),
    (Net(nn.ReLU(), classifier=nn.Linear(8, 2)), (1, 8, 8), "flatten first"),
    (Scaled(), (4,), "joins tensors"),
    (Idle(), (4,), "does not depend on"),
    (Bypass(), (4,), "more than the head's input"),
    (Backwards(), (4,), "tail"),
]


@pytest.mark.parametrize(("module", "shape", "reason"), REFUSED)
def test_refusals_say_why(module: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    assert reason in (native.unfit(module, shape, "classifier") or "")


class Viewed(nn.Module):
    """Flattens each sample in one of the ways that people write."""

    def __init__(self, way: int):
        super().__init__()
        self.way, self.conv, self.classifier = way, nn.Conv2d(1, 2, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        ways = [
            lambda: z.view(z.size(0), -1),
            lambda: z.reshape(x.shape[0], 32),
            lambda: torch.reshape(z, (-1, 32)),
            lambda: z.view(-1, 32),
            lambda: z.view((z.size()[0], -1)),
            lambda: z.view(-1, 16).view(-1, 32),
        ]
        return self.classifier(ways[self.way]())


def test_views_that_flatten_each_sample_are_known() -> None:
    torch.manual_seed(13)
    for way in range(5):
        module = Viewed(way)
        net, _, theta = made(module, (1, 6, 6))
        x = torch.randn(4, 1, 6, 6)
        assert torch.allclose(net.logits(theta, x), module(x), atol=1e-6)
    assert native.unfit(Viewed(5), (1, 6, 6), "classifier") == "method 'view' does not flatten each sample"


def test_wrong_arguments_are_refused() -> None:
    module = LeNet5((1, 16, 16), 4)
    net, layout, theta = made(module, (1, 16, 16))
    x, y = torch.randn(3, 1, 16, 16), torch.tensor([0, 1, 2])
    with pytest.raises(Error, match="no 'sse9' kernels"):
        made(module, (1, 16, 16), "sse9")
    with pytest.raises(Error, match="labels reach"):
        net.grad(theta, theta[layout.buffers], x, y + 2)
    with pytest.raises(Error, match="samples have shape"):
        net.logits(theta, x[:, :, 1:])
    with pytest.raises(Error, match="entries"):
        net.logits(theta[1:], x)
    with pytest.raises(Error, match="outside"):
        net.descend(theta, theta[layout.buffers], x, y, [torch.tensor([0, 3])], 0.1, layout.trainable)
    assert net.logits(theta, x[:0]).shape == (0, 4)


def test_loading_changes_no_torch_result() -> None:
    code = """
import torch
def results():
    torch.manual_seed(0)
    x = torch.randn(8, 3, 16, 16)
    tiny = torch.full((40,), 1e-40)
    kernel = torch.randn(4, 3, 3, 3)
    return [torch.nn.functional.conv2d(x, kernel), torch.mm(x[0, 0], x[1, 0]), tiny * 0.5, tiny + tiny, x.exp().sum()]
before = results()
from pfedsim.backends import native
assert native.available()
module = torch.nn.Sequential()
module.add_module("classifier", torch.nn.Linear(4, 2))
from pfedsim.core.layout import layout_of
layout = layout_of(module)
net = native.NativeNet(module, layout, "classifier", torch.zeros(1), torch.ones(1), (4,))
net.grad(torch.randn(layout.size), torch.zeros(0), torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
assert all(torch.equal(a, b) for a, b in zip(before, results())) and float(before[2][0]) > 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 40), st.integers(0, 9))
def test_a_mean_has_the_same_bits_on_any_number_of_threads(
    rows: int, threads: int, thousands: int, more: int
) -> None:
    draw = torch.Generator().manual_seed(rows)
    held = [torch.randn(thousands * 512 + more, generator=draw) for _ in range(rows)]
    table = torch.rand(10, rows, generator=draw).tolist()
    for one, several in zip(native.mix(held, table), native.mix(held, table, threads), strict=True):
        assert one.equal(several)


@given(st.lists(st.integers(0, 120), min_size=2, max_size=8), st.booleans(), st.integers(0, 99))
def test_squares_are_sixteen_sums_in_the_order_of_entries(
    edges: list[int], from_start: bool, seed: int
) -> None:
    edges = sorted({*edges, 0, 121})
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    draw = np.random.default_rng(seed)
    row, start = draw.normal(size=(2, 121)).astype(np.float32)
    sums = [0.0] * 16
    sent = np.zeros(121, bool)
    for first, last in spans:
        sent[first:last] = True
        for at in range(first, last):
            step = row[at] - start[at] if from_start else row[at]
            sums[(at - first) % 16] += float(step) * float(step)
    wanted = 0.0
    for one in sums:
        wanted += one
    row[~sent] = np.nan
    given = torch.tensor(spans), torch.from_numpy(start) if from_start else None
    assert native.squares(torch.from_numpy(row), *given) == wanted


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_squares_are_finite_exactly_if_all_entries_are(bad: float) -> None:
    row, spans = torch.full((100,), 3e38), torch.tensor([[0, 40], [41, 100]])
    row[40] = bad
    assert 0 < native.squares(row, spans) < float("inf")
    for place in (0, 39, 41, 99):
        spoilt = row.clone()
        spoilt[place] = bad
        assert not math.isfinite(native.squares(spoilt, spans))
    with pytest.raises(ValueError, match=r"a step to \(100,\) entries"):
        native.squares(row, spans, torch.zeros(99))


@pytest.mark.parametrize("keep", [0.0, 1 / 3, 0.75, 0.999, 1.0])
@pytest.mark.parametrize("words", [0, 1, 623])  # of the twister, used before: an entry takes two of its 624
def test_dropout_draws_are_torchs_and_leave_its_generator_where_torch_would(
    keep: float, words: int
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for _ in range(words):
            torch.empty((), dtype=torch.int32).random_()
        before = torch.get_rng_state()
        expected = [torch.empty(count).bernoulli_(keep) for count in (7, 1001)]
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        masks = [torch.empty(7), torch.empty(1001)]
        native._draw(masks, [keep, keep])
        assert all(map(torch.equal, masks, expected))
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("like_torch", [True, False])
def test_where_torch_draws_in_another_way_it_draws_itself(
    monkeypatch: pytest.MonkeyPatch, like_torch: bool
) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(native, "_draws_like_torch", lambda: like_torch)
    monkeypatch.setattr(torch.Tensor, "bernoulli_", lambda mask, share: drawn.append(share))
    native._draw([torch.empty(3)], [0.5])
    assert drawn == ([] if like_torch else [0.5])
