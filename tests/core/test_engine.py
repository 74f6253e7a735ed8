"""Who holds what: memories stay beside the engine, and count once the loop has accepted their replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pfedsim.core.engine import Absent, Done, HeldMemories, timed_out
from pfedsim.core.job import Job, ScoreRequest, Work
from pfedsim.core.layout import Layout
from pfedsim.core.method import Memory, Message, Method, Reply
from pfedsim.core.server import State
from pfedsim.core.settings import Dropouts
from pfedsim.core.tasks import perform
from pfedsim.core.wire import Field, Wire, fields
from pfedsim.engines.dropouts import Dropping
from pfedsim.engines.pool import Pool
from pfedsim.engines.serial import Serial
from pfedsim.errors import Error


@dataclass(frozen=True)
class Counts(Method):
    """Clients count the trainings that the server accepted; client 1's second reply is refused."""

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        before = job.memory.extra.get("trainings", torch.zeros(()))
        reply = job.reply(ends[-1])
        if job.client == 1 and job.round == 1:
            reply = replace(reply, weight=-1.0)
        return reply, job.remember(ends[-1], trainings=before + 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_memory_counts_once_its_reply_is_accepted(workers: int) -> None:
    s = small.session(Counts(), rounds=4)
    engine = Serial(s.worker) if workers == 1 else Pool(s.worker, workers)
    engine = Dropping(engine, Dropouts(late_clients=(2,)), 0)
    found = [done.state.memories for done in small.rounds(s, engine=engine)]
    engine.close()
    counted = [{i: float(m.extra["trainings"]) for i, m in held.items()} for held in found]
    assert counted == [  # client 2's replies are always late, client 1's second is rejected
        {0: 1.0, 1: 1.0, 3: 1.0},
        {0: 2.0, 1: 1.0, 3: 2.0},
        {0: 3.0, 1: 2.0, 3: 3.0},
        {0: 4.0, 1: 3.0, 3: 4.0},
    ]


def test_the_loop_carries_no_memory() -> None:
    heard: list[tuple[Work, Done | Absent]] = []
    s = small.session(Counts()).observed(lambda work, done: heard.append((work, done)))
    list(small.rounds(s))
    assert len(heard) == 8
    head = s.fed.layout.head
    for work, done in heard:
        assert isinstance(done, Done)
        assert isinstance(done.result, Reply)
        assert work.message.model[head].isnan().all()
        assert done.result.model is not None
        assert done.result.model[head].isnan().all()
        assert not any(isinstance(part, Memory) for part in (*work, *vars(done).values()))


def test_offered_memories_that_nobody_accepts_are_dropped() -> None:
    memories = HeldMemories()
    memories.offer(1, Memory(torch.ones(1)))
    memories.offer(2, Memory(torch.ones(2)))
    memories.accept([2])
    with pytest.raises(KeyError):
        memories.accept([1])  # it was dropped
    assert list(memories.held()) == [2]
    snapshot = memories.held()
    memories.restore({})
    assert list(snapshot) == [2]
    assert memories.of(2).kept is None


class Backwards:
    """An engine whose results come in reverse, and which notes each of its calls."""

    def __init__(self, engine: Any):
        self.engine, self.memories, self.events, self.calls = engine, engine.memories, [], 0

    def run(self, task: str, works: Sequence[Work], deadline: float | None = None) -> Any:
        self.calls += 1
        self.events.append({"event": "called", "number": self.calls})
        yield from reversed(list(self.engine.run(task, works, deadline)))


def test_results_come_in_any_order_and_events_are_told_once() -> None:
    s = small.session()
    *_, last = small.rounds(s)
    engine: Any = Backwards(s.engine)
    turned = list(small.rounds(s, engine=engine))
    travels = ~s.side.wire.kept
    assert turned[-1].server.model[travels].equal(last.server.model[travels])
    assert [round.events for round in turned] == [
        ({"round": k, "event": "called", "number": k},) for k in (1, 2)
    ]
    scores = small.score(s, turned[-1].state, engine=engine)
    assert [one.client for one in scores.clients] == [0, 1, 2, 3]
    assert scores.summary() == small.score(s, last.state).summary()


class Hurried(Serial):
    """Client 2 has not answered when the deadline comes."""

    deadlines: list[float | None]

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        self.deadlines = [*getattr(self, "deadlines", []), deadline]
        for work in works:
            yield from [timed_out(work, "too slow")] if work.client == 2 else super().run(task, [work])


def test_a_round_ends_at_its_deadline_without_those_who_are_late() -> None:
    s = small.session(rounds=1)
    engine = Hurried(s.worker)
    (only,) = small.rounds(replace(s, side=replace(s.side, deadline=7.5)), engine=engine)
    assert engine.deadlines == [7.5]
    assert [r.client for r in only.replies] == [0, 1, 3]
    assert [(e["event"], e["client"]) for e in only.events] == [("timed out", 2)]
    assert sorted(only.state.memories) == [0, 1, 3]


class Remote(HeldMemories):
    """Clients that hold their own memories."""

    def held(self) -> dict[int, Memory]:
        return {}

    def elsewhere(self) -> dict[int, str]:
        return {0: "a", 3: "b"}

    def restore(self, held, elsewhere=None) -> None:
        self.restored = elsewhere


def test_what_is_saved_does_not_change_with_the_run() -> None:
    """Neither what was saved, nor what a run went on from."""
    memories = HeldMemories()
    memories.offer(0, Memory(torch.zeros(1)))
    memories.accept([0])
    saved = memories.held()
    memories.restore(saved)
    memories.offer(1, Memory(torch.ones(1)))
    memories.accept([1])
    assert sorted(saved) == [0]
    assert sorted(memories.held()) == [0, 1]


def test_a_state_names_the_memories_that_others_hold() -> None:
    s = small.session()
    engine = Serial(s.worker)
    engine.memories = Remote()
    state: State = list(small.rounds(s, engine=engine))[-1].state
    assert (dict(state.memories), state.elsewhere) == ({}, {0: "a", 3: "b"})
    assert replace(s.side, engine=engine).restore(state) is state.server
    assert engine.memories.restored == {0: "a", 3: "b"}
    with pytest.raises(Error, match="clients 0, 3 keep their memories themselves and are not reached here"):
        s.side.restore(state)


@pytest.mark.parametrize("wanted", [{"model": True}, {"predictions": True}])
def test_only_simulated_clients_show_models_and_predictions(wanted: dict[str, bool]) -> None:
    s = small.session()
    work = Work(0, 0, Message("score", s.fed.initial), "score", ScoreRequest(**wanted))
    done, _ = perform(s.worker, "score", work, Memory())
    assert isinstance(done, Done)
    score: Any = done.result
    assert (score.model is not None, len(score.labels) == 10) == (
        wanted.get("model", False),
        wanted.get("predictions", False),
    )
    with pytest.raises(Error, match="client 0 was asked for its model or predictions"):
        perform(replace(s.worker, simulated=False), "score", work, Memory())


def test_a_score_is_counts_and_sums() -> None:
    s = small.session()
    work = Work(0, 0, Message("score", s.fed.initial), "score", ScoreRequest())
    done, memory = perform(replace(s.worker, simulated=False), "score", work, Memory())
    assert memory is None
    score: Any = done.result  # type: ignore[union-attr]
    assert score.model is None
    assert len(score.labels) == len(score.predicted) == 0
    assert score.confusion.sum() == score.samples == 10


def test_a_task_that_nobody_knows_is_refused() -> None:
    s = small.session()
    with pytest.raises(Error, match="a worker knows no task 'dance': it trains and scores"):
        perform(s.worker, "dance", Work(0, 0, Message("train", s.fed.initial), "train"), Memory())


# what travels


@given(st.lists(st.booleans(), min_size=2, max_size=9), st.integers(1, 3), st.booleans())
def test_what_travels_is_what_is_not_kept(kept: list[bool], rows: int, spoil: bool) -> None:
    mask = torch.tensor(kept)
    wire, width, stays = Wire(mask), len(kept), sum(kept)
    reply = Reply(
        0,
        1.0,
        torch.ones(width),
        {"as wide": torch.ones(width)},
        models={"more": torch.ones(rows, width)},
    )
    sealed = wire.sealed(reply)
    assert sealed.model is not None
    assert sealed.model.isnan().equal(mask)
    assert sealed.models["more"].isnan().equal(mask.expand(rows, -1))
    assert sealed.extra["as wide"].isfinite().all()  # equal width does not make it a model
    assert wire.bytes(reply) == 4 * ((width - stays) * (1 + rows) + width)
    assert all(wire.is_finite(field) for field in fields(sealed))
    assert wire.norm(sealed.models["more"]) == pytest.approx((rows * (width - stays)) ** 0.5)
    place = 0
    if spoil:
        broken = sealed.models["more"].clone()
        broken[-1, place] = float("inf")
        assert wire.is_finite(Field("more", broken, True)) == kept[place]
