"""Any number of workers gives the serial engine's bytes; a worker that dies costs nothing but time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import small

import pfedsim
from pfedsim.core.client import run_client
from pfedsim.core.job import Work, Worker
from pfedsim.core.method import Memory, Message, Method
from pfedsim.core.server import Absent, run_rounds
from pfedsim.data.federation import Federation
from pfedsim.engines.pool import Pool
from pfedsim.engines.serial import Serial
from pfedsim.errors import HookError

MAY_DIFFER = {"timings.jsonl", "manifest.json"}


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name not in MAY_DIFFER
    }


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("method", ["pfedsim", "fedgen", "fedfomo", "fedap"])
def test_one_and_three_workers_write_the_same_bytes(
    digits: Federation, tmp_path: Path, method: str, backend: str
) -> None:
    words = {
        "rounds": 3,
        "epochs": 1,
        "join": 0.7,
        "local_steps": 2,
        "backend": backend,
        "score": {"every": 1},
    }
    for workers in (1, 3):
        pfedsim.train(digits, method, tmp_path / str(workers), workers=workers, **words)
    assert files(tmp_path / "1") == files(tmp_path / "3")


def _works(s, count: int = 4) -> list[Work]:
    return [Work(i, 0, Message("train", s.fed.initial), Memory(), "train") for i in range(count)]


def _die_once(site: Worker, work: Work, folder: str) -> int:
    """Kills its worker at client 1's first try, and at each of client 2's."""
    mark = Path(folder) / f"{work.client}"
    if work.client == 2 or (work.client == 1 and not mark.exists()):
        mark.touch()
        os._exit(9)
    return work.client


def test_a_dead_workers_client_runs_again_and_after_two_deaths_is_absent(tmp_path: Path) -> None:
    s = small.session()
    with Pool(small.site(s), 2) as pool:
        results = list(pool.map(_die_once, _works(s), str(tmp_path)))
        assert results[0] == 0
        assert results[1] == 1
        assert isinstance(results[2], Absent)
        assert results[2].client == 2
        assert results[3] == 3
        died = [(e["client"], e["then"]) for e in pool.events if e["event"] == "worker died"]
        assert sorted(died) == [(1, "is run again"), (2, "counts as absent"), (2, "is run again")]
        pool.events.clear()
        first = list(pool.map(run_client, _works(s)))  # the pool is whole again
    again = list(Serial(small.site(s)).map(run_client, _works(s)))
    for (reply, _), (same, _) in zip(first, again, strict=True):
        assert reply.model.nan_to_num(0).equal(same.model.nan_to_num(0))


@dataclass(frozen=True)
class Deadly(Method):
    """Client 1's worker dies whenever it trains."""

    def finish(self, job, ends):
        if job.client == 1:
            os._exit(9)
        return super().finish(job, ends)


def test_the_run_goes_on_without_a_client_whose_worker_always_dies() -> None:
    s = small.session(Deadly())
    with Pool(small.site(s), 2) as pool:
        rounds = list(run_rounds(s.method, s.fed, s.kept, pool, s.schedule, s.begin()))
    assert len(rounds) == 2
    assert all(1 not in [r.client for r in round.replies] for round in rounds)
    assert 1 not in rounds[-1].state.memories
    kinds = [e["event"] for e in rounds[0].events]
    assert kinds.count("absent") == 1
    assert kinds.count("worker died") == 2


@dataclass(frozen=True)
class Broken(Method):
    def begin(self, job):
        raise ValueError("no start")


def test_a_hook_that_fails_in_a_worker_is_named() -> None:
    s = small.session(Broken())
    with (
        Pool(small.site(s), 2) as pool,
        pytest.raises(
            HookError, match=r"Broken.begin failed for client \d in round 0: ValueError: no start"
        ),
    ):
        list(pool.map(run_client, _works(s)))


def _named(site: Worker, work: Work, wave: int) -> tuple[int, int]:
    return wave, work.client


def test_answers_to_a_map_that_was_given_up_never_reach_the_next(tmp_path: Path) -> None:
    s = small.session()
    with Pool(small.site(s), 3) as pool:
        for wave in range(5):
            first = pool.map(_named, _works(s), wave)
            assert next(iter(first)) == (wave, 0)
            first.close()
            assert list(pool.map(_named, _works(s), wave + 100)) == [(wave + 100, i) for i in range(4)]
