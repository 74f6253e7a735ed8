"""Numbers that others have published, by protocol (methods/published.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Number:
    """An accuracy in %; `std`: over trials, where the source says."""

    accuracy: float
    std: float | None = None


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads((files("pfedsim.methods") / "published.toml").read_text(encoding="utf-8"))


def protocols() -> dict[str, dict[str, Any]]:
    """Every protocol: source, data, partition and how it was scored."""
    found: dict[str, dict[str, Any]] = _content()["protocol"]
    return found


def numbers(protocol: str) -> dict[str, Number]:
    """The published numbers of a protocol, by method."""
    return {
        row["method"]: Number(row["accuracy"], row.get("std"))
        for row in _content()["number"]
        if row["protocol"] == protocol
    }
