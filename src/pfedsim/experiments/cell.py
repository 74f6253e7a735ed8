"""A cell: one run or measurement of an experiment, identified by the digest of its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pfedsim import seal
from pfedsim.data.task import Defaults
from pfedsim.errors import Error
from pfedsim.methods import label
from pfedsim.runs import config as configs
from pfedsim.runs.config import Config
from pfedsim.runs.reader import slug

FORMAT = "pfedsim cell 2"
OF_THE_MACHINE = ("digests", "backend")  # known only when a cell runs


@dataclass(frozen=True)
class Cell:
    """One run, or one measurement (`kind`) with additional options (`extra`)."""

    words: Mapping[str, Any]
    kind: str = "run"
    extra: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, config: Config) -> Cell:
        """The cell of a configuration's run."""
        words = {name: getattr(config, name) for name in sorted(config.model_fields_set - {"options"})}
        for name, value in words.items():
            if isinstance(value, BaseModel):
                words[name] = value.model_dump(exclude_none=True)
        return cls({**words, **config.options})

    @cached_property
    def config(self) -> Config:
        return configs.check(self.words)

    @property
    def asked(self) -> Config:
        """The configuration that names the cell."""
        return self.config

    def settings(self) -> dict[str, Any]:
        """All settings, including defaults. This needs no data, because a cell states the number of clients."""
        config = self.config
        if config.clients is None:
            raise Error(f"a cell needs its number of clients: {dict(self.words)}")
        content = config.resolved(Defaults(), config.clients).plain()
        return {**{k: v for k, v in content.items() if k not in OF_THE_MACHINE}, **dict(self.extra)}

    @property
    def digest(self) -> str:
        """sha256 of the cell's own settings, without defaults: settings added to pfedsim later do not change it."""
        asked = {"kind": self.kind, "words": dict(self.words), "extra": dict(self.extra)}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def name(self) -> str:
        """A readable name, also of the cell's file: the data set, then what distinguishes the cell."""
        config = self.asked
        partition = config.partition or ""
        if partition == "dirichlet" and config.alpha:
            partition = f"dir{config.alpha:g}"
        what = label(config.method_made()) if self.kind == "run" else self.kind
        parts = (partition, what, *(str(v) for _, v in self.extra), f"seed{config.seed}")
        described = "-".join(slug(p) for p in parts if p)
        return f"{slug(Path(config.data).stem)}/{described}-{self.digest[:8]}"


@dataclass(frozen=True)
class Record:
    """A finished cell."""

    cell: Cell
    settings: Mapping[str, Any]
    found: Mapping[str, Any]
    made: Mapping[str, Any]
    """versions, backend, machine and seconds"""

    def text(self) -> str:
        """The JSON file's content, one key per line, with its sha256."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.cell.kind,
            "words": dict(self.cell.words),
            "extra": dict(self.cell.extra),
            "settings": self.settings,
            "found": self.found,
            "made": self.made,
        }
        content[seal.KEY] = seal.digest(content)
        lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content.items()]
        return "{" + ",\n ".join(lines) + "}\n"


def base_name(method: str) -> str:
    """A method's name without its preset and options."""
    return method.partition("(")[0].partition(":")[0]
