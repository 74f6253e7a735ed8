from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from pfedsim.core.client import run_client, run_to_score, train
from pfedsim.core.job import Batch, Job, Work
from pfedsim.core.method import Memory, Message, Method, Phase, Reply, StartingPoint
from pfedsim.errors import HookError
from pfedsim.runs.setup import Session


def work(
    s: Session,
    client: int = 0,
    round: int = 0,
    task: str = "train",
    model: Tensor | None = None,
) -> Work:
    return Work(client, round, Message(task, s.fed.initial if model is None else model), task)


def trained(
    s: Session,
    client: int = 0,
    phases: Sequence[Phase] | None = None,
    round: int = 0,
    method: Method | None = None,
) -> list[Tensor]:
    """`train` alone, from the initial model."""
    job = small.job(s, client, round)
    job.start = StartingPoint(s.fed.initial)
    if phases is None:
        phases = [Phase(s.fed.layout.trainable, s.fed.settings.epochs, s.fed.settings.lr)]
    return train(method or s.method, job, phases)


@dataclass(frozen=True)
class Stepwise(Method):
    """Plain steps by a gradient of its own, so that no backend runs a whole phase in one call."""

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        return job.grad(theta, batches[0])


BOTH = (Method(), Stepwise())
on_both_paths = pytest.mark.parametrize("method", BOTH, ids=["at once", "stepwise"])


def by_torch(
    s: Session, client: int, epochs: int, lr: float, momentum: float = 0.0, decay: float = 0.0
) -> Tensor:
    """A plain torch loop over slices of the stored order; a batch of one is skipped."""
    module = small.module(s).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
    x, y = small.normal(s, client)
    size = s.fed.settings.batch
    for _ in range(epochs):
        for k in range(0, len(y), size):
            if len(y[k : k + size]) > 1:
                optimiser.zero_grad()
                F.cross_entropy(module(x[k : k + size]), y[k : k + size]).backward()
                optimiser.step()
    return small.flat(s, module)


@given(
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from([4, 8, 32]),
    st.floats(0.001, 0.1),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from(BOTH),
)
def test_training_is_torchs_sgd_over_slices_of_the_stored_order(
    client: int, epochs: int, batch: int, lr: float, momentum: float, decay: float, method: Method
) -> None:
    s = small.session(epochs=epochs, batch=batch, lr=lr, momentum=momentum, decay=decay)
    torch.testing.assert_close(
        trained(s, client, method=method)[-1],
        by_torch(s, client, epochs, lr, momentum, decay),
        rtol=1e-5,
        atol=1e-5,
    )


def test_lenet5_on_digits_trains_as_torch_does(digits: Any) -> None:
    s = small.session(federation=digits, model="lenet5", batch=32, lr=0.01, momentum=0.5, decay=0.001)
    torch.testing.assert_close(trained(s, 1)[-1], by_torch(s, 1, 1, 0.01, 0.5, 0.001), rtol=1e-5, atol=1e-5)


def test_a_batch_of_one_is_skipped() -> None:
    s = small.session()  # client 1 has 9 samples, client 2 has 33; batches of 8
    for client, steps in ((0, 3), (1, 1), (2, 4), (3, 1)):
        job = small.job(s, client)
        job.start = StartingPoint(s.fed.initial)
        train(s.method, job, [Phase(s.fed.layout.trainable, 1, 0.1)])
        assert job.steps == steps


def test_a_client_with_one_sample_comes_back_as_it_went() -> None:
    s = small.session(federation=small.table(train=(1, 20)))
    reply, _ = run_client(s.worker, work(s), Memory())
    sent = ~s.side.wire.kept
    assert reply.model is not None
    assert reply.model[sent].equal(s.fed.initial[sent])


def test_local_steps_replace_epochs() -> None:
    s = small.session(local_steps=7, epochs=3)  # 3 steps an epoch: two epochs and a step
    job = small.job(s)
    job.start = StartingPoint(s.fed.initial)
    end = train(s.method, job, [Phase(s.fed.layout.trainable, 3, 0.1)])[-1]
    assert job.steps == 7
    one = small.session(local_steps=6, epochs=3)
    two = small.session(epochs=2)
    assert trained(one)[-1].equal(trained(two)[-1])
    assert not end.equal(trained(two)[-1])


def test_a_shuffled_batch_is_not_a_slice() -> None:
    """Its first and last sample may lie as far apart as those of a slice."""
    numbers = torch.tensor([0, 5, 2, 3])
    job = small.job(small.session(shuffle=True))
    assert job.batch(numbers).x.equal(job.part("train").x[numbers])
    assert job.batch(numbers).y.equal(job.labels[numbers])


def test_local_steps_are_shared_among_the_phases_as_their_epochs_are() -> None:
    s = small.session(local_steps=8, epochs=4)
    job = small.job(s)
    job.start = StartingPoint(s.fed.initial)
    taken = []
    for epochs in (3, 1):
        before = job.steps
        train(s.method, job, [Phase(s.fed.layout.trainable, epochs, 0.1)])
        taken.append(job.steps - before)
    assert taken == [6, 2]


@on_both_paths
def test_what_is_frozen_stays_whatever_a_phase_asks_for(method: Method) -> None:
    """Weight decay would move it, though its gradient is zero."""
    s = small.session(decay=0.1)
    frozen = s.fed.layout.head
    layout = replace(s.fed.layout, trainable=s.fed.layout.trainable & ~frozen)
    job = small.job(s)
    job.fed, job.start = replace(s.fed, layout=layout), StartingPoint(s.fed.initial)
    end = train(method, job, [Phase(torch.ones_like(frozen), 1, 0.1)])[-1]
    assert end[frozen].equal(s.fed.initial[frozen])
    assert not end[layout.trainable].equal(s.fed.initial[layout.trainable])


@on_both_paths
def test_a_replys_loss_is_the_mean_over_all_steps(method: Method) -> None:
    s = small.session()
    job = small.job(s)
    job.start = StartingPoint(s.fed.initial)
    end = train(method, job, [Phase(s.fed.layout.trainable, 2, 0.1)])[-1]
    module, losses = small.module(s).train(), []
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = small.normal(s, 0)
    for k in (0, 8, 16) * 2:
        loss = F.cross_entropy(module(x[k : k + 8]), y[k : k + 8])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert job.reply(end).info["loss"] == pytest.approx(sum(losses) / 6, rel=1e-5)


@pytest.mark.parametrize(("round", "rate"), [(0, 0.2), (3, 0.2 * 0.5**3)])
def test_the_learning_rate_decays_by_round(round: int, rate: float) -> None:
    s = small.session(lr=0.2, lr_decay=0.5)
    torch.testing.assert_close(trained(s, round=round)[-1], by_torch(s, 0, 1, rate), rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Noting(Method):
    """Notes the labels of every step's batches."""

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        SEEN.append([tuple(b.x[:, 0].tolist()) for b in batches])
        return torch.zeros_like(theta)


SEEN: list[list[tuple[float, ...]]] = []


def steps_of(
    s: Session, client: int, batches: int = 1, epochs: int = 1, round: int = 0
) -> list[list[tuple[float, ...]]]:
    SEEN.clear()
    trained(s, client, [Phase(s.fed.layout.trainable, epochs, 0.1, batches=batches)], round, Noting())
    return list(SEEN)


def slices_of(s: Session, client: int) -> list[tuple[float, ...]]:
    x, _ = small.normal(s, client)
    return [tuple(part[:, 0].tolist()) for part in x.split(8) if len(part) > 1]


def test_steps_of_several_batches_group_inside_an_epoch() -> None:
    s = small.session(federation=small.table(train=(40, 7)))
    a, b, c, d, e = slices_of(s, 0)
    assert steps_of(s, 0, 1) == [[a], [b], [c], [d], [e]]
    assert steps_of(s, 0, 2, epochs=2) == [[a, b], [c, d]] * 2  # the shorter rest is left out
    assert steps_of(s, 0, 3) == [[a, b, c]]
    assert steps_of(s, 0, 5) == [[a, b, c, d, e]]
    (only,) = slices_of(s, 1)
    assert steps_of(s, 1, 3, epochs=2) == [[only, only, only]] * 2  # too few: the first again


def test_shuffling_redraws_every_epoch_by_address() -> None:
    s = small.session(shuffle=True, federation=small.table(train=(24, 24)))
    first = steps_of(s, 0, epochs=2)
    everything = sorted(v for batch in slices_of(s, 0) for v in batch)
    for epoch in (first[:3], first[3:]):
        assert sorted(v for step in epoch for batch in step for v in batch) == everything
    assert first[:3] != first[3:]
    assert steps_of(s, 0, epochs=2) == first
    assert steps_of(s, 0, epochs=2, round=1) != first


@on_both_paths
def test_a_phase_moves_its_entries_and_no_other_by_a_bit(method: Method) -> None:
    s = small.session(momentum=0.9, decay=0.1)
    layout = s.fed.layout
    for mask in (layout.head, layout.body, layout.norm, layout.head | layout.buffers):
        end = trained(s, phases=[Phase(mask, 2, 0.1)], method=method)[-1]
        moved = end != s.fed.initial
        assert not (moved & ~mask & ~layout.buffers).any()
        assert moved[mask & layout.trainable].any()
        assert moved[layout.buffers].any()  # statistics follow every train-mode pass


@on_both_paths
def test_phases_follow_each_other_or_start_anew_and_momentum_starts_at_zero(method: Method) -> None:
    s = small.session(momentum=0.9)
    layout = s.fed.layout
    head, body = Phase(layout.head, 1, 0.1), Phase(layout.body, 1, 0.1)
    ends = trained(s, phases=[head, body], method=method)
    job = small.job(s)
    job.start = StartingPoint(ends[0])
    assert train(method, job, [body])[-1].equal(ends[1])
    elsewhere = s.fed.initial + 0.01
    again = trained(s, phases=[head, Phase(layout.body, 1, 0.1, start=elsewhere)], method=method)
    job = small.job(s)
    job.start = StartingPoint(elsewhere)
    assert again[0].equal(ends[0])
    assert train(method, job, [body])[-1].equal(again[1])  # its own start brings its own statistics


@on_both_paths
def test_training_leaves_its_start_alone(method: Method) -> None:
    s = small.session()
    before = s.fed.initial.clone()
    trained(s, method=method)
    trained(s, phases=[Phase(s.fed.layout.trainable, 1, 0.1, start=s.fed.initial)], method=method)
    assert s.fed.initial.equal(before)


def test_norm_statistics_are_torchs_to_the_bit() -> None:
    s = small.session()
    end = trained(s, phases=[Phase(s.fed.layout.head & False, 2, 0.1)])[-1]
    module = small.module(s).train()
    x, _ = small.normal(s, 0)
    for _ in range(2):
        for part in x.split(8):
            module(part)
    assert end.equal(small.flat(s, module))


@dataclass(frozen=True)
class Looking(Method):
    """Takes a gradient at another point before each step, as Per-FedAvg does."""

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        job.grad(theta + 1.0, batches[0])
        return job.grad(theta, batches[0])


def test_every_pass_of_a_job_moves_its_one_set_of_statistics() -> None:
    s = small.session(federation=small.table(train=(8, 8)))
    end = trained(s, method=Looking())[-1]
    inner, outer = small.module(s, s.fed.initial + 1.0).train(), small.module(s).train()
    inner.bn.running_mean.copy_(outer.bn.running_mean)
    inner.bn.running_var.copy_(outer.bn.running_var)
    x, _ = small.normal(s, 0)
    inner(x)
    outer.bn.running_mean.copy_(inner.bn.running_mean)
    outer.bn.running_var.copy_(inner.bn.running_var)
    outer(x)
    layout = s.fed.layout
    assert end[layout.buffers].equal(small.flat(s, outer)[layout.buffers])


@dataclass(frozen=True)
class Soft(Method):
    """Soft targets, and a pull of the features towards zero."""

    pull: float = 0.0

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        y = batches[0].y
        targets = 0.9 * F.one_hot(y, job.fed.classes).float() + 0.1 / job.fed.classes
        return job.grad(theta, batches[0], targets, (lambda z: self.pull * 2 * z) if self.pull else None)


@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_soft_targets_and_a_gradient_at_the_features(pull: float) -> None:
    s = small.session(federation=small.table(train=(8, 8)), lr=1.0)
    step = s.fed.initial - trained(s, method=Soft(pull))[-1]
    module = small.module(s).train()
    x, y = small.normal(s, 0)
    features = torch.relu(module.bn(module.hidden(x)))
    loss = F.cross_entropy(module.classifier(features), y, label_smoothing=0.1) + pull * (features**2).sum()
    loss.backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(s.fed.layout.view(step, name), parameter.grad, rtol=1e-4, atol=1e-5)


def test_dropout_draws_by_address() -> None:
    s = small.session(model="small:Dropping")
    site = s.worker

    def model(client: int = 0, round: int = 0) -> Tensor:
        torch.rand(client + 1)  # whatever was drawn before
        sent = run_client(site, work(s, client, round), Memory())[0].model
        assert sent is not None
        return sent[~s.side.wire.kept]

    assert model().equal(model())
    assert not model(round=1).equal(model())


# the job


def test_a_reply_weighs_its_train_part_and_validation_is_held_back_from_it() -> None:
    s = small.session(validation=0.25)
    for client, (n, held) in enumerate(((20, 5), (9, 2), (33, 8), (4, 1))):
        job = small.job(s, client)
        x, y = small.normal(s, client)
        assert job.part("validation").x.equal(x[:held])
        assert job.part("train").x.equal(x[held:])
        assert job.labels.equal(y[held:])
        assert run_client(s.worker, work(s, client), Memory())[0].weight == n - held


def test_a_seeded_pass_over_a_share() -> None:
    s = small.session()
    job = small.job(s, 2)
    x, _ = small.normal(s, 2)
    known = {tuple(row) for row in x.tolist()}
    rows = [tuple(row) for batch in job.batches(0.5) for row in batch.x.tolist()]
    assert len(rows) == len(set(rows)) == round(0.5 * 33)
    assert set(rows) <= known
    assert [tuple(r) for b in small.job(s, 2).batches(0.5) for r in b.x.tolist()] == rows
    assert [tuple(r) for b in small.job(s, 2, round=1).batches(0.5) for r in b.x.tolist()] != rows


def test_mine_takes_the_clients_own_and_at_first_the_initial_entries() -> None:
    s = small.session()
    message = torch.full_like(s.fed.initial, 7.0).masked_fill(s.side.wire.kept, float("nan"))
    fresh = small.job(s).mine(message)
    assert fresh[s.side.wire.kept].equal(s.fed.initial[s.side.wire.kept])
    assert (fresh[~s.side.wire.kept] == 7.0).all()
    own = torch.arange(float(s.side.wire.kept.sum()))
    assert small.job(s, memory=Memory(own)).mine(message)[s.side.wire.kept].equal(own)


def test_a_client_remembers_beside_what_it_remembered() -> None:
    s = small.session()
    memory = Memory(None, {"a": torch.ones(1), "b": torch.ones(1)})
    found = small.job(s, memory=memory).remember(s.fed.initial, b=torch.zeros(1))
    assert {name: float(t) for name, t in found.extra.items()} == {"a": 1.0, "b": 0.0}
    assert found.kept is not None
    assert found.kept.equal(s.fed.initial[s.side.wire.kept])


# scores


def test_a_score_is_what_would_be_used_now_and_after_plain_epochs_a_trained_copy() -> None:
    s = small.session(epochs=3)
    site = s.worker
    assert run_to_score(site, work(s, task="score"), Memory())[0].equal(s.fed.initial)
    torch.testing.assert_close(
        run_to_score(site, work(s), Memory(), finetune=2)[0], by_torch(s, 0, 2, 0.1), rtol=1e-5, atol=1e-5
    )


def test_plain_epochs_before_a_score_ignore_the_methods_own_training() -> None:
    @dataclass(frozen=True)
    class Still(Method):
        def phases(self, job: Job) -> list[Phase]:
            return [Phase(job.fed.layout.head, 1, 0.0)]

        def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
            raise AssertionError("not asked for")

    plain, still = small.session(), small.session(Still())
    a, _ = run_to_score(plain.worker, work(plain), Memory(), finetune=1)
    assert run_to_score(still.worker, work(still), Memory(), finetune=1)[0].equal(a)


# failing hooks


def _breaks(*_: Any) -> Any:
    raise KeyError("oops")


@pytest.mark.parametrize("name", ["begin", "phases", "gradient", "finish"])
def test_a_failing_hook_is_named_with_method_client_and_round(name: str) -> None:
    broken = dataclass(frozen=True)(type("Broken", (Method,), {name: _breaks}))()
    s = small.session(broken)
    with pytest.raises(
        HookError,
        match=rf"Broken\.{name} failed for client 2 in round 6 \(test_client.py, line \d+\): KeyError: 'oops'",
    ) as caught:
        run_client(s.worker, work(s, client=2, round=5), Memory())
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("name", ["begin", "phases", "finish"])
def test_a_hook_that_returns_nothing_is_named_too(name: str) -> None:
    broken = dataclass(frozen=True)(type("Broken", (Method,), {name: lambda *_: None}))()
    s = small.session(broken)
    with pytest.raises(HookError, match=rf"Broken\.{name} .*client 2 in round 6"):
        run_client(s.worker, work(s, client=2, round=5), Memory())


def test_a_gradient_of_the_wrong_shape_is_named_too() -> None:
    broken = dataclass(frozen=True)(type("Broken", (Method,), {"gradient": lambda *_: torch.zeros(3)}))()
    s = small.session(broken)
    with pytest.raises(HookError, match=r"Broken\.gradient .*client 2 in round 6"):
        run_client(s.worker, work(s, client=2, round=5), Memory())


def test_replies_leave_kept_entries_at_home() -> None:
    @dataclass(frozen=True)
    class Twice(Method):
        def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
            return job.reply(
                ends[-1], models={"two": torch.stack([ends[-1], ends[-1]])}, scalar=torch.ones(())
            ), job.remember(ends[-1])

    s = small.session(Twice())
    reply, memory = run_client(s.worker, work(s), Memory())
    assert reply.model is not None
    for model in (reply.model, *reply.models["two"]):
        assert model.isnan().equal(s.side.wire.kept)
    assert float(reply.extra["scalar"]) == 1.0
    assert memory.kept is not None
    assert memory.kept.isfinite().all()
