from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small
import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
