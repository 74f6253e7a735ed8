"""Hostile bytes: a site answers them, a hub goes on without their sender, and nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import loopback
import pytest
import small
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedsim.methods import parse
from pfedsim.runs.checkpoint import packed as safetensors_of
from pfedsim.runs.setup import Session
from pfedsim.sites import messages, packet
from pfedsim.sites.engine import ROOM
from pfedsim.sites.messages import Envelope, Refusal, Unpacker
from pfedsim.sites.packet import Malformed

PLACES = [[0, 2], [1], [3]]
Answer = list[tuple[str, bytes | str]]


@pytest.fixture(scope="module")
def session() -> Session:
    return small.session(parse("fedper", {}), rounds=3)


@pytest.fixture(scope="module")
def posted(session: Session) -> list[tuple[str, bytes]]:
    """The packets of an ordinary run, and what the sites answer."""
    with TemporaryDirectory() as folder:
        engine, link = loopback.federation(session, Path(folder), PLACES)
        list(small.rounds(session, engine=engine))
        return link.posted


def body_of(answer: bytes) -> Any:
    return messages.unsealed(answer)[0].body


@given(data=st.binary(max_size=300))
def test_a_site_answers_any_bytes_with_a_refusal(session: Session, data: bytes) -> None:
    with TemporaryDirectory() as folder:
        _, link = loopback.federation(session, Path(folder), PLACES)
        assert isinstance(body_of(link.sites["a"].handle(data)), Refusal)


@settings(max_examples=8)
@given(st.data())
def test_a_site_answers_damaged_packets_and_keeps_what_counts(
    session: Session, posted: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    """Whatever comes after an ordinary round, the accepted memory of that round stays readable."""
    with TemporaryDirectory() as folder:
        engine, link = loopback.federation(session, Path(folder), PLACES)
        rounds = small.rounds(session, engine=engine)
        next(rounds)
        accepted = engine.memories.elsewhere()[1]
        own = [p for site, p in link.posted if site == "b"] + [p for site, p in posted if site == "b"]
        good = data.draw(st.sampled_from(own))
        for _ in range(5):
            answer = link.sites["b"].handle(data.draw(damaged(good)))
            assert body_of(answer).kind in ("refusal", "results", "opened")
        state = Path(folder) / "b" / "state" / loopback.RUN / "client-00001" / f"{accepted}.state"
        assert state.is_file()
        done = next(rounds)
        assert 1 in [r.client for r in done.replies]


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """A packet cut short, with bytes changed, or with something at its end."""

    def changed(edits: list[tuple[int, int]]) -> bytes:
        out = bytearray(good)
        for place, value in edits:
            out[place % len(out)] = value
        return bytes(out)

    edits = st.lists(st.tuples(st.integers(0, len(good)), st.integers(0, 255)), min_size=1, max_size=20)
    cut = st.integers(0, len(good)).map(lambda n: good[:n])
    return st.one_of(cut, edits.map(changed), st.binary(min_size=1, max_size=20).map(lambda b: good + b))


FACTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=8)
@given(where=st.lists(st.integers(0, 200), min_size=1, max_size=4), value=FACTS)
def test_a_hub_goes_on_without_a_site_that_says_anything_else(
    session: Session, where: list[int], value: Any
) -> None:
    """One fact of site b's answer becomes something else; sites a and c count."""

    def bend(site: str, answer: bytes) -> Answer:
        if site != "b":
            return [(site, answer)]
        facts, tensors = packet.opened(answer)
        content = json.loads(facts)
        leaves = paths(content)
        for n in where:
            put(content, leaves[n % len(leaves)], value)
        return [(site, b"".join(packet.packed(json.dumps(content).encode(), tensors)))]

    goes_on(session, bend)


@settings(max_examples=8)
@given(st.data())
def test_a_hub_goes_on_without_a_site_that_sends_damaged_packets(
    session: Session, data: st.DataObject
) -> None:
    goes_on(session, lambda site, answer: [(site, data.draw(damaged(answer)) if site == "b" else answer)])


def goes_on(session: Session, bend: Callable[[str, bytes], Answer]) -> None:
    with TemporaryDirectory() as folder:
        engine, link = loopback.federation(session, Path(folder), PLACES, quorum=0.5)
        link.bend = bend
        hurried = replace(session, side=replace(session.side, deadline=1000.0))
        for done in small.rounds(hurried, engine=engine):
            assert {0, 2, 3} <= {r.client for r in done.replies}
            assert engine.wire.part_that_travels(done.server.model).isfinite().all()


def paths(content: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value."""
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    return [here] * bool(here) + [way for key, value in inner for way in paths(value, (*here, key))]


def put(content: Any, way: tuple[Any, ...], value: Any) -> None:
    """Replaces the value at the end of this way, if an earlier replacement has not cut the way off."""
    for key in way[:-1]:
        if not there(content, key):
            return
        content = content[key]
    if there(content, way[-1]):
        content[way[-1]] = deepcopy(value)


def there(content: Any, key: Any) -> bool:
    if isinstance(content, list):
        return isinstance(key, int) and key < len(content)
    return isinstance(content, dict) and key in content


def answers(
    session: Session, change: Callable[[Envelope, dict[str, torch.Tensor]], bytes | None]
) -> list[str]:
    """The events of a run in which site b's results are changed."""
    with TemporaryDirectory() as folder:
        engine, link = loopback.federation(session, Path(folder), PLACES, quorum=0.5)

        def bend(site: str, answer: bytes) -> Answer:
            envelope, tensors = messages.unsealed(answer)
            if (
                site == "b"
                and envelope.body.kind == "results"
                and (new := change(envelope, tensors)) is not None
            ):
                return [(site, new)]
            return [(site, answer)]

        link.bend = bend
        hurried = replace(session, side=replace(session.side, deadline=1000.0))
        found = list(small.rounds(hurried, engine=engine))
        assert all({0, 2, 3} <= {r.client for r in done.replies} for done in found)
        assert not any(1 in {r.client for r in done.replies} for done in found)
        return [e["why"] for done in found for e in done.events]


def test_an_answer_of_another_run_site_or_client_is_not_taken(session: Session) -> None:
    def other(**fields: Any) -> Callable[[Envelope, dict[str, torch.Tensor]], bytes]:
        return lambda envelope, tensors: messages.sealed(envelope.model_copy(update=fields), tensors)

    def of_client(number: int) -> Callable[[Envelope, dict[str, torch.Tensor]], bytes]:
        def change(envelope: Envelope, tensors: dict[str, torch.Tensor]) -> bytes:
            (one,) = envelope.body.answers  # type: ignore[union-attr]
            body = envelope.body.model_copy(update={"answers": [one.model_copy(update={"client": number})]})
            return messages.sealed(envelope.model_copy(update={"body": body}), tensors)

        return change

    assert "an answer is ignored: it answers another run" in answers(session, other(run="f" * 16))
    assert "an answer is ignored: it says that it comes from 'a'" in answers(session, other(site="a"))
    late = "an answer is ignored: it answers another request: it is late, or came twice"
    assert late in answers(session, other(request="f" * 32))
    assert "an answer is ignored: client 3 was not asked, or answered twice" in answers(
        session, of_client(3)
    )


def test_an_answer_of_an_earlier_round_is_not_taken(session: Session) -> None:
    """Replayed as it was, and with the present request's number: then the guard sees the round."""
    first: list[tuple[Envelope, dict[str, torch.Tensor]]] = []

    def replayed(envelope: Envelope, tensors: dict[str, torch.Tensor]) -> bytes | None:
        first.append((envelope, tensors))
        known, old = first[0]
        return (
            messages.sealed(known.model_copy(update={"request": envelope.request}), old)
            if len(first) > 1
            else None
        )

    with pytest.raises(AssertionError):  # round 1 itself is good
        answers(session, replayed)
    with TemporaryDirectory() as folder:
        engine, link = loopback.federation(session, Path(folder), PLACES, quorum=0.5)
        first.clear()

        def bend(site: str, answer: bytes) -> Answer:
            envelope, tensors = messages.unsealed(answer)
            new = replayed(envelope, tensors) if site == "b" and envelope.body.kind == "results" else None
            return [(site, new or answer)]

        link.bend = bend
        found = list(small.rounds(session, engine=engine))
    assert [1 in {r.client for r in done.replies} for done in found] == [True, False, False]
    assert "it answers 'train' of round 1" in found[1].events[0]["why"]


def test_an_oversized_answer_is_not_read(session: Session) -> None:
    big = b"\0" * (2 * ROOM)
    (why, *_) = answers(session, lambda envelope, tensors: big)
    assert f"it has {2 * ROOM:,} bytes, expected at most" in why


def test_a_small_packet_cannot_unpack_to_a_large_model(session: Session) -> None:
    keeps_all = replace(session.side.wire, kept=torch.ones_like(session.side.wire.kept))
    for rows in (10**12, 10**6):
        with pytest.raises(Malformed, match="expected rows of 0 entries"):
            Unpacker(keeps_all, {"t0": torch.empty(rows, 0)}).model("t0")


@pytest.mark.parametrize(
    "tensors",
    [{"t0": torch.zeros(3)}, {"facts": torch.zeros(2, 2)}, {"facts": torch.zeros(3, dtype=torch.uint8)}],
)
def test_what_is_no_packet_is_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(Malformed):
        messages.unsealed(b"".join(safetensors_of(tensors)))
