"""The progress of a run, read from its folder while it runs."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedsim.errors import Error
from pfedsim.runs import config as configs
from pfedsim.runs.reader import not_a_run


@dataclass(frozen=True)
class News:
    """A snapshot of a run's progress."""

    title: str
    rounds: int
    records: list[dict[str, Any]]
    """metrics.jsonl: loss and bytes of each round"""
    scores: list[dict[str, Any]]
    """metrics.jsonl: the scores on the test parts"""
    events: list[dict[str, Any]]
    seconds: float
    silence: float
    """seconds since the last write"""
    finished: bool
    running: bool = True
    """whether a process has locked the folder; True where the file system cannot tell"""

    @property
    def stopped(self) -> bool:
        return not self.finished and not self.running

    @property
    def round(self) -> int:
        return max((r["round"] for r in self.records), default=0)


def news(folder: Path) -> News:
    """Read the folder from scratch, which also works for a run that is resumed in between."""
    if not (folder / "config.toml").is_file():
        raise Error(not_a_run(folder))
    running = is_locked(folder)  # first, because a run writes its summary before it releases the lock
    finished = (folder / "summary.json").is_file()  # before the logs, which are then complete
    written = [p for p in (folder / "config.toml", folder / "metrics.jsonl") if p.is_file()]
    silence = max(0.0, time.time() - max(p.stat().st_mtime for p in written))
    settings = configs.load(folder / "config.toml")
    metrics = complete_records(folder / "metrics.jsonl")
    return News(
        title(settings),
        int(settings.get("rounds", 0)),
        [m for m in metrics if "train_loss" in m],
        [m for m in metrics if m.get("split") == "test"],
        complete_records(folder / "events.jsonl"),
        sum(t.get("seconds", 0) for t in complete_records(folder / "timings.jsonl")),
        silence,
        finished,
        running,
    )


def is_locked(folder: Path) -> bool:
    """Whether a process has locked this run's folder (`durable.locked`); True where that is unknown. The check
    takes a shared lock, so several processes can check at once."""
    try:
        descriptor = os.open(folder / "timings.jsonl", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def title(settings: Mapping[str, Any]) -> str:
    """A one-line title of a resolved configuration."""
    method, data, clients, seed = (settings.get(key) for key in ("method", "data", "clients", "seed"))
    return f"{method} on {Path(str(data)).name}, {clients} clients, seed {seed}"


def complete_records(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a .jsonl file to which another process may be writing."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
