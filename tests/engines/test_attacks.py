"""Named attacks: who attacks, and what is sent instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small
import torch
from torch import Tensor

import pfedsim
from pfedsim.core.job import Work
from pfedsim.core.method import Message, Reply
from pfedsim.core.settings import Attack
from pfedsim.engines.attacks import Attacking, FlippedLabels, attackers
from pfedsim.engines.pool import Pool
from pfedsim.errors import Error

HOSTILE = 2


def steps(s, engine) -> dict[int, Tensor]:
    works = [Work(i, 3, Message("train", s.fed.initial), "train") for i in range(4)]
    travels = ~s.side.wire.kept
    found = {}
    for done in engine.run("train", works):
        assert isinstance(done.result, Reply)
        assert done.result.model.isnan().equal(s.side.wire.kept)
        found[done.client] = (done.result.model - s.fed.initial)[travels].double()
    return found


@pytest.mark.parametrize("kind", ["sign-flip", "scaling", "noise"])
def test_an_attacker_moves_so_many_times_as_far(kind: str) -> None:
    s = small.session()
    honest = steps(s, s.engine)
    attack = Attack(kind=kind, clients=(HOSTILE,), strength=4.0)  # type: ignore[arg-type]
    found = steps(s, Attacking(s.engine, attack, 42, 4))
    own, sent = honest.pop(HOSTILE), found.pop(HOSTILE)
    assert all(found[i].equal(honest[i]) for i in honest)
    assert float(sent.norm()) == pytest.approx(4 * float(own.norm()), rel=1e-4)
    cosine = float(torch.dot(sent, own) / sent.norm() / own.norm())
    if kind == "noise":
        assert abs(cosine) < 0.5
        assert steps(s, Attacking(s.engine, attack, 42, 4))[HOSTILE].equal(sent)  # drawn by address
        assert not steps(s, Attacking(s.engine, attack, 43, 4))[HOSTILE].equal(sent)
    else:
        assert cosine == pytest.approx(-1.0 if kind == "sign-flip" else 1.0, abs=1e-4)


def test_a_share_of_the_clients_is_drawn_from_the_seed() -> None:
    attack = Attack(kind="noise", share=0.2)
    drawn = attackers(attack, 42, 20)
    assert len(drawn) == 4
    assert drawn == attackers(attack, 42, 20) != attackers(attack, 43, 20)
    assert attackers(Attack(kind="noise", clients=(3,)), 42, 20) == {3}


def test_flipped_labels_are_for_training_alone() -> None:
    s = small.session()
    flipped = FlippedLabels(s.worker.samples, frozenset({HOSTILE}), 3)
    for client in range(4):
        for part in ("train", "validation", "test"):
            (x, y), (p, q) = (samples.part(client, part, 0.2) for samples in (s.worker.samples, flipped))
            assert x.equal(p)
            assert q.equal(2 - y if client == HOSTILE and part != "test" else y)
    assert len(flipped) == len(s.worker.samples)
    assert flipped.size(1) == s.worker.samples.size(1)


WORDS = {
    **{"rounds": 2, "epochs": 1, "join": 1.0, "model": "small:Net", "backend": "torch", "guard": "reject"},
    **{"score": {"every": 0, "finetune": 0}},
}


@pytest.mark.parametrize("kind", ["sign-flip", "label-flip"])
def test_an_attack_is_a_setting_of_a_run(kind: str) -> None:
    honest = pfedsim.train(small.table(), "fedavg", **WORDS)
    run = pfedsim.train(small.table(), "fedavg", attack={"kind": kind, "clients": [HOSTILE]}, **WORDS)
    assert run.summary["models_digest"] != honest.summary["models_digest"]
    assert not run.incidents


def test_an_attacker_that_is_rejected_is_no_incident(tmp_path: Path) -> None:
    attack = {"kind": "scaling", "clients": [HOSTILE], "strength": 1e6}
    run = pfedsim.train(small.table(), "fedavg", tmp_path / "run", attack=attack, **WORDS)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e["client"]) for e in events] == [("rejected", HOSTILE)] * 2
    assert not run.incidents


def test_a_client_that_is_not_there_is_named() -> None:
    with pytest.raises(Error, match="attack names client 9: there are clients 0 to 3"):
        small.session(attack={"kind": "noise", "clients": [9]})


def test_attackers_in_workers_send_the_same_bits() -> None:
    s = small.session()
    attack = Attack(kind="noise", share=0.5)
    here = steps(s, Attacking(s.engine, attack, 42, 4))
    with Pool(s.worker, 2) as pool:
        there = steps(s, Attacking(pool, attack, 42, 4))
    assert all(here[i].equal(there[i]) for i in here)
