"""A folder of finished cells, one small JSON file each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pfedsim import durable, seal
from pfedsim.errors import Error
from pfedsim.experiments.cell import FORMAT, OF_THE_MACHINE, Cell, Record
from pfedsim.runs import names

RUNS = ".runs"  # contains the folders of unfinished runs


class Store:
    """Stores finished cells, and the run folders of unfinished ones."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._paths: dict[str, Path] = {}  # by digest: a report looks for the same cell many times
        self._found: dict[Path, tuple[int, Record | None]] = {}
        self.damaged: dict[Path, str] = {}
        """what is wrong with the files that were looked at and could not be used; their cells count as missing"""

    def path(self, cell: Cell) -> Path:
        """The cell's JSON file."""
        if cell.digest not in self._paths:
            self._paths[cell.digest] = self.folder / f"{cell.name}.json"
        return self._paths[cell.digest]

    def run_folder(self, cell: Cell) -> Path:
        """The cell's run folder while it is unfinished."""
        return self.folder / RUNS / cell.name.replace("/", "-")

    def find(self, cell: Cell) -> Record | None:
        """The finished cell, if it is intact and was run with its current settings."""
        path = self.path(cell)
        if not path.is_file():
            return None
        written = path.stat().st_mtime_ns
        if self._found.get(path, (0,))[0] != written:
            record = self._read(path)
            agrees = record is not None and _agrees(cell.settings(), record.settings)
            self._found[path] = written, record if agrees else None
        return self._found[path][1]

    def _read(self, path: Path) -> Record | None:
        """The cell in this file; None if the file is damaged, which is remembered until it is intact again."""
        try:
            record = read(path)
        except Error as error:
            self.damaged[path] = str(error)
            return None
        self.damaged.pop(path, None)  # another process has run it again
        return record

    def put(self, record: Record) -> Path:
        """Write a finished cell atomically and delete its run folder."""
        path = self.path(record.cell)
        durable.make_folder(path.parent)
        durable.write(path, record.text().encode())
        self._found.pop(path, None)
        self.damaged.pop(path, None)
        if (run := self.run_folder(record.cell)).is_dir():
            names.remove(run)
        return path

    def tidy(self) -> None:
        """Delete the run folders of finished cells, which `put` leaves if it is killed, and the folder of unfinished
        runs if it is empty. Call this only while nothing runs."""
        runs = self.folder / RUNS
        if not runs.is_dir():
            return
        for record in self.all() if any(runs.iterdir()) else []:
            if (run := self.run_folder(record.cell)).is_dir() and self.find(record.cell) is not None:
                names.remove(run)
        durable.remove_empty(runs)

    def all(self) -> list[Record]:
        """Every finished cell that is intact, sorted by file name."""
        paths = sorted(self.folder.rglob("*.json"))
        ours = (path for path in paths if RUNS not in path.relative_to(self.folder).parts)
        return [record for path in ours if (record := self._read(path)) is not None]

    def records(self, cells: Iterable[Cell]) -> list[Record]:
        """The finished ones of these cells, in order."""
        return [record for cell in cells if (record := self.find(cell))]


def is_of_store(name: str) -> bool:
    """Whether a store writes a file or folder of this name, relative to its folder."""
    first, _, rest = name.partition("/")
    if first == RUNS:
        return names.is_ours(rest.partition("/")[2]) if "/" in rest else True
    return not rest or ("/" not in rest and durable.final_name(rest).endswith(".json"))


def delete_runs(folder: Path) -> None:
    """Delete the unfinished runs of a store. Refuses if one is in use."""
    runs = sorted((folder / RUNS).iterdir()) if (folder / RUNS).is_dir() else []
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(durable.locked(run))
        for run in runs:
            names.remove(run)


def _agrees(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether the recorded settings match the current ones. Settings and options added since then are ignored; a
    removed or changed one makes it a different run."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, tuple):  # JSON has lists only
            return bool(list(a) == b)
        return _agrees(a, b) if isinstance(a, dict) and isinstance(b, dict) else bool(a == b)

    return all(same(now.get(key), value) for key, value in then.items() if key not in OF_THE_MACHINE)


def read(path: Path) -> Record:
    """Read a finished cell from its file, which must match its sha256 and its name."""
    content = seal.load(path, "a finished cell")
    if content.get("format") != FORMAT:
        raise Error(f"{path} is not a finished cell ({FORMAT!r} expected)")
    try:
        cell = Cell(content["words"], content["kind"], tuple(content["extra"].items()))
        scores = [
            value
            for model in ("served", "finetuned")
            for value in (content["found"].get(model) or {}).values()
        ]
        if not all(value is None or isinstance(value, int | float) for value in scores):
            raise ValueError("a score is not a number")
        record = Record(cell, content["settings"], content["found"], content["made"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Error(f"{path} is not a valid cell: {error}") from error
    if not path.stem.endswith(cell.digest[:8]):
        raise Error(f"{path} holds another cell than its name says, with the digest {cell.digest[:8]}")
    return record
