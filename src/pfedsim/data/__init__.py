"""Read data sets by name or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pfedsim.data import catalogue, own, partition
from pfedsim.data.cache import Tell, quiet
from pfedsim.data.catalogue import data_dir
from pfedsim.data.dataset import DataSet
from pfedsim.data.task import Defaults
from pfedsim.errors import Error, nearest
from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation as Federation

NAMES = tuple(catalogue.KNOWN)
FILES = (".npz", *own.TABLES)


def check_name(name: str, folder: str | Path | None = None) -> None:
    """Raise an error if there is no such data set, without importing anything slow."""
    if name in NAMES or name.lower().endswith(FILES) or name.startswith("hf:"):
        return
    added = own.added(Path(folder) if folder else data_dir())
    if name in added:
        return
    if Path(name).is_dir():
        raise Error(f"{name} is a folder: add it under a name first with `pfedsim data add NAME {name}`")
    raise Error(
        f"there is no data set {name!r}; {nearest(name, [*NAMES, *added])} (your own: a .npz or .csv "
        "file, or `pfedsim data add`)"
    )


def read(
    name: str,
    folder: str | Path | None = None,
    size: int | None = None,
    tell: Tell = quiet,
    digest: str | None = None,
) -> DataSet:
    """Read the data set `name`: a known or added one (in `folder`), or a `.npz`, `.csv` or `.parquet` file.
    `size`: rescale pictures to this many pixels a side; `tell`: progress callback; `digest`: that of the samples with
    which a run was made, which decides how a file is read if pfedsim reads it differently today."""
    check_name(name, folder)
    where = Path(folder) if folder else data_dir()
    if name in NAMES:
        return catalogue.read(name, where, size, tell)
    if name.startswith("hf:"):
        from pfedsim.data.readers.hf import load

        return load(name.removeprefix("hf:"), size)
    if name.lower().endswith(FILES):
        return own.read_file(Path(name), size, tell, digest)
    return own.load(own.added(where)[name]).read(name, size, tell)


_later, __getattr__, _ = public(__name__, {"pfedsim.data.federation": "Federation"})
__all__ = ["NAMES", "DataSet", "Defaults", "check_name", "data_dir", "own", "partition", "read", *_later]
