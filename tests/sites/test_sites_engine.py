"""Clients at sites: the bits of the serial engine, memories that stay where they are, and what is late, lost or
doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import loopback
import pytest
import small
import torch

from pfedsim.core.job import Job
from pfedsim.core.method import Memory, Method, Reply
from pfedsim.core.server import State
from pfedsim.errors import Error
from pfedsim.methods import METHODS, parse
from pfedsim.runs.setup import Session
from pfedsim.runs.state import to_tensors
from pfedsim.sites.engine import Sites, TooFew
from pfedsim.sites.files import bound

PLACES = [[0, 2], [1], [3]]


def method_of(name: str) -> Method:
    return parse(name, {})


def same(a: State, b: State) -> None:
    """The server's part of two states is the same to the bit."""
    ours, theirs = (to_tensors(replace(s, memories={})) for s in (a, b))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name


def memories_at(engine: Sites, link: loopback.Loopback) -> dict[int, Memory]:
    """What the clients remember, read from the sites' disks under the accepted marks."""
    from pfedsim.sites.keeper import Keeper

    found = {}
    for client, mark in engine.memories.elsewhere().items():
        here = link.premises[engine.places[client]]
        kept = Keeper(here.folder / "state", loopback.RUN, engine.wire).find(client, mark)
        assert kept is not None
        found[client] = kept[0]
    return found


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_ends_with_the_serial_engines_bits(tmp_path: Path, name: str) -> None:
    s = small.session(method_of(name), rounds=3, epochs=2, validation=0.2, buffers="local")
    expected = list(small.rounds(s))
    engine, link = loopback.federation(s, tmp_path, PLACES)
    found = list(small.rounds(s, engine=engine))
    for ours, theirs in zip(found, expected, strict=True):
        same(ours.state, theirs.state)
        assert [r.client for r in ours.replies] == [r.client for r in theirs.replies]
        assert (ours.traffic, ours.events) == (theirs.traffic, theirs.events)
        assert not ours.state.memories
    there = memories_at(engine, link)
    last = expected[-1].state.memories
    assert there.keys() == last.keys()
    for client, memory in last.items():
        assert there[client].extra.keys() == memory.extra.keys()
        pairs = [(memory.kept, there[client].kept)]
        pairs += [(memory.extra[key], there[client].extra[key]) for key in memory.extra]
        for a, b in pairs:
            assert a is not None
            assert b is not None
            assert a.numpy().tobytes() == b.numpy().tobytes()
    ours, theirs = (
        small.score(s, state, engine=e)
        for state, e in ((found[-1].state, engine), (expected[-1].state, None))
    )
    assert [str(dict(c.metrics)) for c in ours.clients] == [str(dict(c.metrics)) for c in theirs.clients]
    assert all(
        (a.confusion == b.confusion).all() for a, b in zip(ours.clients, theirs.clients, strict=True)
    )


def fedper(**settings: object) -> Session:
    return small.session(method_of("fedper"), rounds=4, **settings)


def test_a_model_that_all_clients_of_a_site_get_travels_once_and_without_what_they_keep(
    tmp_path: Path,
) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, [[0, 1, 2, 3]])
    next(iter(small.rounds(s, engine=engine)))
    (_, packet) = link.posted[-1]
    assert len(packet) < 4 * engine.wire.travels + 3000
    assert engine.wire.travels < engine.wire.size


def test_a_hub_that_died_goes_on_from_any_state_that_it_saved(tmp_path: Path) -> None:
    """It lost two rounds after its last checkpoint; the sites still have what it needs, and answer again what they
    answered before."""
    s = fedper()
    expected = [r.state for r in small.rounds(s)]
    engine, link = loopback.federation(s, tmp_path, PLACES)
    rounds = small.rounds(s, engine=engine)
    saved = next(rounds).state
    engine.memories.may_return_to(lambda: [saved.elsewhere])
    next(rounds), next(rounds)
    there = {path.stem for path in (tmp_path / "b").rglob("*.state")}
    assert saved.elsewhere[1] in there
    assert len(there) == 3
    again = loopback.hub(s, link, {"a": [0, 2], "b": [1], "c": [3]})
    found = [r.state for r in small.rounds(s, saved, engine=again)]
    same(found[-1], expected[-1])
    assert len(list((tmp_path / "b").rglob("*.state"))) == 2  # the last, and the one before it


def test_a_site_answers_again_without_training_again(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class CountsCalls(Method):
        def begin(self, job: Job):
            calls.append(job.client)
            return super().begin(job)

    calls: list[int] = []
    s = small.session(CountsCalls(), rounds=1)
    engine, link = loopback.federation(s, tmp_path, PLACES)
    first = next(iter(small.rounds(s, engine=engine)))
    assert sorted(calls) == [0, 1, 2, 3]
    for site in "abc":
        link.restart(site)
    second = next(iter(small.rounds(s, engine=loopback.hub(s, link, {"a": [0, 2], "b": [1], "c": [3]}))))
    assert sorted(calls) == [0, 1, 2, 3]
    same(first.state, second.state)


def test_a_site_that_died_comes_back_with_its_memories(tmp_path: Path) -> None:
    s = fedper()
    expected = [r.state for r in small.rounds(s)]
    engine, link = loopback.federation(s, tmp_path, PLACES)
    found = []
    for done in small.rounds(s, engine=engine):
        found.append(done.state)
        link.restart("a")
        engine._open.discard("a")
    same(found[-1], expected[-1])


def test_a_site_that_lost_its_disk_says_so(tmp_path: Path) -> None:
    s = fedper()
    engine, _ = loopback.federation(s, tmp_path, PLACES)
    rounds = small.rounds(s, engine=engine)
    next(rounds)
    for path in (tmp_path / "b").rglob("*.state"):
        path.unlink()
    done = next(rounds)
    assert [r.client for r in done.replies] == [0, 2, 3]
    (event,) = done.events
    assert "the site 'b' no longer has what client 1 remembered after round 1" in event["why"]


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "foreign"])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, how: str) -> None:
    s = fedper()
    engine, _ = loopback.federation(s, tmp_path, PLACES)
    rounds = small.rounds(s, engine=engine)
    next(rounds)
    (path,) = (tmp_path / "b").rglob("*.state")
    (other,) = (tmp_path / "c").rglob("*.state")
    data = path.read_bytes()
    path.write_bytes(
        {
            "flip": data[:-1] + bytes([data[-1] ^ 1]),
            "cut": data[:-5],
            "empty": b"",
            "foreign": other.read_bytes(),
        }[how]
    )
    done = next(rounds)
    assert [r.client for r in done.replies] == [0, 2, 3]
    (event,) = done.events
    assert ("belongs to another" if how == "foreign" else "is damaged") in event["why"]


@dataclass(frozen=True)
class Rejected(Method):
    """Client 1's second reply is refused."""

    def keeps(self, layout):
        return layout.head

    def finish(self, job: Job, ends: Sequence[torch.Tensor]) -> tuple[Reply, Memory]:
        before = job.memory.extra.get("trainings", torch.zeros(()))
        reply = job.reply(ends[-1])
        if job.client == 1 and job.round == 1:
            reply = replace(reply, weight=-1.0)
        return reply, job.remember(ends[-1], trainings=before + 1)


def test_a_memory_counts_once_its_reply_is_accepted(tmp_path: Path) -> None:
    s = small.session(Rejected(), rounds=4)
    engine, link = loopback.federation(s, tmp_path, PLACES)
    counted = []
    for _ in small.rounds(s, engine=engine):
        counted.append({i: float(m.extra["trainings"]) for i, m in memories_at(engine, link).items()})
    assert counted == [
        {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0},
        {0: 2.0, 1: 1.0, 2: 2.0, 3: 2.0},
        {0: 3.0, 1: 2.0, 2: 3.0, 3: 3.0},
        {0: 4.0, 1: 3.0, 2: 4.0, 3: 4.0},
    ]


def test_with_a_quorum_a_round_goes_on_without_a_site_until_it_is_back(tmp_path: Path) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, PLACES, quorum=0.5)
    link.away = {"c"}
    asked = []
    for k, done in enumerate(small.rounds(s, engine=engine)):
        asked.append([r.client for r in done.replies])
        assert [(e["event"], e["client"]) for e in done.events] == ([("away", 3)] if k < 2 else [])
        link.away = {"c"} if k < 1 else set()
    assert asked == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_without_a_quorum_a_lost_site_stops_the_run(tmp_path: Path) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, PLACES)
    link.bend = lambda site, answer: [(site, "it died" if site == "b" else answer)]
    with pytest.raises(
        TooFew,
        match=r"round 1: at most 3 of 4 clients can answer, and 4 must; clients 1: its site 'b' is lost: it died",
    ):
        list(small.rounds(s, engine=engine))


def test_an_answer_after_the_deadline_is_late(tmp_path: Path) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, PLACES, quorum=0.5)
    late: list[tuple[str, bytes]] = []

    def slow(site: str, answer: bytes) -> list[tuple[str, bytes | str]]:
        if site == "b" and b'"results"' in answer and not late:
            late.append((site, answer))
            return []
        return [(site, answer)]

    link.bend = slow
    s = replace(s, side=replace(s.side, deadline=1000.0))
    rounds = small.rounds(s, engine=engine)
    first = next(rounds)
    assert [r.client for r in first.replies] == [0, 2, 3]
    assert [(e["event"], e["client"]) for e in first.events] == [("timed out", 1)]
    link.bend = lambda site, answer: [(site, answer), *([late.pop()] if late else [])]
    second = next(rounds)
    assert [r.client for r in second.replies] == [0, 1, 2, 3]
    (event,) = second.events
    assert (event["event"], event["site"]) == ("ignored", "b")
    assert "late, or came twice" in event["why"]


def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    s = fedper()
    expected = [r.state for r in small.rounds(s)]
    engine, link = loopback.federation(s, tmp_path, PLACES)
    link.bend = lambda site, answer: [(site, answer), (site, answer)]
    found = list(small.rounds(s, engine=engine))
    same(found[-1].state, expected[-1])
    assert {e["event"] for done in found for e in done.events} == {"ignored"}


def test_a_site_that_refuses_says_why(tmp_path: Path) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, PLACES)
    link.premises["c"].refuses = "versions.pfedsim: 1.0 -> 2.0"
    with pytest.raises(TooFew, match=r"its site 'c' says: versions\.pfedsim: 1\.0 -> 2\.0"):
        list(small.rounds(s, engine=engine))


def test_a_site_with_other_clients_than_it_is_bound_to_is_refused(tmp_path: Path) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, PLACES)
    link.premises["c"].clients = [2, 3]
    with pytest.raises(TooFew, match="'c' holds clients 2, 3, and the federation's file binds it to 3"):
        list(small.rounds(s, engine=engine))
    with pytest.raises(Error, match="client 1 is bound to two sites, 'a' and 'b'"):
        bound({"a": [0, 1], "b": [1]})
    with pytest.raises(Error, match="without a gap; 1 is missing"):
        bound({"a": [0], "b": [2]})


def test_scores_stay_at_a_site_that_does_not_share_them(tmp_path: Path) -> None:
    s = fedper()
    engine, link = loopback.federation(s, tmp_path, PLACES)
    link.premises["a"].shares_scores = False
    last = list(small.rounds(s, engine=engine))[-1].state
    scores = small.score(s, last, engine=engine)
    assert [c.absent for c in scores.clients] == [
        "its scores stay at its site",
        "",
        "its scores stay at its site",
        "",
    ]
    assert len((tmp_path / "a" / "score.jsonl").read_text().splitlines()) == 2


def test_the_final_models_stay_at_the_sites(tmp_path: Path) -> None:
    s = fedper()
    states = [r.state for r in small.rounds(s)]
    expected = {c.client: c.model for c in small.score(s, states[-1], models=True).clients}
    engine, link = loopback.federation(s, tmp_path, PLACES)
    last = list(small.rounds(s, engine=engine))[-1].state
    scores = small.score(s, last, engine=engine, stays=True)
    assert all(c.model is None and not len(c.labels) for c in scores.clients)
    found = {i: model for here in link.premises.values() for i, model in here.models.items()}
    assert all(found[i].equal(expected[i]) for i in range(4))


def test_work_that_fails_is_an_answer_and_its_trace_stays_at_the_site(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Fails(Method):
        def begin(self, job: Job):
            if job.client == 2:
                raise ValueError("patient 17")
            return super().begin(job)

    s = small.session(Fails(), rounds=1)
    engine, _ = loopback.federation(s, tmp_path, PLACES)
    (done,) = small.rounds(s, engine=engine)
    assert [r.client for r in done.replies] == [0, 1, 3]
    assert "patient 17" in (tmp_path / "a" / "failed.jsonl").read_text()
    assert "Traceback" not in str(done.events)


def test_a_site_notes_what_it_sent_in_bytes(tmp_path: Path) -> None:
    import json

    s = fedper()
    engine, _ = loopback.federation(s, tmp_path, PLACES)
    list(small.rounds(s, engine=engine))
    lines = [json.loads(line) for line in (tmp_path / "a" / "sent.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["opened"] + 4 * ["results"]
    assert [c["client"] for c in lines[2]["clients"]] == [0, 2]
    assert lines[2]["clients"][0] == {"client": 0, "round": 2, "task": "train", "sent": ["model"]}
    assert lines[2]["bytes_out"] > 2 * 4 * engine.wire.travels


def test_a_run_that_began_on_one_machine_is_not_continued_by_sites(tmp_path: Path) -> None:
    s = fedper()
    saved = next(iter(small.rounds(s))).state
    engine, _ = loopback.federation(s, tmp_path, PLACES)
    with pytest.raises(Error, match="sites cannot continue it"):
        next(iter(small.rounds(s, saved, engine=engine)))


def test_a_client_without_a_site_is_named(tmp_path: Path) -> None:
    s = fedper()
    engine, _ = loopback.federation(s, tmp_path, [[0], [1], [2]])
    with pytest.raises(Error, match="client 3 has no site"):
        list(small.rounds(s, engine=engine))
