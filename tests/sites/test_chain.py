"""The driver of a chain of jobs, with a hub that is scripted: it joins, goes on, gives up and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfedsim import seal
from pfedsim.durable import in_use, make_folder
from pfedsim.errors import Error
from pfedsim.runs.config import check
from pfedsim.sites import chain as chains
from pfedsim.sites.admin import Unreached
from pfedsim.sites.chain import Chain, How, progress
from pfedsim.sites.files import FederationFile
from pfedsim.sites.segment import ALIVE, CHAIN, OUTCOME, beside

CONFIG = check({"data": "digits", "method": "fedavg", "rounds": 4})


class Scripted:
    """A hub whose jobs do what the script says, a step each time that the driver pauses."""

    federation = FederationFile(
        name="f", host="127.0.0.1", sites={"a": [0], "b": [1]}, admins={"l@f.org": "lead"}
    )

    def __init__(self, runs: Path, jobs: list[list[Any]]):
        self.runs, self.jobs, self.clock = runs, jobs, 1000.0
        self.submitted: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self.away = 0
        self.says = "RUNNING"

    def submit(self, folder: Path) -> str:
        if self.away:
            self.away -= 1
            raise Unreached("the hub does not answer")
        self.submitted.append(
            json.loads((folder / "app" / "config" / "config_fed_server.json").read_text())
        )
        return f"job-{len(self.submitted)}"

    def status(self, job: str) -> str:
        return self.says

    def stop(self, job: str) -> None:
        self.stopped.append(job)

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        k = len(self.submitted) - 1
        if k < 0 or not self.jobs[k]:
            return
        step, folder, job = self.jobs[k].pop(0), beside(self.runs, "run"), f"job-{k + 1}"
        if step == "sign":
            (folder / ALIVE).write_text(json.dumps({"job": job, "at": self.clock}))
        elif isinstance(step, int):
            run = self.runs / "run"
            run.mkdir(exist_ok=True)
            (run / "config.toml").write_text("rounds = 4\n")
            line = {"round": step, "train_loss": 1.0, "clients": [0], "bytes_down": 1, "bytes_up": 1}
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        else:
            how, why = step
            if how == "done":
                (self.runs / "run" / "summary.json").write_text("{}")
            (folder / OUTCOME).write_text(seal.sealed({"job": job, "run": "", "how": how, "why": why}))


def drive(tmp_path: Path, *jobs: list[Any], **how: Any) -> tuple[Scripted, list[str], Chain]:
    hub, said = Scripted(tmp_path, [list(job) for job in jobs]), []
    driver = Chain(hub, tmp_path, "run", CONFIG, How(**how), said.append, lambda: hub.clock, hub.pause)  # type: ignore[arg-type]
    return hub, said, driver


@pytest.fixture(autouse=True)
def _finished_without_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted run is finished when it has a summary; nothing else of it is read then."""
    known = chains.news
    monkeypatch.setattr(chains, "news", lambda run: None if (run / "summary.json").exists() else known(run))
    monkeypatch.setattr(Chain, "_round", lambda self: _rounds(self.run))


def _rounds(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.is_file() else 0


def test_jobs_follow_each_other_until_the_run_is_finished(tmp_path: Path) -> None:
    hub, said, driver = drive(
        tmp_path, ["sign", 1, ("again", "site 'b' is lost")], ["sign", 2, 3, 4, ("done", "")]
    )
    assert driver.drive() == tmp_path / "run"
    arguments = [one["workflows"][0]["args"] for one in hub.submitted]
    assert len(arguments) == 2
    assert arguments[0] == arguments[1]  # the run's number too
    assert "the job ended after round 1: site 'b' is lost; the next goes on from there" in said
    assert [line for line in said if line.startswith("round")] == [
        "round 1",
        "round 2",
        "round 3",
        "round 4",
    ]


def test_a_job_that_falls_silent_is_stopped_and_followed(tmp_path: Path) -> None:
    hub, said, driver = drive(tmp_path, ["sign", 1], ["sign", 2, 3, 4, ("done", "")])
    driver.drive()
    assert hub.stopped == ["job-1"]
    assert "nothing was heard of it for 10 seconds" in said[1] + said[2]


def test_a_job_that_fails_ends_the_chain_with_its_sentence(tmp_path: Path) -> None:
    _, _, driver = drive(tmp_path, ["sign", ("failed", "there is no method 'x'")])
    with pytest.raises(Error, match="there is no method 'x'"):
        driver.drive()


def test_a_driver_that_starts_again_joins_the_job_under_way(tmp_path: Path) -> None:
    hub, _, driver = drive(tmp_path, ["sign", 1, 2, 3, 4, ("done", "")])
    make_folder(beside(tmp_path, "run"))
    plain = json.loads(json.dumps(CONFIG.plain()))
    record = {"run": "f" * 32, "config": plain, "jobs": ["job-1"]}
    (beside(tmp_path, "run") / CHAIN).write_text(seal.sealed(record))
    hub.submitted.append({})
    driver.drive()
    assert len(hub.submitted) == 1


def test_a_hub_that_is_away_is_waited_for(tmp_path: Path) -> None:
    hub, said, driver = drive(tmp_path, ["sign", 1, ("done", "")])
    hub.away = 5
    driver.drive()
    assert said[0] == "the hub does not answer; waiting for it"


def test_jobs_without_a_round_are_not_repeated_for_ever(tmp_path: Path) -> None:
    jobs = [["sign", ("again", "site 'b' is lost")] for _ in range(20)]
    hub, _, driver = drive(tmp_path, *jobs)
    with pytest.raises(Error, match="10 jobs in a row finished no round; the last: site 'b' is lost"):
        driver.drive()
    assert len(hub.submitted) == 10


def test_one_driver_at_a_time_and_one_run_by_a_name(tmp_path: Path) -> None:
    _, _, driver = drive(tmp_path, ["sign", 1, ("done", "")])
    make_folder(beside(tmp_path, "run"))
    with in_use(beside(tmp_path, "run")), pytest.raises(Error, match="in use"):
        driver.drive()
    driver.drive()
    driver.config = CONFIG.model_copy(update={"rounds": 9})
    with pytest.raises(Error, match="a run with other settings"):
        driver.drive()


@pytest.mark.parametrize(("quorum", "fewest"), [(1.0, 2), (0.5, 1)])
def test_with_a_quorum_a_job_need_not_wait_for_every_site(
    tmp_path: Path, quorum: float, fewest: int
) -> None:
    found = []

    class Looks(Scripted):
        def submit(self, folder: Path) -> str:
            found.append(json.loads((folder / "meta.json").read_text())["min_clients"])
            return super().submit(folder)

    hub = Looks(tmp_path, [["sign", 1, ("done", "")]])
    Chain(
        hub, tmp_path, "run", CONFIG, How(quorum=quorum), lambda said: None, lambda: hub.clock, hub.pause
    ).drive()  # type: ignore[arg-type]
    assert found == [fewest]


def test_progress_lists_what_there_is(tmp_path: Path) -> None:
    _, _, driver = drive(tmp_path, ["sign", ("failed", "no")])
    with pytest.raises(Error):
        driver.drive()
    assert progress(tmp_path) == [("run", "0", "-", "1", "not begun")]
