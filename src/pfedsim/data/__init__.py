"""Data sets by name or file."""

from __future__ import annotations

import os
from pathlib import Path

from pfedsim.data.dataset import DataSet, Defaults
from pfedsim.errors import Error, nearest

NAMES = ("digits", "cifar10")


def data_dir() -> Path:
    """Where data sets lie: $PFEDSIM_DATA, else ./data."""
    return Path(os.environ.get("PFEDSIM_DATA", "data"))


def check_name(name: str) -> None:
    """Refuses what cannot be a data set, before anything heavy is imported."""
    if name not in NAMES and not name.endswith(".npz"):
        raise Error(f"there is no data set {name!r}; {nearest(name, NAMES)} (your own: a .npz file with x and y)")


def read(name: str, folder: str | Path | None = None) -> DataSet:
    """The data set `name`: a known one (from `folder` where it is not inside a library) or a `.npz` file."""
    check_name(name)
    if name == "digits":
        from pfedsim.data import digits

        return digits.read()
    if name == "cifar10":
        from pfedsim.data import cifar10

        return cifar10.read(Path(folder) if folder else data_dir())
    from pfedsim.data import npz

    return npz.read(Path(name))


__all__ = ["NAMES", "DataSet", "Defaults", "check_name", "data_dir", "read"]
