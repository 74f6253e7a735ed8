from dataclasses import dataclass, replace

import plain
import pytest
import small
import torch
from torch.nn import functional as F

from pfedsim import Method
from pfedsim.errors import HookError
from pfedsim.methods import parse
from pfedsim.methods.apfl import APFL


def stepped(s, client, w, v, alpha):
    """Two epochs: w down f_i(w) and v down f_i(alpha v + (1 - alpha) w), at once; each pass moves its own norm
    statistics."""
    layout = s.fed.layout
    w, v = w.clone(), v.clone()
    for x, y in plain.batches(s, client) * 2:
        a, b = w.clone().requires_grad_(), v.clone().requires_grad_()
        out, of_w = plain.scores(s, a, x)
        (by_w,) = torch.autograd.grad(F.cross_entropy(out, y), a)
        mixed = (alpha * b + (1 - alpha) * w).where(layout.trainable, v)
        out, of_v = plain.scores(s, mixed, x)
        (by_v,) = torch.autograd.grad(F.cross_entropy(out, y), b)
        w = w - 0.1 * by_w.where(layout.trainable, 0)
        v = v - 0.1 * by_v.where(layout.trainable, 0)
        for name in (n for n in of_w if "running" in n):
            layout.view(w, name).copy_(of_w[name])
            layout.view(v, name).copy_(of_v[name])
    return w, v


def test_three_rounds_are_algorithm_1():
    s = plain.session(APFL(alpha=0.3, adaptive=False), rounds=3)
    w, own = s.fed.initial, [None] * 3
    for round in small.rounds(s):
        pairs = [stepped(s, i, w, w if own[i] is None else own[i], 0.3) for i in range(3)]
        models, own = [p[0] for p in pairs], [p[1] for p in pairs]
        alike, by_samples = plain.mean(models, [1.0] * 3), plain.mean(models, [20.0, 9.0, 33.0])
        w = torch.where(s.fed.layout.trainable, alike, by_samples)
        plain.close(round.state.server.model, w, 1e-4)
        for i, found in enumerate(plain.served(s, round.state)):
            mixed = (0.3 * own[i] + 0.7 * w).where(s.fed.layout.trainable, own[i])
            plain.close(found, mixed, 2e-4)


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_without_a_local_share_it_is_fedavg(buffers):
    methods = (APFL(alpha=0.0, adaptive=False), parse("fedavg(weights=uniform)"))
    ours, fedavg = (plain.session(m, rounds=3, join=0.67, buffers=buffers) for m in methods)
    (*_, a), (*_, b) = small.rounds(ours), small.rounds(fedavg)
    for x, y in zip(plain.served(ours, a.state), plain.served(fedavg, b.state), strict=True):
        trained = ours.fed.layout.trainable
        plain.close(x[trained], y[trained], 1e-6)
        if buffers == "local":
            plain.close(x, y, 1e-6)


def test_a_whole_local_share_is_training_alone_from_the_first_common_model():
    s, alone = (plain.session(m, rounds=3) for m in (APFL(alpha=1.0, adaptive=False), parse("local")))
    (*_, a), (*_, b) = small.rounds(s), small.rounds(alone)
    for x, y in zip(plain.served(s, a.state), plain.served(alone, b.state), strict=True):
        plain.close(x, y, 1e-5)


def test_alpha_moves_down_its_slope_once_a_round():
    """By autograd of the loss of a batch in alpha; a client's first round has v = w, where the slope is zero."""
    s = plain.session(APFL(alpha=0.4), rounds=2)
    first, second = small.rounds(s)
    assert [float(m.extra["alpha"]) for m in first.state.memories.values()] == pytest.approx([0.4] * 3)
    for i, memory in first.state.memories.items():
        (x, y), *_ = small.job(s, i, round=1).batches()
        alpha = torch.tensor(0.4, requires_grad=True)
        w, v = first.state.server.model, memory.extra["own"]
        out, _ = plain.scores(s, alpha * v + (1 - alpha) * w, x)
        (slope,) = torch.autograd.grad(F.cross_entropy(out, y), alpha)
        expected = 0.4 - 0.1 * float(slope)
        assert float(second.state.memories[i].extra["alpha"]) == pytest.approx(expected, abs=1e-5)
        assert expected != pytest.approx(0.4, abs=1e-5)


def test_momentum_follows_each_model_by_itself():
    """With alpha = 0 the common model's trajectory is FedAvg's, momentum and decay included."""
    words = {"rounds": 2, "momentum": 0.8, "decay": 0.01}
    methods = (APFL(alpha=0.0, adaptive=False), parse("fedavg(weights=uniform)"))
    ours, fedavg = (list(small.rounds(plain.session(m, **words)))[-1] for m in methods)
    plain.close(ours.state.server.model, fedavg.state.server.model, 1e-5)


@dataclass(frozen=True)
class Crooked(Method):
    """Starts a phase from something that is no model."""

    def phases(self, job):
        return [replace(p, start=torch.zeros(2, 5)) for p in super().phases(job)]


def test_a_phase_that_starts_from_no_model_is_named():
    s = plain.session(Crooked())
    with pytest.raises(HookError, match=r"a phase starts at shape \(2, 5\), expected models"):
        list(small.rounds(s))
