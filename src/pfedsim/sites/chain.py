"""Drives a run across sites: submits a job, watches it, and submits the next from the run's checkpoint when it ended
before the run did."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedsim import durable, seal
from pfedsim.errors import Error
from pfedsim.runs.config import Config
from pfedsim.runs.news import news
from pfedsim.sites.admin import Admin, Unreached, job_folder
from pfedsim.sites.segment import CHAIN, DONE, FAILED, alive, beside, outcome

LOOK = 0.5  # seconds between looks at a job
TO_BEGIN = 60.0  # seconds that a job may take to give its first sign of life
SILENCE = 10.0  # seconds without a sign of life after which a job counts as dead
IN_VAIN = 10  # jobs in a row without a finished round
ENDED = "FINISHED"
Say = Callable[[str], None]


@dataclass(frozen=True)
class How:
    """`quorum`: the share of a wave's clients that must answer. `deadline`: seconds that a wave may take. `poll`:
    seconds between two questions of a site for work. `silence`: seconds after which a quiet site is lost."""

    quorum: float = 1.0
    deadline: float | None = None
    poll: float = 0.2
    silence: float = 15.0
    allow_drift: bool = False


@dataclass
class Chain:
    """A run by its name, in the hub's folder for runs."""

    admin: Admin
    runs: Path
    name: str
    config: Config
    how: How = field(default_factory=How)
    say: Say = print
    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.runs / self.name

    def drive(self) -> Path:
        """Until the run is finished; what is under way already is joined. Raises an error if it cannot go on."""
        folder = beside(self.runs, self.name)
        durable.make_folder(folder)
        with durable.in_use(folder):
            record = self._record(folder)
            in_vain = 0
            job = record["jobs"][-1] if record["jobs"] else None
            if job is not None and not self._lives(folder, job):
                job = None
            while not self._finished():
                before = self._round()
                if job is None:
                    job = self._submit(record)
                    record["jobs"].append(job)
                    self._keep(folder, record)
                why = self._watch(folder, job)
                if self._finished():
                    break
                in_vain = 0 if self._round() > before else in_vain + 1
                if in_vain == IN_VAIN:
                    raise Error(f"{IN_VAIN} jobs in a row finished no round; the last: {why}")
                self.say(f"the job ended after round {self._round()}: {why}; the next goes on from there")
                job = None
        return self.run

    def _record(self, folder: Path) -> dict[str, Any]:
        """The chain's own file: the run's number and its jobs. A run with other settings is another one."""
        path = folder / CHAIN
        asked = json.loads(json.dumps(self.config.plain()))
        if not path.is_file():
            record = {"run": secrets.token_hex(16), "config": asked, "jobs": []}
            self._keep(folder, record)
            return record
        record = seal.load(path, "the record of a run across sites")
        if record["config"] != asked:
            raise Error(f"{self.run} is a run with other settings; choose another name")
        return record

    def _keep(self, folder: Path, record: dict[str, Any]) -> None:
        durable.write(folder / CHAIN, seal.sealed(record).encode())

    def _submit(self, record: dict[str, Any]) -> str:
        sites = list(self.admin.federation.sites)
        fewest = len(sites) if self.how.quorum >= 1 else 1
        arguments = {
            "name": self.name,
            "run_id": record["run"],
            "config": json.dumps(record["config"]),
            "quorum": self.how.quorum,
            "deadline": self.how.deadline,
            "allow_drift": self.how.allow_drift,
            "silence": self.how.silence,
        }
        with job_folder(self.name, sites, fewest, arguments, self.how.poll) as job:
            return self._patiently(lambda: self.admin.submit(job))

    def _lives(self, folder: Path, job: str) -> bool:
        """Whether a job of an earlier driver is still on its way."""
        if outcome(folder, job):
            return False
        status = self._patiently(lambda: self.admin.status(job))
        return bool(status) and not status.startswith(ENDED)

    def _patiently(self, ask: Callable[[], str]) -> str:
        """An answer of the hub, however long it is away."""
        told = False
        while True:
            try:
                return ask()
            except Unreached as error:
                if not told:
                    self.say(f"{error}; waiting for it")
                told = True
                self.pause(LOOK)

    def _watch(self, folder: Path, job: str) -> str:
        """Until this job is over; why it ended."""
        began, heard, shown, told = self.now(), 0.0, self._round(), False
        while True:
            if ended := outcome(folder, job):
                if ended["how"] == FAILED:
                    raise Error(str(ended["why"]))
                return str(ended["why"]) if ended["how"] != DONE else ""
            sign = alive(folder)
            begun = sign.get("job") == job
            if begun and float(sign["at"]) > began:
                heard = float(sign["at"])
            while shown < self._round():
                shown += 1
                self.say(f"round {shown}")
            silent = self.now() - (heard or began)
            if silent > (SILENCE if heard else LOOK):
                status = self._status(job)
                if status is not None and status.startswith(ENDED) and not outcome(folder, job):
                    return f"FLARE says {status}"
                if status == "SUBMITTED":
                    if not told:
                        self.say("waiting for the sites")
                    told, began = True, self.now()
                elif silent > (SILENCE if begun else TO_BEGIN):
                    if status is not None:
                        self.admin.stop(job)
                    return f"nothing was heard of it for {silent:.0f} seconds"
            self.pause(LOOK)

    def _status(self, job: str) -> str | None:
        """What the hub says of a job; None if it is away. A hub that has lost the job says that it ended."""
        try:
            return self.admin.status(job) or f"{ENDED}: unknown"
        except Error:
            return None

    def _finished(self) -> bool:
        return (self.run / "summary.json").is_file()

    def _round(self) -> int:
        try:
            return news(self.run).round
        except (Error, OSError):
            return 0


def progress(runs: Path) -> list[tuple[str, str, str, str, str]]:
    """Name, round, rounds, number of jobs and state of every run in the hub's folder."""
    found = []
    for folder in sorted(runs.glob("*.chain")):
        name = folder.name.removesuffix(".chain")
        try:
            jobs = len(seal.load(folder / CHAIN, "the record of a run across sites")["jobs"])
        except Error as error:
            found.append((name, "-", "-", "-", str(error)))
            continue
        try:
            now = news(runs / name)
        except Error:
            found.append((name, "0", "-", str(jobs), "not begun"))
            continue
        state = "finished" if now.finished else "running" if now.running else "stopped"
        found.append((name, str(now.round), str(now.rounds), str(jobs), state))
    return found
