"""A run across sites is a chain of jobs. What a job leaves for the one who drives the chain, in a folder beside the
run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pfedsim import seal
from pfedsim.errors import Error

DONE, AGAIN, FAILED = "done", "again", "failed"
BEAT = 0.5  # seconds between two signs of life of a job
ALIVE, OUTCOME, CHAIN = "alive.json", "outcome.json", "chain.json"


def beside(runs: Path, name: str) -> Path:
    """The folder beside a run's."""
    return runs / f"{name}.chain"


def alive(folder: Path) -> dict[str, Any]:
    """Which job lives, and when it last said so; empty if none has said anything."""
    try:
        found = json.loads((folder / ALIVE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def outcome(folder: Path, job: str) -> dict[str, Any]:
    """How this job ended; empty if it has not."""
    try:
        found = seal.load(folder / OUTCOME, "the outcome of a job")
    except Error:
        return {}
    return found if found.get("job") == job else {}
