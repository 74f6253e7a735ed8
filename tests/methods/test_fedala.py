import plain
import pytest
import small
import torch
from torch.nn import functional as F

from pfedsim.core.job import Batch
from pfedsim.core.method import Memory
from pfedsim.methods.fedala import MOST, FedALA


def job_with(s, own, weights=None, client=0):
    """A job whose client has an own classifier, and a common model at some distance."""
    extra = {"own": own} if weights is None else {"own": own, "weights": weights}
    job = small.job(s, client, round=3, memory=Memory(None, extra))
    return job


def grad(s, theta, x, y):
    at = theta.clone().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(plain.scores(s, at, x)[0], y), at)[0]


@pytest.mark.parametrize("part", ["head", "all"])
def test_weights_are_learnt_by_equations_5_and_6(part):
    """One pass over all samples, batch by batch in the order that was drawn; clipped to 0 and 1."""
    s = plain.session(FedALA(part=part, eta=4.0, share=1.0))
    where = s.fed.layout.head if part == "head" else s.fed.layout.trainable
    draw = torch.Generator().manual_seed(9)
    own = s.fed.initial[where] + 0.5 * torch.randn(int(where.sum()), generator=draw)
    weights = torch.rand(len(own), generator=draw)
    order = small.job(s, 0, round=3).batches(1.0)
    expected, theta = weights.clone(), s.fed.initial.clone()
    for x, y in order:
        theta[where] = own + (s.fed.initial[where] - own) * expected
        slope = grad(s, theta, x, y)[where] * (s.fed.initial[where] - own)
        expected = (expected - 4.0 * slope).clamp(0, 1)
    start = s.method.begin(job_with(s, own, weights))
    torch.testing.assert_close(start.notes["weights"], expected, rtol=1e-3, atol=1e-4)
    assert 0 < int((expected == 0).sum() + (expected == 1).sum()) < len(expected)
    mixed = own + (s.fed.initial[where] - own) * expected
    torch.testing.assert_close(start.theta[where], mixed, rtol=1e-3, atol=1e-4)
    assert start.theta[~where].equal(s.fed.initial[~where])  # lower layers are the common ones


@pytest.mark.parametrize(("threshold", "passes"), [(1e9, 11), (1e-9, MOST)])
def test_the_first_learning_goes_on_until_the_losses_settle(threshold, passes, monkeypatch):
    """At least eleven passes; a limit where they never settle."""
    s = plain.session(FedALA(threshold=threshold, share=0.5))
    own = s.fed.initial[s.fed.layout.head] + 1.0
    job, asked = job_with(s, own), []
    monkeypatch.setattr(
        job, "batches", lambda share: asked.append(share) or [Batch(*plain.batches(s, 0)[0])]
    )
    s.method.begin(job)
    assert asked == [0.5] * passes


def test_a_client_without_an_own_model_takes_the_common_one_and_then_remembers_its_head():
    s = plain.session(FedALA(), rounds=2)
    first, second = small.rounds(s)
    fedavg = next(small.rounds(plain.session(None, rounds=2)))
    assert first.state.server.model.equal(fedavg.state.server.model)
    size = int(s.fed.layout.head.sum())
    assert {k: v.shape for k, v in first.state.memories[0].extra.items()} == {"own": (size,)}
    assert first.state.memories[0].extra["own"].equal(first.replies[0].model[s.fed.layout.head])
    weights = second.state.memories[0].extra["weights"]
    assert weights.shape == (size,)
    assert ((weights >= 0) & (weights <= 1)).all()


def test_weights_that_learn_nothing_take_the_common_model():
    """eta = 0 leaves all weights at one: FedAvg, but for rounding in own + (common - own)."""
    ours, fedavg = (list(small.rounds(plain.session(m, rounds=3))) for m in (FedALA(eta=0.0), None))
    plain.close(ours[-1].state.server.model, fedavg[-1].state.server.model, 1e-4)
