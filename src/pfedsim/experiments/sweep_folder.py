"""A sweep's folder: the store of its trials, and the table, the picture and the best settings beside it."""

from __future__ import annotations

from pathlib import Path

from pfedsim import durable
from pfedsim.experiments.store import delete_runs, is_of_store
from pfedsim.runs import names

TRIALS = "trials"  # the folder of the store
BEST_FILE = "best.toml"
BESIDE = ("table.md", "table.csv", BEST_FILE, "figures", "figures/sweep.png")


def is_sweep(place: Path) -> bool:
    """Whether a folder contains only what `sweep` writes, or is empty."""
    if not place.is_dir():
        return False
    found = [durable.final_name(p.name) for p in place.iterdir()]
    return not found or (TRIALS in found and all(name in (TRIALS, *BESIDE) for name in found))


def delete(place: Path) -> None:
    """Delete a sweep. Refuses one that is in use, and one with files that pfedsim did not write."""
    names.refuse_others(place, _is_ours)
    delete_runs(place / TRIALS)
    durable.remove(place, _is_ours)


def _is_ours(name: str) -> bool:
    """Whether `sweep` writes a file or folder of this name, relative to its folder."""
    first, _, rest = name.partition("/")
    if first == TRIALS:
        return not rest or is_of_store(rest)
    folder, _, file = name.rpartition("/")
    return "/".join(filter(None, (folder, durable.final_name(file)))) in BESIDE
