from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import small
import torch
from torch import Tensor

from pfedsim.backends import native
from pfedsim.core import rows as rows_module
from pfedsim.core import server as server_module
from pfedsim.core.client import run_client
from pfedsim.core.engine import Engine
from pfedsim.core.job import Job, Work
from pfedsim.core.layout import Layout
from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState
from pfedsim.core.rows import weighted_mean
from pfedsim.errors import HookError
from pfedsim.runs.setup import Session


def rounds(s: Session, engine: Engine | None = None) -> list[small.Seen]:
    return list(small.rounds(s, engine=engine))


def test_the_default_is_the_mean_of_what_the_clients_trained_by_train_samples() -> None:
    s = small.session(rounds=1)
    (only,) = rounds(s)
    replies = [
        run_client(s.worker, Work(i, 0, Message("train", s.fed.initial), "train"), Memory())[0]
        for i in range(4)
    ]
    total = sum(w * r.model.double() for w, r in zip((20, 9, 33, 4), replies, strict=True)) / 66  # type: ignore[union-attr,misc]
    torch.testing.assert_close(only.state.server.model, total.float(), equal_nan=True)
    assert [r.client for r in only.replies] == [0, 1, 2, 3]
    assert only.state.server.round == 1


def test_replies_come_sorted_whatever_the_order_of_the_schedule() -> None:
    s = small.session()
    turned = replace(s, schedule=[list(reversed(sampled)) for sampled in s.schedule])
    for a, b in zip(rounds(s), rounds(turned), strict=True):
        assert a.state.server.model[~s.worker.wire.kept].equal(b.state.server.model[~s.worker.wire.kept])
        assert [r.client for r in b.replies] == sorted(r.client for r in b.replies)


def test_a_run_goes_on_from_any_state() -> None:
    s = small.session(rounds=3)
    whole = rounds(s)
    rest = list(small.rounds(s, whole[0].state))
    assert len(rest) == 2
    assert (
        rest[-1]
        .state.server.model[~s.worker.wire.kept]
        .equal(whole[-1].state.server.model[~s.worker.wire.kept])
    )


# what travels


@dataclass(frozen=True)
class KeepsHead(Method):
    """Keeps the classifier at home; sends two models more and a number."""

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        two = {"two": torch.zeros(2, fed.layout.size)}
        return {i: Message(task, server.model, {"number": torch.ones(1)}, models=two) for i in clients}

    def begin(self, job: Job) -> Any:
        MESSAGES.append(job.message)
        return super().begin(job)


MESSAGES: list[Message] = []


def test_bytes_are_those_of_what_is_not_kept() -> None:
    s = small.session(KeepsHead(), rounds=1)
    size, head, statistics = s.fed.layout.size, 8 * 3 + 3, 2 * 8
    assert size == 6 * 8 + 8 + 2 * 8 + statistics + head
    travels = size - head - statistics
    (only,) = rounds(s)
    assert only.traffic == dict.fromkeys(range(4), (4 * (3 * travels + 1), 4 * travels))
    (shared,) = rounds(small.session(KeepsHead(), rounds=1, buffers="shared"))
    assert shared.traffic[0][1] == 4 * (travels + statistics)


def test_kept_entries_are_missing_from_messages_and_replies() -> None:
    MESSAGES.clear()
    s = small.session(KeepsHead())
    kept = s.fed.layout.head | s.fed.layout.buffers
    for round in rounds(s):
        for reply in round.replies:
            assert reply.model is not None
            assert reply.model.isnan().equal(kept)
    assert len(MESSAGES) == 8
    for message in MESSAGES:
        assert message.model.isnan().equal(kept)
        assert message.models["two"].isnan().equal(kept.expand(2, -1))
        assert message.extra["number"].isfinite().all()


def test_a_client_that_never_took_part_is_scored_with_its_initial_entries() -> None:
    s = small.session(KeepsHead())
    s = replace(s, schedule=[[0, 1], [1, 2]])
    state = rounds(s)[-1].state
    assert sorted(state.memories) == [0, 1, 2]
    scores = small.score(s, state, models=True)
    absent = scores.clients[3].model
    assert absent is not None
    assert absent[s.worker.wire.kept].equal(s.fed.initial[s.worker.wire.kept])
    assert absent[~s.worker.wire.kept].equal(state.server.model[~s.worker.wire.kept])
    assert 0 <= scores.clients[3].metrics["accuracy"] <= 1
    assert sorted(state.memories) == [0, 1, 2]  # nothing of a score is kept


# bad replies


@dataclass(frozen=True)
class Spoiled(Method):
    """Clients below `bad` reply with what must not be aggregated, from round `since` on."""

    how: str = "nan"
    bad: int = 2
    since: int = 0

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        reply, memory = super().finish(job, ends)
        memory = replace(memory, extra={"round": torch.tensor(float(job.round))})
        if job.client >= self.bad or job.round < self.since:
            return reply, memory
        model = ends[-1].clone()
        model[0] = float("nan")
        spoiled = {
            "nan": replace(reply, model=model),
            "shape": replace(reply, model=model[:-1]),
            "name": replace(reply, extra={"surprise": torch.zeros(1)}),
            "none": replace(reply, model=None),
            "weight": replace(reply, weight=0.0),
        }
        return spoiled[self.how], memory


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("nan", "hidden.weight"),
        ("shape", "shape"),
        ("name", "surprise"),
        ("none", "model"),
        ("weight", "weight is 0.0"),
    ],
)
def test_a_bad_reply_is_left_out_named_and_its_client_does_not_advance(how: str, says: str) -> None:
    s = small.session(Spoiled(how, since=1))
    first, second = rounds(s)
    assert first.events == ()
    event = "absent" if how == "shape" else "rejected"  # its own hook gave what cannot be a reply
    assert [(e["event"], e["round"], e["client"]) for e in second.events] == [(event, 2, 0), (event, 2, 1)]
    assert all(says in e["why"] for e in second.events)
    assert [r.client for r in second.replies] == [2, 3]
    for client, last in enumerate((0, 0, 1, 1)):
        assert float(second.state.memories[client].extra["round"]) == last
    for client in (0, 1):
        assert second.state.memories[client].kept is first.state.memories[client].kept
    others = replace(small.session(Spoiled(bad=0)), schedule=[[0, 1, 2, 3], [2, 3]])
    assert second.state.server.model[~s.worker.wire.kept].equal(
        rounds(others)[-1].state.server.model[~s.worker.wire.kept]
    )


def test_without_a_good_reply_the_server_keeps_its_bits() -> None:
    s = small.session(Spoiled(bad=4))
    start = s.begin()
    for number, round in enumerate(rounds(s)):
        assert len(round.events) == 4
        assert round.replies == ()
        assert round.state.server.model[~s.worker.wire.kept].equal(start.model[~s.worker.wire.kept])
        assert round.state.server.round == number + 1
        assert not round.state.memories


def test_training_that_diverges_is_rejected_and_can_still_be_scored() -> None:
    s = small.session(lr=1e30, epochs=5)
    last = rounds(s)[-1]
    assert len(last.events) == 4
    scores = small.score(s, last.state)
    assert all(torch.isfinite(torch.tensor(c.metrics["loss"])) for c in scores.clients)


# waves


@dataclass(frozen=True)
class TwoWaves(Method):
    """Asks all clients for a number before the first training."""

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        return ("train", sampled) if "mean" in server.extra else ("ask", range(fed.clients))

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        if task == "ask":
            return replace(server, extra={"mean": torch.stack([r.extra["n"] for r in replies]).mean(0)})
        return super().aggregate(fed, server, task, replies, rng)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        if job.message.task == "ask":
            return job.reply(None, n=torch.tensor([float(len(job.labels))])), job.memory
        return super().finish(job, ends)

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"n": (1,)} if message.task == "ask" else super().replies(fed, message)


def test_a_wave_before_the_training_asks_whom_it_wants_and_does_not_end_the_round() -> None:
    s = replace(small.session(TwoWaves()), schedule=[[0, 2], [1, 2]])
    first, second = rounds(s)
    assert float(first.state.server.extra["mean"]) == (20 + 9 + 33 + 4) / 4  # type: ignore[arg-type]
    assert sorted(first.traffic) == [0, 1, 2, 3]
    assert sorted(second.traffic) == [1, 2]
    assert [r.state.server.round for r in (first, second)] == [1, 2]
    model = 4 * int((~s.fed.layout.buffers).sum())  # norm statistics stay at home
    once, twice = (model, 4), (2 * model, 4 + model)  # asked; asked and trained
    assert first.traffic == {0: twice, 1: once, 2: twice, 3: once}
    plain = replace(small.session(), schedule=s.schedule)
    assert second.state.server.model[~s.worker.wire.kept].equal(
        rounds(plain)[-1].state.server.model[~s.worker.wire.kept]
    )


def _breaks(*_: Any) -> Any:
    raise KeyError("oops")


@pytest.mark.parametrize("name", ["init", "plan", "send", "aggregate", "replies"])
def test_a_failing_server_hook_is_named_with_its_round(name: str) -> None:
    broken = dataclass(frozen=True)(type("Broken", (Method,), {name: _breaks}))()
    where = "" if name == "init" else " in round 1"
    with pytest.raises(
        HookError, match=rf"Broken\.{name} failed{where} \(test_server.py, line \d+\): KeyError: 'oops'"
    ) as caught:
        rounds(small.session(broken))
    assert isinstance(caught.value.__cause__, KeyError)


# guard, as the loop applies it


@dataclass(frozen=True)
class Strays(Method):
    """Client 1's model goes astray in round 1; client 2 claims more samples than it has."""

    far: float = 1e6
    claims: float = 1.0

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        reply, memory = super().finish(job, ends)
        if job.client == 1 and job.round == 1:
            reply = replace(reply, model=ends[-1] * self.far)
        return replace(reply, weight=reply.weight * self.claims) if job.client == 2 else reply, memory


def test_an_absurd_step_is_named_or_left_out_as_was_asked() -> None:
    off, warned, rejected = (
        rounds(small.session(Strays(far=300), guard=guard))[-1] for guard in ("off", "warn", "reject")
    )
    kept = small.session(Strays()).side.wire.kept
    assert off.events == ()
    assert [(e["event"], e["client"]) for e in warned.events] == [("absurd", 1)]
    assert "times the median of the clients'" in warned.events[0]["why"]
    assert off.state.server.model[~kept].equal(warned.state.server.model[~kept])
    assert [(e["event"], e["client"]) for e in rejected.events] == [("rejected", 1)]
    assert [r.client for r in rejected.replies] == [0, 2, 3]
    without = replace(small.session(Strays()), schedule=[[0, 1, 2, 3], [0, 2, 3]])
    assert rejected.state.server.model[~kept].equal(rounds(without)[-1].state.server.model[~kept])


@pytest.mark.parametrize("schedule", [[[0, 1, 2, 3]] * 2, [[0, 1]] * 2, [[1]] * 2])
def test_what_is_absurd_is_rejected_by_default_also_where_few_reply(schedule: list[list[int]]) -> None:
    s = replace(small.session(Strays(far=1e30)), schedule=schedule)
    first, second = rounds(s)
    assert not first.events
    assert [(e["event"], e["client"]) for e in second.events] == [("rejected", 1)]
    assert second.server.model[~s.side.wire.kept].isfinite().all()
    assert second.server.steps.keys() == first.server.steps.keys()
    assert second.server.steps[1] == first.server.steps[1]


def test_the_first_reply_of_all_is_held_to_the_model_that_was_sent() -> None:
    @dataclass(frozen=True)
    class Explodes(Method):
        def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
            return job.reply(ends[-1] * 1e30), job.remember(ends[-1])

    s = replace(small.session(Explodes()), schedule=[[0, 1]])
    (only,) = rounds(s)
    assert [(e["event"], e["client"]) for e in only.events] == [("rejected", 0), ("rejected", 1)]


# failures of one client, and of all


@dataclass(frozen=True)
class FailsFor(Method):
    """Some clients' hook raises, from round `since` on."""

    ill: tuple[int, ...] = ()
    since: int = 0

    def begin(self, job: Job) -> Any:
        if job.client in self.ill and job.round >= self.since:
            raise ValueError("ill")
        return super().begin(job)


def test_the_run_goes_on_without_the_clients_whose_hooks_fail() -> None:
    s = small.session(FailsFor((1, 2)))
    found = rounds(s)
    for round in found:
        assert [(e["event"], e["client"]) for e in round.events] == [("absent", 1), ("absent", 2)]
        assert "FailsFor.begin failed for client 1 in round" in round.events[0]["why"]
    scores = small.score(s, found[-1].state)
    assert [bool(one.absent) for one in scores.clients] == [False, True, True, False]


@pytest.mark.parametrize("since", [0, 1])
def test_a_hook_that_fails_for_all_clients_stops_the_run(since: int) -> None:
    s = small.session(FailsFor((0, 1, 2, 3), since))
    with pytest.raises(HookError, match=rf"FailsFor.begin failed for client 0 in round {since + 1} "):
        rounds(s)
    with pytest.raises(HookError, match=r"FailsFor.begin failed for client 0"):
        small.score(s, replace(s.begin(), round=since))


def test_one_client_a_round_that_fails_stops_nothing() -> None:
    s = replace(small.session(FailsFor((1,))), schedule=[[1], [0], [1]])
    assert [[r.client for r in round.replies] for round in rounds(s)] == [[], [0], []]
    s = replace(small.session(FailsFor((1, 2))), schedule=[[1], [2]])
    with pytest.raises(HookError, match="client 2 in round 2"):  # two failed and nobody ever replied
        rounds(s)


def test_a_hook_that_wants_to_exit_costs_one_client() -> None:
    @dataclass(frozen=True)
    class Exits(Method):
        def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
            if job.client == 1:
                raise SystemExit(0)
            return super().finish(job, ends)

    assert [(e["event"], e["client"]) for e in rounds(small.session(Exits()))[0].events] == [("absent", 1)]


def test_a_server_state_that_is_not_finite_stops_the_run_and_names_the_hook() -> None:
    @dataclass(frozen=True)
    class Overflows(Method):
        def aggregate(
            self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
        ) -> ServerState:
            return replace(server, model=server.model * float("inf"))

    with pytest.raises(
        HookError, match=r"Overflows.aggregate failed in round 1: FloatingPointError: its model is not"
    ):
        rounds(small.session(Overflows()))


@dataclass(frozen=True)
class Stumbles(Method):
    """`aggregate` cannot take what client 1 sends in round 1."""

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        number = torch.full((1,), float(job.client == 1 and job.round == 1))
        return job.reply(ends[-1], n=number), job.remember(ends[-1], round=torch.tensor(job.round))

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "n": (1,)}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        if any(reply.extra["n"] for reply in replies):
            raise ZeroDivisionError("n")
        return super().aggregate(fed, server, task, replies, rng)


def test_a_reply_with_which_nothing_can_be_aggregated_is_rejected() -> None:
    s = small.session(Stumbles())
    _, second = rounds(s)
    (event,) = second.events
    assert (event["event"], event["client"]) == ("rejected", 1)
    assert (
        "without it the wave can be aggregated, with it Stumbles.aggregate failed in round 2"
        in event["why"]
    )
    assert [r.client for r in second.replies] == [0, 2, 3]
    assert int(second.state.memories[1].extra["round"]) == 0
    alone = replace(s, schedule=[[1], [1]])
    with pytest.raises(HookError, match="ZeroDivisionError"):  # nobody to compare it with
        rounds(alone)


class Confused:
    """An engine that answers twice for one client, never for another, and for one that nobody asked."""

    def __init__(self, engine: Any):
        self.engine, self.memories, self.events = engine, engine.memories, engine.events

    def run(self, task: str, works: Sequence[Work], deadline: float | None = None) -> Any:
        for done in self.engine.run(task, works, deadline):
            if done.client == 0:
                yield done
                yield done
            elif done.client == 2:
                yield replace(done, client=77)
            else:
                yield done


def test_an_engine_that_is_confused_costs_only_the_clients_concerned() -> None:
    s = small.session(rounds=1)
    (only,) = rounds(s, Confused(s.engine))  # type: ignore[arg-type]
    assert {(e["event"], e["client"], e["why"]) for e in only.events} == {
        ("rejected", 0, "this result came twice"),
        ("rejected", 77, "nobody asked for this result"),
        ("absent", 2, "no result came"),
    }
    assert [r.client for r in only.replies] == [0, 1, 3]


def test_nobody_counts_for_more_samples_than_it_declared() -> None:
    s = small.session(Strays(far=1.0, claims=1.5))
    s = replace(s, side=replace(s.side, declared=[20, 9, 33, 4]))
    for round in rounds(s):
        assert [(e["client"], e["why"]) for e in round.events] == [
            (2, "its weight is 49.5, but the client declared 33 samples")
        ]
        assert [r.client for r in round.replies] == [0, 1, 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_whose_data_cannot_be_read_is_absent(workers: int) -> None:
    from pfedsim.data.federation import ClientData
    from pfedsim.engines.pool import Pool
    from pfedsim.engines.serial import Serial

    class Torn(ClientData):
        def part(self, client: int, name: str, validation: float = 0.0) -> tuple[Tensor, Tensor]:
            if client == 1:
                raise OSError("the disk is torn")
            return super().part(client, name, validation)

    s = small.session()
    torn = replace(s.worker, samples=Torn(s.federation))
    engine = Serial(torn) if workers == 1 else Pool(torn, workers)
    found = rounds(s, engine)
    for round in found:
        assert [(e["event"], e["client"]) for e in round.events] == [("absent", 1)]
        assert round.events[0]["why"] == "its train data cannot be read: OSError: the disk is torn"
        assert 1 not in round.state.memories
    others = replace(s, schedule=[[0, 2, 3]] * 2)
    assert (
        found[-1]
        .state.server.model[~s.worker.wire.kept]
        .equal(rounds(others)[-1].state.server.model[~s.worker.wire.kept])
    )
    scores = small.score(s, found[-1].state, engine)
    engine.close()
    assert [c.samples for c in scores.clients] == [10, 0, 10, 10]


def test_a_reply_is_looked_at_as_it_comes_and_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []

    class Backwards(Confused):
        def run(self, task: str, works: Sequence[Work], deadline: float | None = None) -> Any:
            for done in self.engine.run(task, works[::-1], deadline):
                told.append(("came", done.client))
                yield done

    judge = server_module.objection
    monkeypatch.setattr(
        server_module,
        "objection",
        lambda *given: told.append(("looked at", given[3].client)) or judge(*given),
    )
    s = small.session(rounds=1)
    (only,) = rounds(s, Backwards(s.engine))  # type: ignore[arg-type]
    assert told == [(what, i) for i in (3, 2, 1, 0) for what in ("came", "looked at")]
    assert [r.client for r in only.replies] == [0, 1, 2, 3]
    (forwards,) = rounds(small.session(rounds=1))
    sent = ~s.worker.wire.kept
    assert only.state.server.model[sent].equal(forwards.state.server.model[sent])
    assert only.state.server.steps == forwards.state.server.steps


@dataclass(frozen=True)
class Means(Method):
    """Means in both hooks of the server."""

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        again = weighted_mean([(1.0, server.model), (1.0, server.model)])
        return {i: Message(task, again) for i in clients}


def test_means_of_the_server_use_all_cores_of_the_run_and_clients_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    mix = native.mix
    monkeypatch.setattr(rows_module, "WORTH", 1)
    monkeypatch.setattr(
        native, "mix", lambda vectors, table, threads: used.append(threads) or mix(vectors, table)
    )
    s = small.session(Means(), rounds=1, engine="serial")
    rounds(replace(s, side=replace(s.side, cores=3)))
    assert used == [3, 3]
    used.clear()
    rounds(s)
    assert used == [1, 1]


@pytest.mark.parametrize(
    ("words", "cores"), [({"engine": "serial"}, 1), ({"engine": "pool", "workers": 3}, 3)]
)
def test_the_server_has_the_cores_of_the_pool(words: dict[str, Any], cores: int) -> None:
    assert small.session(**words).side.cores == cores
