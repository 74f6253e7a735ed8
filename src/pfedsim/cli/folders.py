"""Decide what to do when the folder that a command writes to already exists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pfedsim.errors import Error
from pfedsim.experiments import sweep_folder
from pfedsim.experiments.folders import delete, is_comparison
from pfedsim.experiments.sweep_folder import is_sweep
from pfedsim.runs.reader import is_run_folder

Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="the folder to write (default: in runs/)")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="delete an earlier run in that folder first")]


def make_room(place: Path, resume: bool, fresh: bool) -> bool:
    """Whether to resume an earlier run in that folder. Deletes an earlier run only if the user asks for it."""
    if resume and fresh:
        raise Error("--resume continues an earlier run and --fresh deletes it; give one of them")
    if not place.exists():
        return False
    if not place.is_dir():
        raise Error(f"{place} is a file; --out names a folder")
    if not any(place.iterdir()) or resume:
        return resume
    if not fresh and is_run_folder(place) and sys.stdin.isatty() and sys.stdout.isatty():
        what = "a finished run" if (place / "summary.json").is_file() else "a run that was stopped"
        answer = typer.prompt(
            f"{place} holds {what}: resume it, start afresh (deletes it), or quit? [resume/fresh/quit]",
            default="resume",
        )
        if answer not in ("resume", "fresh"):
            raise typer.Exit(2)
        if answer == "resume":
            return True
        fresh = True
    if not fresh:
        raise Error(
            f"{place} already exists; give another --out, --resume to continue it, or --fresh to delete it first"
        )
    _remove(place)
    return False


def _remove(place: Path) -> None:
    """Delete earlier runs, but no other files and no run in use."""
    if place.resolve() == Path.cwd() or place.resolve() in Path.cwd().parents:
        raise Error(f"{place} contains the working directory; it is not deleted")
    swept = is_sweep(place)
    if not (swept or is_run_folder(place) or is_comparison(place)):
        raise Error(f"{place} contains more than a pfedsim run; it is not deleted")
    if place.is_symlink():
        raise Error(f"{place} is a symbolic link; delete its target yourself, or give another --out")
    if swept:
        sweep_folder.delete(place)
    else:
        delete(place)
