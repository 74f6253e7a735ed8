"""What befell a run that its settings do not ask for is counted, also across a stop."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from typer.testing import CliRunner

import pfedsim
from pfedsim.cli.app import app
from pfedsim.core.job import Job
from pfedsim.core.method import Method

WORDS: dict[str, Any] = {
    **{"rounds": 4, "join": 1.0, "epochs": 1, "batch": 8, "model": "small:Net", "backend": "torch"},
    **{"score": {"every": 2, "finetune": 0}},
}


@dataclass(frozen=True)
class Sick(Method):
    """Client 1's hook fails; client 2 moves too far in round 2, and absurdly far in round 3."""

    def begin(self, job: Job) -> Any:
        if job.client == 1:
            raise ValueError("ill")
        return super().begin(job)

    def finish(self, job: Job, ends: Any) -> Any:
        reply, memory = super().finish(job, ends)
        if job.client == 2 and job.round in (1, 2):
            far = {1: 300, 2: 1e20}[job.round]
            reply = replace(reply, model=job.message.model + far * (ends[-1] - job.message.model))
        return reply, memory


def test_incidents_are_counted_by_kind_and_a_resumed_run_counts_the_same(tmp_path: Path) -> None:
    straight = pfedsim.train(small.table(), "test_incidents:Sick", tmp_path / "straight", **WORDS)
    # four trainings and two scores of client 1; client 2 counted once and was rejected once
    assert straight.summary["incidents"] == {"absent": 4, "absurd": 1, "rejected": 1, "unscored": 2}
    assert straight.incidents == "4 absent, 1 absurd, 1 rejected, 2 unscored"

    def stops(round: int, scores: Any, state: Any) -> None:
        if round == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        pfedsim.train(small.table(), "test_incidents:Sick", tmp_path / "again", on_round=stops, **WORDS)
    again = pfedsim.train(small.table(), "test_incidents:Sick", tmp_path / "again", resume=True, **WORDS)
    for name in ("summary.json", "events.jsonl", "metrics.jsonl", "clients.csv", "final/state.safetensors"):
        assert (again.path / name).read_bytes() == (straight.path / name).read_bytes()


def test_an_ordinary_run_and_asked_for_dropouts_are_not_marked() -> None:
    for more in ({}, {"dropouts": {"never_clients": [1], "late_clients": [2]}}):
        run = pfedsim.train(small.table(), "fedavg", **WORDS, **more)
        assert "incidents" not in run.summary
        assert run.incidents == ""


@dataclass(frozen=True)
class Frozen(Method):
    """Client 1 stops its worker in round 1."""

    def begin(self, job: Job) -> Any:
        if job.client == 1 and job.round == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().begin(job)


def test_a_stopped_worker_costs_one_reply_and_marks_the_run(tmp_path: Path) -> None:
    words = {**WORDS, "score": {"every": 0, "finetune": 0}, "workers": 1, "time_limit": 2.0}
    run = pfedsim.train(small.table(), "test_incidents:Frozen", tmp_path / "run", **words)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e["client"], e["round"]) for e in events] == [("timed out", 1, 2)]
    assert run.summary["incidents"] == {"timed out": 1}
    assert "time_limit" not in (run.path / "config.toml").read_text()  # it belongs to the machine


@dataclass(frozen=True)
class OwnMean(Method):
    def aggregate(self, fed: Any, server: Any, task: str, replies: Any, rng: Any) -> Any:
        return replace(server, model=torch.stack([reply.model for reply in replies]).mean(0))


def test_a_defence_that_a_method_does_not_use_is_named(tmp_path: Path) -> None:
    words = {**WORDS, "rounds": 1, "defence": {"rule": "median"}}
    run = pfedsim.train(small.table(), "test_incidents:OwnMean", tmp_path / "own", **words)
    why = "OwnMean.aggregate does not call self.mean, so defence.rule has no effect"
    assert json.loads((run.path / "events.jsonl").read_text())["why"] == why
    assert run.incidents == ""
    other = pfedsim.train(small.table(), "fedavg", tmp_path / "fedavg", **words)
    assert not (other.path / "events.jsonl").read_text()


def test_runs_with_an_unscored_client_can_be_compared_and_exported(tmp_path: Path) -> None:
    found = pfedsim.compare(small.table(), ["test_incidents:Sick", "fedavg"], out=tmp_path / "c", **WORDS)
    assert "Sick" in str(found)
    (sick,) = [p for p in (tmp_path / "c").iterdir() if "sick" in p.name.lower()]
    for words, code in (
        (["show", str(tmp_path / "c")], 0),
        (["show", str(tmp_path / "c"), "--html"], 0),
        (["export", str(sick), str(tmp_path / "out"), "--all", "--trust"], 3),
    ):
        told = CliRunner().invoke(app, words, catch_exceptions=False)
        assert told.exit_code == code
    assert "no model of clients 1: events.jsonl says why" in told.output
    assert (tmp_path / "out" / "client-00002").is_dir()
