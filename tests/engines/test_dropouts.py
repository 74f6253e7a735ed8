"""Clients that drop out or come late, for every method: nobody else's bits change, and bytes are counted as
they were spent."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import small
import torch

from pfedsim.core.engine import Engine
from pfedsim.core.settings import Dropouts
from pfedsim.dev.conformance import session as images
from pfedsim.engines.dropouts import LATE, NEVER, Dropping
from pfedsim.engines.pool import Pool
from pfedsim.errors import Error, Notice
from pfedsim.methods import TWELVE, parse
from pfedsim.runs.config import check
from pfedsim.runs.setup import Session, one_thread
from pfedsim.runs.state import to_tensors


def rounds(s: Session, dropouts: Dropouts | None = None, engine: Engine | None = None) -> list[small.Seen]:
    engine = engine or s.engine
    engine = Dropping(engine, dropouts, s.fed.settings.seed) if dropouts else engine
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return list(small.rounds(s, engine=engine))


def same(a: small.Seen, b: small.Seen) -> bool:
    x, y = to_tensors(a.state), to_tensors(b.state)
    return x.keys() == y.keys() and all(
        x[k].equal(y[k]) or x[k].nan_to_num(9.0).equal(y[k].nan_to_num(9.0)) for k in x
    )


@pytest.mark.parametrize("name", TWELVE)
def test_a_dropped_client_disturbs_no_others_bits(name: str) -> None:
    """Client 2 never answers, or always late: the others end as if it had not been asked at all. And the
    round goes on."""
    s = images(parse(name), join=1.0, rounds=4)
    never, late = rounds(s, Dropouts(never_clients=(2,))), rounds(s, Dropouts(late_clients=(2,)))
    assert len(never) == len(late) == 4
    for a, b in zip(never, late, strict=True):
        assert same(a, b)  # what came too late is as if it had not been done
        assert 2 not in [r.client for r in a.replies]
        assert a.state.memories.get(2) is None
        assert {e["client"] for e in a.events} == {e["client"] for e in b.events} == {2}
        assert {e["event"] for e in a.events} == {NEVER}
        assert {e["event"] for e in b.events} == {LATE}
        assert a.traffic[2][1] == 0
        assert b.traffic[2][0] == a.traffic[2][0]
        assert (
            b.traffic[2][1] >= b.traffic[3][1]
        )  # a late reply was sent all the same; some methods ask again
    without = replace(s, schedule=[[i for i in sampled if i != 2] for sampled in s.schedule])
    if name != "fedap":  # which asks all clients for their statistics, client 2 too
        for a, b in zip(never, rounds(without), strict=True):
            assert same(a, b)


def test_shares_are_drawn_by_address() -> None:
    s = small.session(federation=small.table((9,) * 40, test=4), rounds=5)
    found = rounds(s, Dropouts(never=0.25, late=0.25))
    kinds = [e["event"] for r in found for e in r.events]
    # 200 draws of probability 1/4: five standard deviations are 31
    assert abs(kinds.count(NEVER) - 50) < 31
    assert abs(kinds.count(LATE) - 50) < 31
    again = rounds(s, Dropouts(never=0.25, late=0.25))
    assert [r.events for r in again] == [r.events for r in found]
    by_round = [frozenset(e["client"] for e in r.events) for r in found]
    assert len(set(by_round)) == 5
    gone = {(e["round"], e["client"]) for r in found for e in r.events}
    fewer = replace(
        s, schedule=[sampled[:20] for sampled in s.schedule]
    )  # who else was asked makes no difference
    assert {
        (e["round"], e["client"]) for r in rounds(fewer, Dropouts(never=0.25, late=0.25)) for e in r.events
    } == {(r, c) for r, c in gone if c in fewer.schedule[r - 1]}
    everyone = rounds(s, Dropouts(never=1.0))
    start = s.begin().model
    for round in everyone:
        assert round.replies == ()
        assert round.state.server.model[~s.side.wire.kept].equal(start[~s.side.wire.kept])


def test_a_pool_gives_the_same_bits_with_dropouts() -> None:
    s = small.session()
    with Pool(s.worker, 2) as pool:
        many = rounds(s, Dropouts(never=0.3, late=0.3), pool)
    for a, b in zip(many, rounds(s, Dropouts(never=0.3, late=0.3)), strict=True):
        assert same(a, b)
        assert a.events == b.events


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(Error, match="more than all clients together"):
        check({"dropouts": {"never": 0.6, "late": 0.6}})
    with pytest.raises(Error, match=r"did you mean 'dropouts.late_clients'\?"):
        check({"dropouts": {"late_client": [1]}})
    with pytest.raises(Error, match="names client 4: there are clients 0 to 3"):
        small.session(dropouts={"never_clients": [4]})


def test_scores_are_of_all_clients() -> None:
    s = small.session()
    engine = Dropping(s.engine, Dropouts(never=1.0), 0)
    scores = small.score(s, s.begin(), engine)
    assert [c.samples for c in scores.clients] == [10] * 4
    assert torch.isfinite(torch.tensor(scores.micro))
