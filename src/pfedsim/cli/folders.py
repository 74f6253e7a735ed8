"""What is done about a folder that exists already where a command wants to write."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from pfedsim.errors import Error
from pfedsim.experiments.folders import is_comparison
from pfedsim.runs.durable import held
from pfedsim.runs.reader import is_run_folder

Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="the folder to write (default: in runs/)")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="delete an earlier run in that folder first")]


def make_room(place: Path, resume: bool, fresh: bool) -> bool:
    """Whether an earlier run in that folder is continued. What is in the way is deleted only if the user says
    so."""
    if resume and fresh:
        raise Error("--resume goes on with an earlier run and --fresh deletes it; give one of them")
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
            f"{place} exists already; give another --out, --resume to go on with it, or --fresh to "
            "delete it first"
        )
    _remove(place)
    return False


def _remove(place: Path) -> None:
    """Deletes earlier runs, and nothing that is not ours or in use."""
    if place.resolve() == Path.cwd() or place.resolve() in Path.cwd().parents:
        raise Error(f"{place} holds the working directory; it is not deleted")
    if not (is_run_folder(place) or is_comparison(place)):
        raise Error(f"{place} holds more than a run of pfedsim; it is not deleted")
    if place.is_symlink():
        raise Error(f"{place} is a link; delete what it leads to yourself, or give another --out")
    with ExitStack() as stack:
        for timings in place.rglob("timings.jsonl"):
            stack.enter_context(held(timings.parent))
        shutil.rmtree(place)
