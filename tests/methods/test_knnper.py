from dataclasses import dataclass, replace

import numpy as np
import plain
import pytest
import small
import torch

import pfedsim
from pfedsim import Method, StartingPoint
from pfedsim.errors import Error, HookError
from pfedsim.export.write import export
from pfedsim.methods import parse
from pfedsim.methods.knnper import KNNPer


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize(("k", "lam", "scale"), [(3, 0.4, 1.0), (50, 1.0, 0.2), (1, 0.7, 2.0)])
def test_the_mixture_is_equation_8(k, lam, scale):
    """Sample by sample, label by label, in NumPy; 50 neighbours are more than a client has."""
    s = plain.session(KNNPer(k=k, lam=lam, scale=scale), rounds=1)
    job = small.job(s, client=1)
    x = small.normal(s, 2)[0][:7]
    z, keys = (job.features(s.fed.initial, part).numpy().astype(float) for part in (x, job.part("train").x))
    own, labels = softmax(job.logits(s.fed.initial, x).numpy().astype(float)), job.labels.numpy()
    found = s.method.mixed(job, s.fed.initial, x).exp().numpy()
    for n in range(7):
        squares = [sum((z[n] - key) ** 2) for key in keys]
        vote = np.zeros(3)
        for m in np.argsort(squares)[:k]:
            vote[labels[m]] += np.exp(-squares[m] / (z.shape[1] * scale))
        expected = lam * vote / vote.sum() + (1 - lam) * own[n]
        np.testing.assert_allclose(found[n], expected, rtol=1e-4, atol=1e-6)


def test_a_vote_by_hand():
    """Keys at 0, 1 and 2 with labels 0, 1 and 1, a sample at 0: squares 0, 1 and 4; two neighbours, one feature."""
    keys, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1, 1])
    vote = KNNPer(k=2).vote(torch.zeros(1, 1), keys, labels, 3)
    e = float(np.exp(-1))
    torch.testing.assert_close(vote, torch.tensor([[1 / (1 + e), e / (1 + e), 0.0]]))


def test_far_neighbours_still_vote():
    """Kernels that underflow: the nearest decides."""
    keys, labels = torch.tensor([[100.0], [200.0]]), torch.tensor([2, 1])
    vote = KNNPer(k=2).vote(torch.zeros(1, 1), keys, labels, 3)
    torch.testing.assert_close(vote, torch.tensor([[0.0, 0.0, 1.0]]))


def test_scores_are_those_of_the_mixture_and_rounds_are_fedavgs():
    """Both scores: as served, and after local epochs with the tuned model's features."""
    s = plain.session(KNNPer(k=4), rounds=2)
    (*_, last), (*_, fedavg) = small.rounds(s), small.rounds(plain.session(None, rounds=2))
    assert last.state.server.model.equal(fedavg.state.server.model)
    for epochs in (0, 3):
        for one in small.score(s, last.state, finetune=epochs, models=True).clients:
            x, y = small.normal(s, one.client, "test")
            job = small.job(s, one.client, memory=last.state.memories[one.client])
            expected = s.method.mixed(job, one.model, x)
            right = int((expected.argmax(1) == y).sum())
            assert one.metrics["accuracy"] == right / len(y)
            loss = torch.nn.functional.nll_loss(expected, y)
            assert one.metrics["loss"] == pytest.approx(float(loss), rel=1e-4)


def test_without_a_vote_it_is_fedavg():
    ours, fedavg = plain.session(parse("knnper(lam=0)")), plain.session(None)
    (a, b) = (small.score(s, list(small.rounds(s))[-1].state).mean("loss") for s in (ours, fedavg))
    assert a == pytest.approx(b, rel=1e-5)


@dataclass(frozen=True)
class Silent(Method):
    """Predicts in its own way and does not say so."""

    def begin(self, job):
        return StartingPoint(super().begin(job).theta, predict=lambda theta, x: job.logits(theta, x))


@dataclass(frozen=True)
class Wrong(Silent):
    beside = "nothing, it is wrong"

    def begin(self, job):
        return replace(super().begin(job), predict=lambda theta, x: job.logits(theta, x)[:, :2])


@pytest.mark.parametrize(
    ("method", "why"),
    [(Silent(), "must say in `beside`"), (Wrong(), r"gave shape \(10, 2\), expected \(10, 3\)")],
)
def test_what_predicts_wrongly_is_named(method, why):
    s = plain.session(method)
    with pytest.raises(HookError, match=why):
        small.score(s, s.begin())


def test_a_network_that_is_not_all_is_not_exported(tmp_path):
    words = {"rounds": 1, "model": "small:Net", "backend": "torch", "epochs": 1}
    run = pfedsim.train(small.table(), "knnper", tmp_path / "run", **words)
    with pytest.raises(
        Error, match="cannot be exported: its predictions look up the client's train samples"
    ):
        export(run, 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()
