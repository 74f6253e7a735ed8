"""Users' own folders, tables and signals, added under a name. A small TOML file in the data folder says where
they are and how to read them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim import durable
from pfedsim.data.cache import Tell
from pfedsim.data.dataset import DataSet
from pfedsim.data.readers import folders
from pfedsim.errors import Error, nearest

if TYPE_CHECKING:
    from pfedsim.data.tables.table import Asked

TABLES = (".csv", ".parquet")
TYPES: dict[str, type] = {  # all else is text
    **{"size": int, "grey": bool, "skip_broken": bool, "length": int, "reading": int},
    **dict.fromkeys(("drop", "more", "na", "types"), list),
}
LENGTHS = ("pad", "cut", "window")
NEWEST = 2
"""how pfedsim reads today. Reading 1 takes tables of numbers as they are, with mean and deviation over all rows, and
integers as the numbers of classes; records and runs of that time are still read so."""


@dataclass(frozen=True)
class Own:
    """What `pfedsim data add` records about a data set."""

    path: str
    layout: str = "class"
    size: int | None = None
    grey: bool = False
    skip_broken: bool = False
    label: str = "label"
    client: str | None = None
    drop: tuple[str, ...] = ()
    missing: str = "refuse"
    more: tuple[str, ...] = ()
    """further files of the table"""
    na: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    """COLUMN=KIND of a table"""
    lengths: str | None = None
    length: int | None = None
    """what becomes of signals of unequal lengths"""
    digest: str | None = None
    """sha256 of the samples when they were added"""
    reading: int = 1

    def __post_init__(self) -> None:
        if self.layout not in folders.LAYOUTS:
            raise Error(f"layout = {self.layout!r}; {nearest(self.layout, folders.LAYOUTS)}")
        if self.missing not in ("refuse", "mean"):
            raise Error(f"missing = {self.missing!r}; {nearest(self.missing, ('refuse', 'mean'))}")
        if self.size is not None and self.size < 1:
            raise Error(f"size = {self.size}: it should be at least 1")
        if self.lengths not in (None, *LENGTHS):
            raise Error(f"lengths = {self.lengths!r}; {nearest(self.lengths or '', LENGTHS)}")
        if self.length is not None and self.length < 1:
            raise Error(f"length = {self.length}: it should be at least 1")
        if self.reading not in range(1, NEWEST + 1):
            raise Error(f"reading = {self.reading}: this version of pfedsim knows 1 to {NEWEST}")
        odd = [word for word in self.types if not all(part.strip() for part in word.rpartition("=")[::2])]
        if odd:
            raise Error("types holds COLUMN=KIND, as in sex=category")

    def read(self, name: str, size: int | None, tell: Tell) -> DataSet:
        """Read the data set, which must be as it was added; `size` overrides the recorded size."""
        data = self._read(name, size, tell)
        if self.digest not in (None, data.digest) and size in (None, self.size):
            raise Error(
                f"{name} is not as it was added: the samples in {self.path} have changed; restore them, or add them "
                "again under another name"
            )
        return data

    def _read(self, name: str, size: int | None, tell: Tell) -> DataSet:
        path = Path(self.path)
        if path.is_dir():
            return folders.read(
                name,
                path,
                self.layout,
                size=size or self.size,
                grey=self.grey,
                skip_broken=self.skip_broken,
                tell=tell,
            )
        if size is not None:
            raise Error(f"size = {size}: {name} has no image files to rescale")
        if path.suffix.lower() in TABLES:
            return self._table(path, name)
        if path.suffix.lower() == ".npz":
            from pfedsim.data.readers import npz

            if self.reading == 1:
                return npz.read(path, self.missing, name)
            return npz.read(path, self.missing, name, self.lengths, self.length, any_labels=True)
        if not path.exists():
            raise Error(f"{name} was added from {path}, which does not exist")
        raise Error(f"{path} is neither a folder of images nor a .csv, .parquet or .npz file")

    def _table(self, path: Path, name: str) -> DataSet:
        if self.reading == 1:
            from pfedsim.data.readers import tables

            return tables.read(path, self.label, self.client, self.drop, self.missing, name)
        from pfedsim.data.tables import sheets, table

        return table.read([sheets.read(p) for p in (path, *map(Path, self.more))], self.asked(), name)

    def asked(self) -> Asked:
        """What was asked of a table."""
        from pfedsim.data.tables.table import Asked

        kinds = (word.rpartition("=") for word in self.types)
        types = {column.strip(): kind.strip() for column, _, kind in kinds}
        return Asked(self.label, self.client, self.drop, self.missing, self.na, types)

    def domains(self, name: str) -> list[str]:
        """The names of its domains."""
        if self.layout != "domain/class":
            raise Error(
                f"{name} was added as {self.layout}: only a domain/class folder has domains (`pfedsim "
                "data add --layout`)"
            )
        if not Path(self.path).is_dir():
            raise Error(f"{name} was added from {self.path}, which does not exist")
        return folders.subfolders(Path(self.path), self.skip_broken)


def read_file(path: Path, size: int | None, tell: Tell, digest: str | None) -> DataSet:
    """Read a file that was not added, as it was read for the run whose samples have this digest."""
    if digest is not None:
        try:
            older = Own(str(path)).read(path.stem, size, tell)
        except Error:  # the file needs what reading 1 cannot do
            older = None
        if older is not None and older.digest == digest:
            return older
    return Own(str(path), reading=NEWEST).read(path.stem, size, tell)


def added(data_dir: Path) -> dict[str, Path]:
    """The names that were added in this data folder, and their TOML files."""
    return {path.stem: path for path in sorted(data_dir.glob("*.toml"))} if data_dir.is_dir() else {}


def check_new(name: str, own: Own, data_dir: Path, taken: tuple[str, ...]) -> Own:
    """Raise an error if a data set cannot have this name. The same one may be added again, and is then read as it was
    at first."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.endswith((".npz", *TABLES)):
        raise Error(f"{name!r} cannot name a data set: use lower-case letters, digits, - and _")
    if name in taken:
        raise Error(f"{name} is a data set built into pfedsim; choose another name")
    if name not in added(data_dir):
        return own
    file = added(data_dir)[name]
    before = load(file)
    own = replace(own, reading=before.reading)
    way_out = f"in {file}; delete that file first, or choose another name"
    if replace(before, digest=None) != replace(own, digest=None):
        raise Error(f"{name} was already added with other settings, {way_out}")
    if None not in (before.digest, own.digest) and before.digest != own.digest:
        raise Error(f"{name} was already added with other samples, {way_out}")
    return own


def add(name: str, own: Own, data_dir: Path) -> Path:
    """Record the data set under this name. Its files are not copied."""
    import tomli_w

    file = data_dir / f"{name}.toml"
    durable.make_folder(data_dir)
    content = {
        k: list(v) if isinstance(v, tuple) else v for k, v in asdict(own).items() if v not in (None, ())
    }
    durable.write(file, tomli_w.dumps(content).encode())
    return file


def load(file: Path) -> Own:
    """Load the record of an added data set."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Error(f"{file} cannot be read: {error}") from error
    strange = sorted(set(content) - {f.name for f in fields(Own)})
    if strange or "path" not in content:
        raise Error(
            f"{file} was not written by `pfedsim data add`: it has {repr(strange[0]) if strange else 'no path'}"
        )
    for key, value in content.items():
        kind = TYPES.get(key, str)
        if type(value) is not kind or (
            isinstance(value, list) and not all(isinstance(word, str) for word in value)
        ):
            words = {str: "text", int: "an integer", bool: "true or false", list: "a list of names"}
            raise Error(f"{file}: {key} = {value!r} should be {words[kind]}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    return Own(**values)
