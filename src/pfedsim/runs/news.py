"""The progress of a run, read from its folder while it runs."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedsim.errors import Error
from pfedsim.runs import config as configs
from pfedsim.runs.names import TIMINGS
from pfedsim.runs.reader import Run, not_a_run

METRICS = {  # the types of what metrics.jsonl holds
    **dict.fromkeys(("round", "bytes_down", "bytes_up"), int),
    **dict.fromkeys(("train_loss", "micro", "mean", "worst_tenth"), float),
    "clients": list,
    "model": str,
}
NO_KINDS: Mapping[str, type] = {}
OF_ROUND = ("round", "clients", "bytes_down", "bytes_up")
OF_SCORE = ("round", "model", "micro", "mean", "worst_tenth")


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
    of = Run(folder).verified if finished else folder.joinpath
    settings = configs.load(of("config.toml"))
    if type(rounds := settings.get("rounds", 0)) is not int:
        raise Error(f"{folder / 'config.toml'} is damaged: rounds = {rounds!r} is not a number")
    metrics = complete_records(of("metrics.jsonl"), METRICS)
    return News(
        title(settings),
        rounds,
        _with(folder, [m for m in metrics if "train_loss" in m], OF_ROUND),
        _with(folder, [m for m in metrics if m.get("split") == "test"], OF_SCORE),
        complete_records(of("events.jsonl"), {"event": str}),
        sum(t.get("seconds") or 0 for t in complete_records(of(TIMINGS), {"seconds": float})),
        silence,
        finished,
        running,
    )


def is_locked(folder: Path) -> bool:
    """Whether a process has locked this run's folder (`durable.locked`); True where that is unknown. The check
    takes a shared lock, so several processes can check at once."""
    try:
        descriptor = os.open(folder / TIMINGS, os.O_RDONLY)
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


def _with(folder: Path, records: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The records, which must have these values."""
    for record in records:
        if absent := [name for name in names if name not in record]:
            raise Error(
                f"{folder / 'metrics.jsonl'} is damaged: a record has no {absent[0]!r} (pfedsim doctor {folder})"
            )
    return records


def complete_records(path: Path, kinds: Mapping[str, type] = NO_KINDS) -> list[dict[str, Any]]:
    """The complete lines of a .jsonl file to which another process may be writing. `kinds`: the types of some
    values, where a record has them."""
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            record = _record(line)
            if record is None or not all(
                _is(record[name], kinds[name]) for name in kinds.keys() & record.keys()
            ):
                raise Error(
                    f"{path} is damaged: line {number} is not a record of a run (pfedsim doctor {path.parent})"
                )
            found.append(record)
    return found


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is(value: Any, kind: type) -> bool:
    """Whether a value of a record has this type; null stands for a number that is not finite."""
    if kind is float:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return type(value) is kind
