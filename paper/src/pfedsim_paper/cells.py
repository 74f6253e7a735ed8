"""A study's cells: what is asked, in the configuration's words, and what was found, as a small JSON file
that counts as done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedsim.data.task import Defaults
from pfedsim.errors import Error
from pfedsim.methods import label
from pfedsim.runs import config as configs
from pfedsim.runs.config import Config
from pfedsim.runs.reader import slug
from pfedsim_paper.forms import form

FORMAT = "pfedsim cell 1"
OF_THE_MACHINE = ("digests", "backend")  # found when a cell runs, not asked


@dataclass(frozen=True)
class Cell:
    """One run, or one measurement (`kind`) with options of its own (`extra`)."""

    words: Mapping[str, Any]
    kind: str = "run"
    extra: tuple[tuple[str, Any], ...] = ()

    @property
    def config(self) -> Config:
        """What is run."""
        return configs.check({**self.words, "method": form(str(self.words["method"]))})

    def settings(self) -> dict[str, Any]:
        """The words with nothing left open; studies state what a data set would decide, so that no data are
        needed for it."""
        config = self.config
        if config.clients is None:
            raise Error(f"a study's cell must state its number of clients: {dict(self.words)}")
        content = config.resolved(Defaults(), config.clients).plain()
        return {**{k: v for k, v in content.items() if k not in OF_THE_MACHINE}, **dict(self.extra)}

    @property
    def digest(self) -> str:
        """sha256 over what was asked: a setting that comes to pfedsim later leaves it as it is."""
        asked = {"kind": self.kind, "words": dict(self.words), "extra": dict(self.extra)}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """What a person calls it, and its file: the data set, then what tells it apart."""
        config = configs.check(self.words)
        dealt = (
            f"dir{config.alpha:g}"
            if config.partition == "dirichlet" and config.alpha
            else config.partition or ""
        )
        what = label(config.method_made()) if self.kind == "run" else self.kind
        parts = (dealt, what, *(str(v) for _, v in self.extra), f"seed{config.seed}")
        described = "-".join(slug(p) for p in parts if p)
        return f"{slug(Path(config.data).stem)}/{described}-{self.digest[:8]}"


@dataclass(frozen=True)
class Record:
    """A finished cell."""

    cell: Cell
    settings: Mapping[str, Any]
    found: Mapping[str, Any]
    made: Mapping[str, Any]
    """with what and how long: versions, backend, machine, seconds"""

    def text(self) -> str:
        content = {
            "format": FORMAT,
            "kind": self.cell.kind,
            "words": dict(self.cell.words),
            "extra": dict(self.cell.extra),
            "settings": self.settings,
            "found": self.found,
            "made": self.made,
        }
        lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content.items()]
        return "{" + ",\n ".join(lines) + "}\n"


class Store:
    """A folder of finished cells."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._paths: dict[str, Path] = {}  # by digest: a page looks for the same cell many times
        self._found: dict[Path, tuple[int, Record | None]] = {}

    def path(self, cell: Cell) -> Path:
        if cell.digest not in self._paths:
            self._paths[cell.digest] = self.folder / f"{cell.name}.json"
        return self._paths[cell.digest]

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
        """Written aside, then renamed: a file is whole or not there."""
        path = self.path(record.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.part")
        aside.write_text(record.text())
        aside.replace(path)
        self._found.pop(path, None)
        return path

    def records(self, cells: Iterable[Cell]) -> list[Record]:
        """Those of the cells that are done, in their order."""
        return [record for cell in cells if (record := self.find(cell))]


def _agrees(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether recorded settings are the present ones. A setting or a method's option that is new since then
    does not count; one that is gone or has another value makes it another run."""

    def same(a: Any, b: Any) -> bool:
        return _agrees(a, b) if isinstance(a, dict) and isinstance(b, dict) else bool(a == b)

    return all(same(now.get(key), value) for key, value in then.items() if key not in OF_THE_MACHINE)


def read(path: Path) -> Record:
    """The cell in this file."""
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
