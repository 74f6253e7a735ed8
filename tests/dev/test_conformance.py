"""Every registered method passes every public check, and each check can fail."""

import warnings
from dataclasses import dataclass, replace

import pytest
import torch

from pfedsim import Method
from pfedsim.dev.conformance import CHECKS, check
from pfedsim.errors import Notice
from pfedsim.methods import METHODS, parse
from pfedsim.runs.setup import one_thread


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rule", CHECKS)
def test_every_method(name, rule):
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", Notice)  # one client a round is one of the cases
        CHECKS[rule](parse(name))


@dataclass(frozen=True)
class ChangesItsInput(Method):
    def gradient(self, job, theta, batches):
        theta.mul_(0.5)
        return job.grad(theta, batches[0])


@dataclass(frozen=True)
class DrawsGlobally(Method):
    def gradient(self, job, theta, batches):
        return job.grad(theta, batches[0]) + 1e-4 * torch.randn_like(theta)


_calls = []


@dataclass(frozen=True)
class Remembers(Method):
    """State outside the state."""

    def gradient(self, job, theta, batches):
        _calls.append(1)
        return job.grad(theta, batches[0]) * (1 + 1e-3 * len(_calls))


@dataclass(frozen=True)
class LeaksTheHead(Method):
    def keeps(self, layout):
        return layout.head

    def finish(self, job, ends):
        return job.reply(ends[-1], head=ends[-1][job.fed.layout.head].clone()), job.remember(ends[-1])

    def replies(self, fed, message):
        return {"model": (fed.layout.size,), "head": (int(fed.layout.head.sum()),)}


@dataclass(frozen=True)
class ForgetsMine(Method):
    def begin(self, job):
        return replace(super().begin(job), theta=job.message.model)


@dataclass(frozen=True)
class NeedsFullBatches(Method):
    def gradient(self, job, theta, batches):
        assert len(batches[0].y) == job.fed.settings.batch
        return job.grad(theta, batches[0])


@dataclass(frozen=True)
class Undeclared(Method):
    def finish(self, job, ends):
        return job.reply(ends[-1], secret=ends[-1].mean()), job.remember(ends[-1])


@dataclass(frozen=True)
class Freezes(Method):
    """Knows plain SGD only."""

    def gradient(self, job, theta, batches):
        assert job.fed.settings.optimiser is None, "only for plain SGD"
        return job.grad(theta, batches[0])


@dataclass(frozen=True)
class LooksAtPartsOnly(Method):
    """Trains on the stored samples, whatever batch it is given."""

    def gradient(self, job, theta, batches):
        return job.grad(theta, job.part("train"))


@dataclass(frozen=True)
class SumsStatistics(Method):
    """Keeps statistics at the clients by hand, and sends what it has not got."""

    def aggregate(self, fed, server, task, replies, rng):
        model = self.mean(fed, server, replies)
        variances = model[fed.layout.buffers].clamp(max=0)  # stands for a sum that goes wrong
        return replace(server, model=model.masked_scatter(fed.layout.buffers, variances.sqrt().log()))


@dataclass(frozen=True)
class TunesAnother(Method):
    """Serves a model that depends on draws outside its own streams."""

    def begin(self, job):
        start = super().begin(job)
        _calls.append(1)
        return replace(start, theta=start.theta + 1e-3 * len(_calls))


@dataclass(frozen=True)
class HidesItsLoss(Method):
    def loss(self, job, net, batch):
        return net(batch.x).square().mean()

    def gradient(self, job, theta, batches):
        return job.grad(theta, batches[0])


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (ChangesItsInput, "hooks are pure"),
        (DrawsGlobally, "hooks are pure"),
        (Remembers, "same seed same bits"),
        (Remembers, "others are undisturbed"),
        (LeaksTheHead, "what is kept stays"),
        (ForgetsMine, "absent clients can be scored"),
        (NeedsFullBatches, "small federations work"),
        (Undeclared, "same seed same bits"),
        (Remembers, "state survives files"),
        (Freezes, "any optimiser works"),
        (LooksAtPartsOnly, "augmented images reach training"),
        (SumsStatistics, "norm statistics may be shared"),
        (TunesAnother, "the second score tunes what is served"),
        (HidesItsLoss, "what it declares is used"),
    ],
)
def test_a_check_fails_the_method_that_it_is_for(method, rule):
    failed = {result.name for result in check(method()) if result.why}
    assert rule in failed
