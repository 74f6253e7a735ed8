from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small
import torch
from devices import GPU, NoMixing
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim.backends.torch import TorchNet
from pfedsim.core.job import Batch
from pfedsim.core.layout import Layout, layout_of
from pfedsim.core.method import Phase


@pytest.fixture
def lenet(digits: Any) -> tuple[Any, Any, Tensor]:
    """A run of LeNet5 on digits, its backend, and a vector away from the initial one."""
    s = small.session(federation=digits, model="lenet5", batch=32)
    theta = s.fed.initial + 0.05 * torch.rand(s.fed.layout.size, generator=torch.Generator().manual_seed(0))
    return s, s.fed.net, theta


def test_eval_verbs_use_the_statistics_inside_the_vector(lenet: Any) -> None:
    s, net, theta = lenet
    x, y = small.normal(s, 2)
    module = small.module(s, theta).eval()
    features: list[Tensor] = []
    module.classifier.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        logits = module(x)
    torch.testing.assert_close(net.logits(theta, x), logits, rtol=1e-5, atol=1e-5)
    z = net.features(theta, x)
    torch.testing.assert_close(z, features[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.head(theta, z), logits, rtol=1e-5, atol=1e-5)
    assert net.loss(theta, x, y) == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)


def test_eval_leaves_the_vector_alone_and_does_not_depend_on_what_ran_before(lenet: Any) -> None:
    s, net, theta = lenet
    x, y = small.normal(s, 1)
    before, first = theta.clone(), net.logits(theta, x)
    net.grad(s.fed.initial, s.fed.initial[s.fed.layout.buffers], x, y)
    assert net.logits(theta, x).equal(first)
    assert theta.equal(before)


def test_gradients_do_not_pile_up_and_results_are_not_shared(lenet: Any) -> None:
    s, net, theta = lenet
    x, y = small.normal(s, 1)
    statistics = theta[s.fed.layout.buffers]
    first, moved, loss = net.grad(theta, statistics, x, y)
    copies = first.clone(), moved.clone()
    net.head_grad(theta, torch.randn(3, 84), torch.tensor([0, 1, 2]))
    again = net.grad(theta, statistics, x, y)
    assert first.equal(copies[0])
    assert moved.equal(copies[1])
    assert again[0].equal(first)
    assert again[1].equal(moved)
    assert again[2] == loss
    assert (first[~s.fed.layout.trainable] == 0).all()


def test_the_heads_gradient_is_torchs(lenet: Any) -> None:
    s, net, theta = lenet
    z = torch.randn(7, 84, generator=torch.Generator().manual_seed(1), requires_grad=True)
    y = torch.arange(7)
    head = small.module(s, theta).classifier
    F.cross_entropy(head(z), y).backward()
    by_theta, by_z = net.head_grad(theta, z, y)
    torch.testing.assert_close(by_z, z.grad)
    torch.testing.assert_close(s.fed.layout.view(by_theta, "classifier.weight"), head.weight.grad)
    assert (by_theta[~s.fed.layout.head] == 0).all()


def test_bytes_become_zero_to_one_and_then_the_sets_mean_and_deviation(lenet: Any) -> None:
    s, net, _ = lenet
    raw = s.federation.data.x[:5]
    expected = (raw / 255 - s.federation.data.mean[0]) / s.federation.data.std[0]
    np.testing.assert_allclose(net.ready(torch.from_numpy(raw)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_moments_at_the_norm_layers_inputs_over_more_than_one_chunk(
    digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfedsim.backends.torch.CHUNK", 50)
    s = small.session(federation=digits, model="lenet5", batch=32)
    net: Any = s.fed.net
    x, _ = small.normal(s, 2)
    module = small.module(s).eval()
    seen: dict[nn.Module, Tensor] = {}
    for layer in (module.bn1, module.bn2):
        layer.register_forward_pre_hook(
            lambda layer, inputs: seen.update({layer: inputs[0].detach().double()})
        )
    module(x)
    for layer, (count, mean, variance) in zip(
        (module.bn1, module.bn2), net.moments(s.fed.initial, x), strict=True
    ):
        values = seen[layer].transpose(0, 1).flatten(1)
        assert count == values.shape[1]
        torch.testing.assert_close(mean.double(), values.mean(1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(variance.double(), values.var(1, correction=0), rtol=1e-4, atol=1e-5)


# a phase in one call, and other devices


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("mask", ["trainable", "head", "half"])
def test_a_phase_in_one_call_has_the_bits_of_its_steps(mask: str, momentum: float, decay: float) -> None:
    s = small.session(federation=small.table(train=(40, 9)), model="small:Dropping")
    net, layout = s.worker.net, s.fed.layout
    half = layout.trainable & (torch.arange(layout.size) % 2 == 0)
    moves = half if mask == "half" else getattr(layout, mask) & layout.trainable
    job = small.job(s)
    x, y = job.part("train")
    steps = [torch.arange(8), torch.tensor([9, 3, 30, 12]), torch.arange(20, 33)]
    start = s.fed.initial[layout.buffers]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        found, found_statistics, losses = net.descend(
            s.fed.initial, start, x, y, steps, 0.1, moves, momentum, decay
        )
        torch.manual_seed(5)
        theta, statistics, velocity = s.fed.initial.clone(), start, torch.zeros(layout.size)
        for number, numbers in enumerate(steps):
            step, statistics, loss = net.grad(theta, statistics, x[numbers], y[numbers])
            assert loss == losses[number]
            step = step + decay * theta if decay else step
            velocity = step if number == 0 else momentum * velocity + step
            theta = theta - 0.1 * torch.where(moves, velocity, torch.zeros(()))
    assert found[layout.trainable].equal(theta[layout.trainable])
    assert found_statistics.equal(statistics)
    assert found[layout.buffers].equal(statistics)


@given(st.integers(0, 2**32 - 1), st.floats(1e-8, 10.0), st.booleans())
def test_a_large_tensor_moves_to_the_same_bits(seed: int, lr: float, built: bool) -> None:
    from pfedsim.backends import native
    from pfedsim.backends.torch import SMALL, _move

    draw = torch.Generator().manual_seed(seed)
    values, step = (torch.randn(3, SMALL - 5, generator=draw) for _ in range(2))
    expected = values - lr * step
    with pytest.MonkeyPatch.context() as patch:
        if not built:
            patch.setattr(native, "available", lambda: False)
        _move(values, step, lr)
    assert values.equal(expected)


@pytest.fixture
def on_gpu() -> tuple[TorchNet, Layout]:
    module = small.Dropping((6,), 3)
    layout = layout_of(module, "classifier")
    return TorchNet(module, layout, "classifier", torch.zeros(6), torch.ones(6), GPU), layout


def test_every_verb_stays_on_its_device(on_gpu: tuple[TorchNet, Layout]) -> None:
    net, layout = on_gpu
    theta, statistics = torch.zeros(layout.size, device=GPU), torch.zeros(16, device=GPU)
    moves, y = layout.trainable.to(GPU), torch.zeros(16, dtype=torch.int64, device=GPU)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    with NoMixing():
        x = net.ready(torch.zeros(16, 6))
        with pytest.raises(RuntimeError, match="index_select was given tensors on"):
            x.index_select(0, order)  # what CUDA refuses
        for steps in (order.split(8), torch.arange(16).split(8)):
            found, *_ = net.descend(theta, statistics, x, y, steps, 0.1, moves, 0.9, 0.1)
            assert found.device == GPU
        assert net.grad(theta, statistics, x, y)[0].device == GPU
        assert net.logits(theta, x).device == net.features(theta, x).device == GPU
        assert net.loss(theta, x, y) == 1.0
        assert net.head(theta, torch.zeros(4, 8)).device.type == "cpu"
        assert [m.device for m in net.head_grad(theta, torch.zeros(4, 8), torch.zeros(4).long())] == [
            torch.device("cpu")
        ] * 2


def test_shuffled_batches_are_gathered_where_the_samples_are(on_gpu: tuple[TorchNet, Layout]) -> None:
    s = small.session(shuffle=True)
    job = small.job(s)
    job._net = on_gpu[0]
    job._parts["train"] = Batch(torch.zeros(20, 6, device=GPU), torch.zeros(20, device=GPU))
    with NoMixing():
        for (numbers,) in job.passes(Phase(s.fed.layout.trainable, 2, 0.1)):
            batch = job.batch(numbers)
            assert batch.x.device == batch.y.device == GPU
        assert all(batch.x.device == GPU for batch in job.batches(0.5))
