"""Graphs on the native backend, whole networks and random ones, against PyTorch in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_native import Net
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim.backends import native
from pfedsim.backends.native import NativeNet
from pfedsim.backends.torch import TorchNet
from pfedsim.core.layout import Layout, layout_of
from pfedsim.dev.networks import VGG6, PFLlibCNN, PflResearchCNN
from pfedsim.models.mobilenetv2 import MobileNetV2
from pfedsim.models.resnet20 import ResNet20
from pfedsim.models.small import CNN1d

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library was not built")
KERNELS = [name for name in ("portable", "avx2", "avx512") if native.kernel_set(name)]
ZERO, ONE = torch.zeros(1), torch.ones(1)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


class Residual(nn.Module):
    """branch(x) + shortcut(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module):
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + self.shortcut(x)


def lively(module: nn.Module) -> nn.Module:
    """The same with norm weights and statistics that are not those of a new layer."""
    for layer in module.modules():
        if isinstance(layer, NORMS) and layer.weight is not None:
            layer.weight.data.uniform_(-1.5, 1.5)
            layer.bias.data.uniform_(-0.5, 0.5)
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr, operator]
            layer.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr, operator]
    return module


def both(
    module: nn.Module, shape: tuple[int, ...], kernels: str = "auto"
) -> tuple[NativeNet, TorchNet, Layout, Tensor]:
    layout = layout_of(module)
    state = module.state_dict()
    theta = layout.flat({name: state[name] for name in layout.names}).clone()
    reference = TorchNet(copy.deepcopy(module), layout, "classifier", ZERO, ONE, torch.device("cpu"))
    return NativeNet(module, layout, "classifier", ZERO, ONE, shape, kernels), reference, layout, theta


def exact(module: nn.Module, layout: Layout, x: Tensor, y: Tensor, nudge: float = 0.0) -> Tensor:
    """The gradient in float64; `nudge` moves all weights by so much, relative to their size."""
    module = copy.deepcopy(module).double().train()
    parameters = dict(module.named_parameters())
    draw = torch.Generator().manual_seed(5)
    for p in parameters.values():
        p.data.mul_(1 + nudge * (torch.rand(p.shape, generator=draw, dtype=torch.float64) - 0.5))
    F.cross_entropy(module(x.double()), y).backward()
    state, found = module.state_dict(), list[Tensor]()
    for name in layout.names:
        p = parameters.get(name)
        found.append(torch.zeros_like(state[name]) if p is None or p.grad is None else p.grad)
    return torch.cat([g.reshape(-1) for g in found])


def apart(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-6))


WHOLE: list[tuple[type[nn.Module], tuple[int, ...]]] = [
    (PFLlibCNN, (1, 20, 20)),
    (PflResearchCNN, (3, 12, 12)),
    (VGG6, (3, 16, 16)),
    (ResNet20, (3, 16, 16)),
    (MobileNetV2, (3, 32, 32)),
    (CNN1d, (6, 30)),
]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("kind", "shape"), WHOLE)
def test_whole_networks_agree_in_every_verb(
    kind: type[nn.Module], shape: tuple[int, ...], kernels: str
) -> None:
    torch.manual_seed(1)
    module = lively(kind(shape, 5))  # type: ignore[call-arg]
    net, reference, layout, theta = both(module, shape, kernels)
    x, y = torch.randn(21, *shape), torch.randint(0, 5, (21,))
    z = reference.features(theta, x)
    for got, want in [
        (net.logits(theta, x), reference.logits(theta, x)),
        (net.features(theta, x), z),
        (net.head(theta, z), reference.head(theta, z)),
        *zip(net.head_grad(theta, z, y), reference.head_grad(theta, z, y), strict=True),
    ]:
        assert got.shape == want.shape
        assert apart(got, want) < 1e-4
    for (n, mean, variance), (m, mean_, variance_) in zip(
        net.moments(theta, x), reference.moments(theta, x), strict=True
    ):
        assert n == m
        assert apart(mean, mean_) < 1e-4
        assert apart(variance, variance_) < 1e-4
    torch.manual_seed(2)
    gradient, statistics, loss = net.grad(theta, theta[layout.buffers], x, y)
    torch.manual_seed(2)
    _, statistics_, loss_ = reference.grad(theta, theta[layout.buffers], x, y)
    assert abs(loss - loss_) < 1e-4 * (1 + abs(loss_))
    assert not len(statistics) or apart(statistics, statistics_) < 1e-4
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_same_dropout_as_torch(kernels: str) -> None:
    torch.manual_seed(3)
    net, reference, layout, theta = both(PflResearchCNN((3, 12, 12), 5), (3, 12, 12), kernels)
    x, y = torch.randn(20, 3, 12, 12), torch.randint(0, 5, (20,))
    steps, found = list(torch.randperm(20).split(7)), []
    for backend in (net, reference):
        torch.manual_seed(4)
        found.append(backend.descend(theta, theta[layout.buffers], x, y, steps, 0.1, layout.trainable, 0.9))
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-5)
    assert apart(found[0][0], found[1][0]) < 1e-5


def test_masks_of_dropout_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    net, _, layout, theta = both(PflResearchCNN((3, 12, 12), 5), (3, 12, 12))
    x, y = torch.randn(20, 3, 12, 12), torch.randint(0, 5, (20,))
    steps, found = list(torch.randperm(20).split(3)), []
    for most in (1 << 22, 1):
        monkeypatch.setattr(native, "_ENTRIES", most)
        torch.manual_seed(6)
        found.append(net.descend(theta, theta[layout.buffers], x, y, steps, 0.1, layout.trainable, 0.9))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][2] == found[1][2]


ACTS = (nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """A random graph and the shape of its samples."""
    shape = draw(st.integers(1, 6)), draw(st.integers(5, 12)), draw(st.integers(5, 12))
    body, channels = list[nn.Module](), shape[0]
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "depth", "grouped", "residual", "pool", "mean", "act"]))
        sides = _after(body, shape)[1:]
        out = draw(st.integers(1, 20))
        if kind in ("conv", "depth", "grouped"):
            groups = channels if kind == "depth" else 1
            if kind == "grouped" and channels % 2 == 0:
                groups, out = 2, 2 * out
            kernel = draw(st.integers(1, min(5, *sides))), draw(st.integers(1, min(5, *sides)))
            pad = draw(st.integers(0, kernel[0] - 1)), draw(st.integers(0, kernel[1] - 1))
            stride, out = (
                (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
                channels if groups > 2 else out,
            )
            out = channels if kind == "depth" else out
            body.append(
                nn.Conv2d(channels, out, kernel, stride, pad, groups=groups, bias=draw(st.booleans()))
            )
            channels = out
            body += draw(st.sampled_from([[], [nn.BatchNorm2d(channels)], [nn.GroupNorm(1, channels)]]))
        elif kind == "residual":
            branch = [
                nn.Conv2d(channels, out, 1),
                draw(st.sampled_from(ACTS))(),
                nn.Conv2d(out, channels, 3, 1, 1),
            ]
            norm = [nn.BatchNorm2d(channels)] if draw(st.booleans()) else []
            shortcut = draw(st.sampled_from([nn.Identity, lambda c=channels: nn.Conv2d(c, c, 1)]))()
            body.append(Residual(nn.Sequential(*branch, *norm), shortcut))
        elif kind == "pool":
            k = draw(st.integers(1, min(3, *sides)))
            body.append(nn.MaxPool2d(k, draw(st.integers(1, 3)), draw(st.integers(0, k // 2))))
        elif kind == "mean":
            k = draw(st.integers(1, min(3, *sides)))
            count = draw(st.booleans())
            body.append(nn.AvgPool2d(k, draw(st.integers(1, 3)), k // 2, count_include_pad=count))
        if draw(st.booleans()):
            body.append(draw(st.sampled_from(ACTS))())
    if draw(st.booleans()):
        body.append(nn.AdaptiveAvgPool2d(1))
    body.append(nn.Flatten())
    features = _after(body, shape)[0]
    body += [nn.LayerNorm(features)] if draw(st.booleans()) and features > 1 else []
    return Net(*body, classifier=nn.Linear(features, 4)), shape


def _after(body: list[nn.Module], shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(nn.Sequential(*body).eval()(torch.zeros(2, *shape)).shape[1:])


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(4, 40), st.sampled_from(KERNELS), st.integers(0, 2**31))
def test_any_graph_matches_float64(
    graph: tuple[nn.Module, tuple[int, ...]], batch: int, kernels: str, seed: int
) -> None:
    module, shape = graph
    torch.manual_seed(seed)
    for p in module.parameters():
        p.data.normal_(0, p[0].numel() ** -0.5)
    lively(module)
    net, reference, layout, theta = both(module, shape, kernels)
    x, y = torch.randn(batch, *shape), torch.randint(0, 4, (batch,))
    want = copy.deepcopy(module).double().eval()(x.double()).detach()
    usual = apart(reference.logits(theta, x), want)
    assert apart(net.logits(theta, x), want) < max(1e-5, 4 * usual)
    want = exact(module, layout, x, y)
    got, _, _ = net.grad(theta, theta[layout.buffers], x, y)
    usual = apart(reference.grad(theta, theta[layout.buffers], x, y)[0], want)
    shaken = apart(exact(module, layout, x, y, 1e-6), want)  # large where a kink or a tie is near
    assume(shaken < 1e-4)
    assert apart(got, want) < max(2e-5, 4 * usual, 4 * shaken)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("batch", [1, 2, 7, 10, 16, 33, 64])
def test_every_batch_size(kernels: str, batch: int) -> None:
    torch.manual_seed(7)
    body = [
        nn.Conv2d(3, 9, 5, padding=2),
        nn.SiLU(),
        nn.Conv2d(9, 9, 3, 2, 1, groups=9),
        nn.SiLU(),
        nn.Conv2d(9, 17, 1),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
    ]
    module = Net(*body, classifier=nn.Linear(17 * 9, 4))
    net, _, layout, theta = both(module, (3, 12, 12), kernels)
    x, y = torch.randn(batch, 3, 12, 12), torch.randint(0, 4, (batch,))
    got, _, _ = net.grad(theta, theta[layout.buffers], x, y)
    assert apart(got, exact(module, layout, x, y)) < 1e-5
    assert torch.equal(net.logits(theta, x)[:1], net.logits(theta, x[:1]))


def test_frozen_branches_need_no_gradient() -> None:
    torch.manual_seed(8)
    inner = nn.Conv2d(4, 4, 3, padding=1)
    module = Net(
        nn.Conv2d(2, 4, 3), Residual(inner, nn.Identity()), nn.Flatten(), classifier=nn.Linear(64, 3)
    )
    inner.weight.requires_grad_(False)
    net, reference, layout, theta = both(module, (2, 6, 6))
    x, y = torch.randn(9, 2, 6, 6), torch.randint(0, 3, (9,))
    assert (
        apart(
            net.grad(theta, theta[layout.buffers], x, y)[0],
            reference.grad(theta, theta[layout.buffers], x, y)[0],
        )
        < 1e-5
    )
    moves = layout.trainable & layout.head
    steps = [torch.arange(9)] * 2
    got = net.descend(theta, theta[layout.buffers], x, y, steps, 0.1, moves)[0]
    want = reference.descend(theta, theta[layout.buffers], x, y, steps, 0.1, moves)[0]
    assert torch.equal(got[~moves], theta[~moves])
    assert apart(got, want) < 1e-6


def test_the_work_space_is_told() -> None:
    net, _, _, _ = both(MobileNetV2((3, 32, 32), 5), (3, 32, 32))
    assert 0 < net.space(16, training=False) < net.space(16) < net.space(32)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("act", [None, *ACTS])
@pytest.mark.parametrize("normed", [True, False])
def test_a_stage_joined_to_its_convolution_has_the_bits_of_one_apart(
    act: type[nn.Module] | None, normed: bool, kernels: str
) -> None:
    torch.manual_seed(9)
    norm = [nn.BatchNorm2d(11)] if normed else []
    stage = [*norm, *([act()] if act else [])]
    joined = lively(Net(nn.Conv2d(3, 11, 3), *stage, nn.Flatten(), classifier=nn.Linear(11 * 36, 4)))
    nothing = nn.Conv2d(11, 11, 1, bias=False)  # a second reader of the convolution keeps the stage apart
    nothing.weight.data.zero_()
    branches = Residual(nn.Sequential(*stage), nothing)
    separate = Net(joined.body[0], branches, nn.Flatten(), classifier=joined.classifier)  # type: ignore[index]
    x = 4 * torch.randn(9, 3, 8, 8)
    x[3, 0, 2, 2] = float("nan")
    found = [both(module, (3, 8, 8), kernels) for module in (joined, separate)]
    a, b = (net.features(theta, x) for net, _, _, theta in found)
    assert torch.equal(a.nan_to_num(1e9), b.nan_to_num(1e9))
