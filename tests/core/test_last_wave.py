"""What a method asks all clients after the last round, and norm statistics that a method shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import small
import torch
from torch import Tensor

from pfedsim.core.job import Job
from pfedsim.core.method import Fed, Memory, Message, Method, Phase, Reply, ServerState, StartingPoint
from pfedsim.core.server import last_wave
from pfedsim.errors import Error, Notice
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute
from pfedsim.runs.extend import extend
from pfedsim.runs.setup import prepare


@dataclass(frozen=True)
class Headstrong(Method):
    """FedAvg; after the last round every client trains a head of its own, which it serves from then on."""

    last = "heads"

    def begin(self, job: Job) -> StartingPoint:
        common = job.mine(job.message.model)
        own = job.memory.extra.get("own") if job.message.task == "score" else None
        return StartingPoint(common if own is None else own)

    def phases(self, job: Job) -> list[Phase]:
        if job.message.task == "heads":
            return [Phase(job.fed.layout.head, 2, job.fed.settings.lr)]
        return super().phases(job)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        if job.message.task == "heads":
            return job.reply(None), job.remember(ends[-1], own=ends[-1])
        return super().finish(job, ends)

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {} if message.task == "heads" else super().replies(fed, message)

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        return server if task == "heads" else super().aggregate(fed, server, task, replies, rng)


@dataclass(frozen=True)
class Sharing(Method):
    """FedAvg that averages norm statistics."""

    buffers = "shared"


WORDS = {
    "method": "test_last_wave:Headstrong",
    "model": "small:Net",
    "rounds": 2,
    "join": 0.5,
    "epochs": 1,
    "batch": 8,
    "lr": 0.1,
    "workers": 1,
    "score": {"every": 0},
}


def test_every_client_is_asked_once_more_and_serves_what_it_trained() -> None:
    s = small.session(Headstrong(), join=0.5)
    *_, done = small.rounds(s)
    last = last_wave(s.side, done.server)
    assert last is not None
    assert last.asked == (0, 1, 2, 3)
    assert last.server.round == done.server.round
    assert last.server.model[~s.side.wire.kept].equal(done.server.model[~s.side.wire.kept])
    memories, layout = s.side.snapshot(last.server).memories, s.fed.layout
    for client, one in enumerate(small.score(s, last.server, models=True).clients):
        assert one.model is not None
        assert one.model.equal(memories[client].extra["own"])
        changed = one.model != done.server.model
        assert changed[layout.head].any()
        assert not changed[layout.body].any()
    assert all(down and not up for down, up in last.traffic.values())


def test_a_method_without_one_asks_nothing_more() -> None:
    s = small.session()
    *_, done = small.rounds(s)
    assert last_wave(s.side, done.server) is None


def test_a_run_with_a_last_wave_says_so_and_is_extended_from_before_it(tmp_path: Path) -> None:
    federation = small.table()
    short = execute(check(WORDS), tmp_path / "short", federation)
    assert short.summary["last_wave"]["task"] == "heads"
    assert short.summary["last_wave"]["replies"] == 4
    assert short.summary["last_wave"]["bytes_up"] == 0
    with pytest.warns(Notice, match="keeps to its plan for 2 rounds"):
        longer = extend(short, 4, tmp_path / "longer", federation)
    whole = execute(check({**WORDS, "rounds": 4, "planned": 2}), tmp_path / "whole", federation)
    assert longer.summary["models_digest"] == whole.summary["models_digest"]
    assert longer.summary["served"] == whole.summary["served"]


@pytest.mark.parametrize("method", [Method(), Sharing()])
def test_a_method_may_share_norm_statistics_whatever_the_setting(method: Method) -> None:
    from pfedsim.runs.setup import prepare

    s = prepare(check({**WORDS, "method": "fedavg"}), small.table(), method)
    shared = method.buffers == "shared"
    assert (s.fed.settings.buffers == "shared") == shared == (s.config.buffers == "shared")
    assert bool((s.side.wire.kept & s.fed.layout.buffers).any()) != shared
    *_, done = s.rounds(s.begin())
    assert bool(done.server.model[s.fed.layout.buffers].isfinite().all()) == shared
    assert done.server.round == 2


def test_a_last_wave_and_the_choice_of_a_round_exclude_each_other() -> None:
    words = {**WORDS, "score": {"every": 1}, "validation": 0.2, "stop": {"round": "best"}}
    with pytest.raises(Error, match="'heads' after the last round"):
        prepare(check(words))
