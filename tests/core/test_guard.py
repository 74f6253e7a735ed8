from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import small
import torch
from torch import Tensor

from pfedsim.backends import native
from pfedsim.core.guard import FAR, far, flaw, lengths, longest, objection
from pfedsim.core.job import Job, Work
from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.wire import Field, Wire, is_finite
from pfedsim.runs.setup import Session


@dataclass(frozen=True)
class WithExtra(Method):
    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "counts": (3,)}


S = small.session(WithExtra())
SIZE = S.fed.layout.size
GOOD = Reply(
    1,
    20.0,
    torch.zeros(SIZE).masked_fill(S.side.wire.kept, float("nan")),
    {"counts": torch.zeros(3)},
    round=4,
    task="train",
)
WORK = Work(1, 4, Message("train", S.fed.initial), "train")


def judgement(s: Session, work: Work, reply: Reply, declared: float = math.inf) -> str | None:
    moved = lengths(work.message, reply, s.side.wire)
    return objection(s.method, s.fed, s.side.wire, work, reply, moved, declared)


def objected(reply: Reply, declared: float = 20.0) -> str | None:
    try:
        return judgement(S, WORK, S.side.wire.proper(reply), declared)
    except TypeError as error:
        return str(error)


def _one(name: str, value: float) -> torch.Tensor:
    model = GOOD.model.clone()  # type: ignore[union-attr]
    S.fed.layout.view(model, name)[0] = value
    return model


def test_a_good_reply_passes_with_nothing_in_its_kept_entries() -> None:
    assert objected(GOOD) is None


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (
            replace(GOOD, model=_one("classifier.bias", float("nan"))),
            "model is not finite (first in classifier.bias)",
        ),
        (replace(GOOD, model=_one("bn.weight", float("inf"))), "model is not finite (first in bn.weight)"),
        (replace(GOOD, model=torch.zeros(SIZE + 1)), f"model has shape ({SIZE + 1},), expected ({SIZE},)"),
        (
            replace(GOOD, model=torch.zeros(SIZE, dtype=torch.float64)),
            "model is torch.float64, expected float32",
        ),
        (replace(GOOD, model=None), "it holds ['counts'], expected ['counts', 'model']"),
        (
            replace(GOOD, model=None, extra={**GOOD.extra, "model": torch.zeros(SIZE)}),
            "a model among its extras",
        ),
        (replace(GOOD, extra={**GOOD.extra, "model": torch.zeros(SIZE)}), "a model among its extras"),
        (replace(GOOD, extra={}), "it holds ['model'], expected ['counts', 'model']"),
        (
            replace(GOOD, extra={"count": torch.zeros(3)}),
            "it holds ['count', 'model'], expected ['counts', 'model']",
        ),
        (
            replace(GOOD, extra={**GOOD.extra, "more": torch.zeros(1)}),
            "it holds ['counts', 'model', 'more']",
        ),
        (replace(GOOD, extra={"counts": torch.zeros(3, 1)}), "counts has shape (3, 1), expected (3,)"),
        (replace(GOOD, extra={"counts": torch.zeros(4)}), "counts has shape (4,), expected (3,)"),
        (replace(GOOD, extra={"counts": torch.tensor([0, 1, float("nan")])}), "counts is not finite"),
        (replace(GOOD, weight=0.0), "its weight is 0.0"),
        (replace(GOOD, weight=-1.0), "its weight is -1.0"),
        (replace(GOOD, weight=float("nan")), "its weight is nan"),
        (replace(GOOD, weight=21.0), "its weight is 21, but the client declared 20 samples"),
        (replace(GOOD, client=2), "it says that it comes from client 2"),
        (replace(GOOD, round=3), "it answers 'train' of round 4"),
        (replace(GOOD, task="ask"), "it answers 'ask' of round 5"),
        (replace(GOOD, round=-1, task=""), "it does not say what it answers: make it with job.reply"),
        (replace(GOOD, info={"loss": float("nan")}), "its training loss is nan"),
        (replace(GOOD, info={"loss": float("inf")}), "its training loss is inf"),
    ],
)
def test_a_bad_reply_is_named(reply: Reply, says: str) -> None:
    assert says in (objected(reply) or "")


def test_extra_models_are_judged_by_what_was_sent() -> None:
    @dataclass(frozen=True)
    class Two(Method):
        def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
            return {"two": (2, fed.layout.size)}

    s = small.session(Two())
    two = torch.zeros(2, s.fed.layout.size).masked_fill(s.side.wire.kept, float("nan"))
    work = Work(0, 0, Message("train", s.fed.initial), "train")
    reply = Reply(0, 1.0, None, models={"two": two}, round=0, task="train")
    assert judgement(s, work, reply) is None
    as_extra = replace(reply, models={}, extra={"two": two})
    assert judgement(s, work, as_extra) == (
        "two is not finite"  # what is no model is sent as it is, however wide
    )
    two[1, 0] = float("nan")
    assert judgement(s, work, reply) == "two is not finite"


@dataclass(frozen=True)
class Remembers(Method):
    """Clients remember a number that is none."""

    kept: bool = False

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        reply, memory = super().finish(job, ends)
        nan = torch.tensor([0.0, float("nan")])
        return reply, Memory(memory.kept * nan[1]) if self.kept else replace(memory, extra={"memory": nan})


@pytest.mark.parametrize(("kept", "what"), [(True, "its kept entries"), (False, "memory")])
def test_what_a_client_keeps_must_be_finite_too(kept: bool, what: str) -> None:
    found, *_ = small.rounds(small.session(Remembers(kept)))
    assert found.replies == ()
    assert not found.state.memories
    assert {e["why"] for e in found.events} == {f"what the client keeps is not finite ({what})"}


def moved(client: int, distance: float) -> tuple[Message, Reply]:
    """A model that was moved so far from the one that was sent, which is far from zero itself."""
    sent = torch.full((SIZE,), 1000.0)
    step = torch.zeros(SIZE)
    step[0] = distance
    return Message("train", sent), Reply(
        client, 1.0, (sent + step).masked_fill(S.side.wire.kept, float("nan"))
    )


def judged(
    *wave: tuple[Message, Reply], before: dict[int, float] | None = None, model: float = 1.0
) -> dict[int, tuple[float, str]]:
    steps = {reply.client: lengths(message, reply, S.side.wire)["model"] for message, reply in wave}
    return far({"model": steps}, before or {}, lambda: model)


@pytest.mark.parametrize(("distance", "times"), [(0.9, None), (1.2, 120), (1e4, 1_000_000)])
def test_a_step_is_far_by_the_median_of_the_others(distance: float, times: float | None) -> None:
    found = judged(moved(0, 0.01), moved(1, 0.01), moved(2, distance), moved(3, 0.005))
    # float32 steps around 1000 are a 16384th: 0.01 is kept as 0.0098, so that the times differ by some
    # percent
    assert set(found) == ({2} if times else set())
    if times:
        assert found[2][0] == pytest.approx(times, rel=0.05)
        assert found[2][0] > FAR
        assert "times the median of the clients'" in found[2][1]


def test_few_replies_are_judged_by_the_past() -> None:
    alone = moved(2, 4.0)
    assert not judged(alone, model=1.0)  # nothing is known, and the model is not much shorter
    assert judged(alone, model=0.01)[2][1].endswith("400 times the model that was sent")
    assert judged(alone, before={2: 0.02})[2][1].endswith("200 times its longest before")
    assert not judged(alone, before={2: 0.05})
    assert not judged(alone, before={0: 0.0001, 2: 0.05})  # two clients have no median to speak of
    # the others' past counts once there are three; one client's own long past does not excuse it
    assert 2 in judged(alone, before={0: 0.02, 1: 0.02, 2: 4.0, 3: 0.03})
    # a wave that hardly moves is no reason to reject one that moves as clients did before
    still = [moved(0, 0.001), moved(1, 0.001), alone]
    assert 2 in judged(*still)
    assert not judged(*still, before={0: 1.0, 1: 2.0, 2: 1.5})


def test_the_past_is_each_clients_longest_accepted_step() -> None:
    before = {0: 1.0, 1: 2.0}
    steps = {"model": {0: 3.0, 1: 1.0, 2: 9.0}}
    assert longest(before, steps, [0, 1]) == {0: 3.0, 1: 2.0}
    assert longest(before, steps, [1]) is before  # a delta checkpoint then leaves it out


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (ServerState(1, _one("classifier.bias", float("inf"))), "its model is not finite (first in classifier.bias)"),
        (ServerState(1, GOOD.model, Rows(GOOD.model, {3: _one("bn.weight", float("nan"))})), "personal[3] is not"),
        (ServerState(1, GOOD.model, extra={"h": torch.tensor(float("inf"))}), "extra['h'] is not finite"),
        (ServerState(1, GOOD.model, extra={"phi": Pairs({1: {2: float("nan")}})}), "extra['phi']'s row 1 is not"),
        (ServerState(1, GOOD.model, extra={"n": torch.tensor([1, 2])}), None),
    ],
)  # fmt: skip
def test_a_servers_state_must_be_finite(state: ServerState, says: str | None) -> None:
    found = flaw(S.fed, S.side.wire, None, state)
    assert found is None if says is None else says in (found or "")
    assert flaw(S.fed, S.side.wire, state, state) is None  # only what is new is looked at


@pytest.mark.parametrize(
    ("entries", "finite"),
    [
        ([1.0, -2.0, 0.0], True),
        ([3e38, 3e38, 3e38], True),  # their sum is not
        ([1.0, float("inf"), -1.0], False),
        ([float("inf"), float("-inf"), 0.0], False),
        ([1.0, float("nan"), 2.0], False),
    ],
)
def test_a_vector_is_finite_when_each_of_its_entries_is(entries: list[float], finite: bool) -> None:
    vector = torch.tensor(entries)
    assert is_finite(vector) is finite
    kept = torch.tensor([False, True, False])
    others = Field("model", vector, True)
    assert Wire(kept).is_finite(others) is bool(vector[~kept].isfinite().all())


@pytest.mark.parametrize("library", [True, False])
def test_a_length_has_only_what_was_sent_with_the_native_library_and_without(
    library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setattr(native, "available", lambda: False)
    draw = torch.Generator().manual_seed(3)
    kept = torch.rand(400_000, generator=draw) < 0.01  # several pieces
    sent, model = torch.randn(2, len(kept), generator=draw)
    wire = Wire(kept)
    step = (model - sent)[~kept].double().norm()
    model[kept] = float("nan")
    assert wire.norm(model, sent) == pytest.approx(float(step), rel=1e-12)
    two = torch.stack([model, model])
    long = model[~kept].double().norm() * 2**0.5
    assert wire.norm(two) == pytest.approx(float(long), rel=1e-12)
    model[int((~kept).nonzero()[7])] = float("nan")
    assert math.isnan(wire.norm(model, sent))


def test_a_step_beyond_float32_is_far_but_finite() -> None:
    sent, model = torch.full((SIZE,), -3e38), torch.full((SIZE,), 3e38)
    work, reply = Work(1, 4, Message("train", sent), "train"), replace(GOOD, model=model)
    assert lengths(work.message, reply, S.side.wire)["model"] == math.inf
    assert judgement(S, work, reply) is None
