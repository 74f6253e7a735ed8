"""Small runs that are stopped in the middle, and what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import small

from pfedsim.data.federation import Federation
from pfedsim.runs.config import Config, check
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import Progress
from pfedsim.runs.reader import Run

MAY_DIFFER = {"timings.jsonl", "manifest.json"}
FEDERATION = small.table((20, 9, 33, 12), test=6)
WORDS: dict[str, Any] = {
    "method": "pfedsim(rho=0.2)",
    "model": "small:Net",
    "rounds": 7,
    "join": 0.5,
    "epochs": 1,
    "batch": 8,
    "lr": 0.05,
    "backend": "torch",
    "workers": 1,
    "score": {"every": 2, "finetune": 0},
}


class Stop(BaseException):
    """Not an Exception: nothing may catch it on the way."""


def config(**words: Any) -> Config:
    return check({**WORDS, **words})


def whole(out: Path, federation: Federation = FEDERATION, **words: Any) -> Run:
    return execute(config(**words), out, federation)


def stop_after(out: Path, round: int, federation: Federation = FEDERATION, **words: Any) -> None:
    """A run that ends in the middle, its last round saved."""

    def watch(done: Progress) -> None:
        if done.round == round and not done.note:
            raise Stop

    try:
        execute(config(**words), out, federation, watch)
    except Stop:
        return
    raise AssertionError("it was not stopped")


def go_on(out: Path, federation: Federation | None = FEDERATION, **options: Any) -> tuple[Run, list[str]]:
    """The finished run, and what was said on the way."""
    notes: list[str] = []
    run = execute(
        None,
        out,
        federation,
        lambda done: notes.append(done.note) if done.note else None,
        resume=True,
        **options,
    )
    return run, notes


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by name; of those that may differ only the name."""
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {name: b"" if name in MAY_DIFFER else p.read_bytes() for name, p in files.items()}
