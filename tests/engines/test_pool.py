"""Any number of workers gives the serial engine's bytes; a worker that dies costs nothing but time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import small

import pfedsim
from pfedsim.core.engine import Absent, Done
from pfedsim.core.job import Work
from pfedsim.core.method import Message, Method, Reply
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


def _works(s, clients: Sequence[int] = range(4), round: int = 0) -> list[Work]:
    return [Work(i, round, Message("train", s.fed.initial), "train") for i in clients]


@dataclass(frozen=True)
class DiesOnce(Method):
    """Kills its worker at client 1's first try, and at each of client 2's until the folder says stop."""

    folder: str = ""

    def begin(self, job):
        mark = Path(self.folder) / f"{job.client}"
        stop = (Path(self.folder) / "stop").exists()
        if not stop and (job.client == 2 or (job.client == 1 and not mark.exists())):
            mark.touch()
            os._exit(9)
        return super().begin(job)


def test_a_dead_workers_client_runs_again_and_after_two_deaths_is_absent(tmp_path: Path) -> None:
    s = small.session(DiesOnce(str(tmp_path)))
    with Pool(s.worker, 2) as pool:
        results = {done.client: done for done in pool.run("train", _works(s))}
        assert {i for i, done in results.items() if isinstance(done, Done)} == {0, 1, 3}
        assert isinstance(results[2], Absent)
        died = [(e["client"], e["then"]) for e in pool.events if e["event"] == "worker died"]
        assert sorted(died) == [(1, "is run again"), (2, "counts as absent"), (2, "is run again")]
        pool.events.clear()
        (tmp_path / "stop").touch()
        first = {done.client: done.result for done in pool.run("train", _works(s))}  # it is whole again
    for done in Serial(s.worker).run("train", _works(s)):
        assert done.result.model.nan_to_num(0).equal(first[done.client].model.nan_to_num(0))


@dataclass(frozen=True)
class Deadly(Method):
    """Client 1's worker dies whenever it trains."""

    def finish(self, job, ends):
        if job.client == 1:
            os._exit(9)
        return super().finish(job, ends)


def test_the_run_goes_on_without_a_client_whose_worker_always_dies() -> None:
    s = small.session(Deadly())
    with Pool(s.worker, 2) as pool:
        rounds = list(small.rounds(s, engine=pool))
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
        Pool(s.worker, 2) as pool,
        pytest.raises(
            HookError,
            match=r"Broken.begin failed for client \d in round 1 \(test_pool.py, line \d+\): ValueError: no start",
        ),
    ):
        list(small.rounds(s, engine=pool))


@dataclass(frozen=True)
class Numbered(Method):
    """Replies say which round they belong to."""

    def finish(self, job, ends):
        reply, memory = super().finish(job, ends)
        return replace(reply, info={**reply.info, "round": job.round}), memory


def test_answers_to_a_wave_that_was_given_up_never_reach_the_next() -> None:
    s = small.session(Numbered())
    with Pool(s.worker, 3) as pool:
        for wave in range(5):
            first = pool.run("train", _works(s, round=wave))
            assert next(iter(first)).result.info["round"] == wave
            first.close()
            found = list(pool.run("train", _works(s, round=wave + 100)))
            assert {done.result.info["round"] for done in found} == {wave + 100}
            assert sorted(done.client for done in found) == [0, 1, 2, 3]


@dataclass(frozen=True)
class Sleeps(Method):
    """Client 2 never comes back."""

    def begin(self, job):
        while job.client == 2:
            time.sleep(60)
        return super().begin(job)


def test_after_the_deadline_who_is_missing_is_absent_and_the_pool_goes_on() -> None:
    s = small.session(Sleeps())
    with Pool(s.worker, 2) as pool:
        found = {done.client: done for done in pool.run("train", _works(s, clients=(0, 1, 3)))}
        assert all(isinstance(done, Done) for done in found.values())
        (missing,) = pool.run("train", _works(s, clients=(2,)), deadline=0.01)
        assert isinstance(missing, Absent)
        assert (missing.client, missing.event) == (2, "timed out")
        assert [done.client for done in pool.run("train", _works(s, clients=(3,)))] == [3]


def test_after_the_deadline_a_serial_engine_asks_nobody() -> None:
    s = small.session()
    found = list(Serial(s.worker).run("train", _works(s), deadline=-1.0))
    assert [(done.client, done.event) for done in found] == [(i, "timed out") for i in range(4)]


def test_a_serial_reply_after_the_deadline_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    s = small.session()
    times = iter([0.0, 0.1, 9.0, 9.1, 9.2, 9.3])  # the first client takes nine seconds

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return next(times)

    monkeypatch.setattr("pfedsim.engines.serial.time", Clock)
    found = list(Serial(s.worker).run("train", _works(s), deadline=5.0))
    assert [(done.client, done.event) for done in found] == [(i, "timed out") for i in range(4)]


@dataclass(frozen=True)
class Stops(Method):
    """Client 2 stops its worker, as SIGSTOP from outside would."""

    def begin(self, job):
        if job.client == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().begin(job)


def test_a_stopped_worker_is_killed_and_replaced_and_its_client_absent() -> None:
    s = small.session(Stops())
    with Pool(s.worker, 1, limit=0.2) as pool:
        (missing,) = pool.run("train", _works(s, clients=(2,)))
        assert isinstance(missing, Absent)
        assert (missing.client, missing.event) == (2, "timed out")
        assert missing.why == "its work took more than 0.2 seconds; its worker was killed and replaced"
        pool.limit = 3600.0
        assert [done.client for done in pool.run("train", _works(s, clients=(3,)))] == [3]


def test_a_worker_that_was_stopped_between_two_jobs_does_not_stall_the_run() -> None:
    s = small.session()
    with Pool(s.worker, 1, limit=3600.0) as pool:
        list(pool.run("train", _works(s, clients=(0,))))
        pool.limit = 0.2
        os.kill(pool._workers[0].process.pid, signal.SIGSTOP)
        (missing,) = pool.run("train", _works(s, clients=(1,)))
        assert (missing.client, missing.event) == (1, "timed out")
        pool.limit = 3600.0
        assert [done.client for done in pool.run("train", _works(s, clients=(1,)))] == [1]


@dataclass(frozen=True)
class Unpicklable(Method):
    """Client 1's result cannot go through a pipe."""

    def finish(self, job, ends):
        reply, memory = super().finish(job, ends)
        return (Odd(**vars(reply)) if job.client == 1 else reply), memory


class Odd(Reply):
    def __reduce__(self):
        raise TypeError("this reply stays here")


def test_a_result_that_cannot_be_sent_costs_one_client() -> None:
    s = small.session(Unpicklable())
    with Pool(s.worker, 2) as pool:
        found = {done.client: done for done in pool.run("train", _works(s))}
    assert isinstance(found.pop(1), Absent)
    assert all(isinstance(done, Done) for done in found.values())
    assert not pool.events
