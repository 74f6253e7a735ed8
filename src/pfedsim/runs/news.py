"""What the folder of a run under way says by now."""

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


@dataclass(frozen=True)
class News:
    """One look at the folder."""

    title: str
    rounds: int
    records: list[dict[str, Any]]
    """metrics.jsonl: a round's loss and bytes each"""
    scores: list[dict[str, Any]]
    """metrics.jsonl: the scores on the test parts"""
    events: list[dict[str, Any]]
    seconds: float
    silence: float
    """seconds since anything was written"""
    finished: bool
    running: bool = True
    """whether a process holds the folder; True where the file system cannot say"""

    @property
    def stopped(self) -> bool:
        return not self.finished and not self.running

    @property
    def round(self) -> int:
        return max((r["round"] for r in self.records), default=0)


def news(folder: Path) -> News:
    """Read anew each time, so that a run that is taken up again is followed too."""
    if not (folder / "config.toml").is_file():
        raise Error(
            f"{folder} is not a run's folder: there is no config.toml"
            if folder.is_dir()
            else f"there is no folder {folder}"
        )
    running = is_locked(folder)  # first: a run lets go of its folder after it has written its summary
    finished = (folder / "summary.json").is_file()  # then: what follows is all there is
    settings = configs.load(folder / "config.toml")
    metrics = whole_records(folder / "metrics.jsonl")
    return News(
        title(settings),
        int(settings.get("rounds", 0)),
        [m for m in metrics if "train_loss" in m],
        [m for m in metrics if m.get("split") == "test"],
        whole_records(folder / "events.jsonl"),
        sum(t.get("seconds", 0) for t in whole_records(folder / "timings.jsonl")),
        max(
            0.0,
            time.time()
            - max(
                path.stat().st_mtime
                for path in (folder / "config.toml", folder / "metrics.jsonl")
                if path.is_file()
            ),
        ),
        finished,
        running,
    )


def is_locked(folder: Path) -> bool:
    """Whether a process holds this run's folder (`durable.held`); True where that cannot be known. The lock is
    shared, so that several may look at once."""
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
    """What a resolved configuration is about."""
    method, data, clients, seed = (settings.get(key) for key in ("method", "data", "clients", "seed"))
    return f"{method} on {Path(str(data)).name}, {clients} clients, seed {seed}"


def whole_records(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that may be written to just now."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
