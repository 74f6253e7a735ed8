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

RUNS = ".runs"  # contains the folders of unfinished runs


class Store:
    """Stores finished cells, and the run folders of unfinished ones."""

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
        """The cell's run folder while it is unfinished."""
        return self.folder / RUNS / cell.name.replace("/", "-")

    def find(self, cell: Cell) -> Record | None:
        """The finished cell, if it was run with its current settings."""
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
        """Write a finished cell atomically and delete its run folder."""
        path = self.path(record.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.part")
        aside.write_text(record.text(), encoding="utf-8")
        aside.replace(path)
        self._found.pop(path, None)
        shutil.rmtree(self.run_folder(record.cell), ignore_errors=True)
        return path

    def tidy(self) -> None:
        """Delete the folder of unfinished runs if it is empty. Call this only while nothing runs."""
        if (runs := self.folder / RUNS).is_dir() and not any(runs.iterdir()):
            runs.rmdir()

    def all(self) -> list[Record]:
        """Every finished cell, sorted by file name."""
        paths = sorted(self.folder.rglob("*.json"))
        return [read(path) for path in paths if RUNS not in path.relative_to(self.folder).parts]

    def records(self, cells: Iterable[Cell]) -> list[Record]:
        """The finished ones of these cells, in order."""
        return [record for cell in cells if (record := self.find(cell))]


def _agrees(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether the recorded settings match the current ones. Settings and options added since then are ignored; a
    removed or changed one makes it a different run."""

    def same(a: Any, b: Any) -> bool:
        return _agrees(a, b) if isinstance(a, dict) and isinstance(b, dict) else bool(a == b)

    return all(same(now.get(key), value) for key, value in then.items() if key not in OF_THE_MACHINE)


def read(path: Path) -> Record:
    """Read a finished cell from its file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
        raise Error(f"{path} is not a valid cell: {error}; delete it to run the cell again") from error
