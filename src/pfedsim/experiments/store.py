"""A folder of finished cells, one small JSON file each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pfedsim.errors import Error
from pfedsim.experiments.cell import FORMAT, OF_THE_MACHINE, Cell, Record

RUNS = ".runs"  # the folders of runs that are not finished yet


class Store:
    """Finds and keeps finished cells; a cell in progress has a run folder of its own here."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._paths: dict[str, Path] = {}  # by digest: a report looks for the same cell many times
        self._found: dict[Path, tuple[int, Record | None]] = {}

    def path(self, cell: Cell) -> Path:
        """The cell's JSON file."""
        if cell.digest not in self._paths:
            self._paths[cell.digest] = self.folder / f"{cell.name}.json"
        return self._paths[cell.digest]

    def run_folder(self, cell: Cell) -> Path:
        """Where the cell runs until it is finished."""
        return self.folder / RUNS / cell.name.replace("/", "-")

    def find(self, cell: Cell) -> Record | None:
        """The finished cell, if it was run with the settings that it would have now."""
        path = self.path(cell)
        if not path.is_file():
            return None
        written = path.stat().st_mtime_ns
        if self._found.get(path, (0,))[0] != written:
            record = read(path)
            now, then = cell.settings(), record.settings
            self._found[path] = written, record if _agrees(now, then) else None
        return self._found[path][1]

    def put(self, record: Record) -> Path:
        """Keeps a finished cell and removes its run folder. The file is written aside, then renamed."""
        path = self.path(record.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.part")
        aside.write_text(record.text())
        aside.replace(path)
        self._found.pop(path, None)
        shutil.rmtree(self.run_folder(record.cell), ignore_errors=True)
        return path

    def tidy(self) -> None:
        """Removes the folder of unfinished runs where there is none; only while nothing runs."""
        if (runs := self.folder / RUNS).is_dir() and not any(runs.iterdir()):
            runs.rmdir()

    def all(self) -> list[Record]:
        """Every finished cell, in the order of the files' names."""
        paths = sorted(self.folder.rglob("*.json"))
        return [read(path) for path in paths if RUNS not in path.relative_to(self.folder).parts]

    def records(self, cells: Iterable[Cell]) -> list[Record]:
        """Those of the cells that are finished, in their order."""
        return [record for cell in cells if (record := self.find(cell))]


def _agrees(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether recorded settings are the present ones. A setting or a method's option that is new since then
    does not count; one that is gone or has another value makes it another run."""

    def same(a: Any, b: Any) -> bool:
        return _agrees(a, b) if isinstance(a, dict) and isinstance(b, dict) else bool(a == b)

    return all(same(now.get(key), value) for key, value in then.items() if key not in OF_THE_MACHINE)


def read(path: Path) -> Record:
    """The finished cell in this file."""
    try:
        content = json.loads(path.read_text())
        if content.get("format") != FORMAT:
            raise Error(f"{path} is not a finished cell ({FORMAT!r} expected)")
        cell = Cell(content["words"], content["kind"], tuple(content["extra"].items()))
        scores = [
            value
            for model in ("served", "finetuned")
            for value in (content["found"].get(model) or {}).values()
        ]
        if not all(value is None or isinstance(value, int | float) for value in scores):
            raise ValueError("a score is not a number")
        return Record(cell, content["settings"], content["found"], content["made"])
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Error(f"{path} is not a whole cell: {error}; delete it to have it run again") from error
