"""Boards by name: `pfedsim leaderboard quick` runs what quick.toml names."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

NAMES = tuple(
    sorted(f.name.removesuffix(".toml") for f in files(__name__).iterdir() if f.name.endswith(".toml"))
)


def find(name: str) -> Path | None:
    """The file of the board of this name; None if there is none."""
    return Path(str(files(__name__))) / f"{name}.toml" if name in NAMES else None
