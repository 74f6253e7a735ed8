"""The names of the files that a run writes. Nothing else in a run's folder is ever deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from pfedsim import durable
from pfedsim.errors import Error

BASE = "base.safetensors"
PREDICTIONS = "predictions.safetensors"
FINAL = "final"  # the folder of the final state
CHECKPOINT = "checkpoint"
SUMS = "SHA256SUMS"
TIMINGS, MANIFEST = "timings.jsonl", "manifest.json"
MAY_DIFFER = (MANIFEST, TIMINGS)  # between runs with the same settings
LOGS = ("metrics.jsonl", "events.jsonl", "clients.csv", TIMINGS)
NUMBER = r"\d{5,}"
TOP = (
    "config.toml",
    MANIFEST,
    "partition.json",
    "summary.json",
    "report.html",
    PREDICTIONS,
    SUMS,
    *LOGS,
)
WITHIN = {  # folder -> its files
    "models": rf"{re.escape(BASE)}|index\.json|client-{NUMBER}\.safetensors",
    "similarity": rf"{NUMBER}\.safetensors",
    FINAL: r"state\.(safetensors|json)",
    CHECKPOINT: rf"{NUMBER}\.json|(state|delta)-{NUMBER}\.safetensors",
    "figures": r"(curves|clients|similarity(-\d+)?)\.png",
}
LAST = ("config.toml", TIMINGS)  # by which a run's folder is recognised, also half deleted


def is_ours(name: str) -> bool:
    """Whether a run writes a file or folder of this name, relative to its folder; also while it is in progress."""
    folder, _, file = name.rpartition("/")
    final = durable.final_name(file)
    if not folder:
        return final in TOP or name in WITHIN
    return folder in WITHIN and re.fullmatch(WITHIN[folder], final) is not None


def refuse_links(run: Path) -> None:
    """Raise an error if a symbolic link stands in the place of one of the run's files or folders."""
    for path in sorted(run.iterdir()) if run.is_dir() else ():
        if is_ours(path.name):
            durable.refuse_link(path)


def refuse_others(folder: Path, ours: Callable[[str], bool] = is_ours) -> None:
    """Raise an error if the folder contains anything that pfedsim did not write, or a link."""
    for place, folders, files in os.walk(folder):
        for path in sorted(Path(place, name) for name in (*folders, *files)):
            durable.refuse_link(path)
            if not ours(str(path.relative_to(folder))):
                raise Error(f"{path} was not written by pfedsim, so {folder} is not deleted; move it first")


def remove(run: Path) -> None:
    """Delete a run: all that it has written and nothing else. The summary goes first, so what a kill leaves is no
    finished run."""
    refuse_links(run)
    (run / "summary.json").unlink(missing_ok=True)
    durable.remove(run, lambda name: is_ours(name) and name not in LAST)
    for name in LAST:
        (run / name).unlink(missing_ok=True)
    durable.remove(run, is_ours)


def remove_checkpoint(run: Path) -> None:
    """Delete the checkpoints of a finished run."""
    folder = run / CHECKPOINT
    if folder.is_dir():
        durable.remove(folder, lambda name: is_ours(f"{CHECKPOINT}/{name}"))
