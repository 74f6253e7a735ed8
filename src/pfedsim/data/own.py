"""Users' own folders, tables and signals, added under a name. A small TOML file in the data folder says where
they are and how to read them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pfedsim import durable
from pfedsim.data.cache import Tell
from pfedsim.data.dataset import DataSet
from pfedsim.data.readers import folders
from pfedsim.errors import Error, nearest

TABLES = (".csv", ".parquet")
TYPES: dict[str, type] = {"size": int, "grey": bool, "skip_broken": bool, "drop": list}  # all else is text


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
    digest: str | None = None
    """sha256 of the samples when they were added"""

    def __post_init__(self) -> None:
        if self.layout not in folders.LAYOUTS:
            raise Error(f"layout = {self.layout!r}; {nearest(self.layout, folders.LAYOUTS)}")
        if self.missing not in ("refuse", "mean"):
            raise Error(f"missing = {self.missing!r}; {nearest(self.missing, ('refuse', 'mean'))}")
        if self.size is not None and self.size < 1:
            raise Error(f"size = {self.size}: it should be at least 1")

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
            from pfedsim.data.readers import tables

            return tables.read(path, self.label, self.client, self.drop, self.missing, name)
        if path.suffix.lower() == ".npz":
            from pfedsim.data.readers import npz

            return npz.read(path, self.missing, name)
        if not path.exists():
            raise Error(f"{name} was added from {path}, which does not exist")
        raise Error(f"{path} is neither a folder of images nor a .csv, .parquet or .npz file")

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


def added(data_dir: Path) -> dict[str, Path]:
    """The names that were added in this data folder, and their TOML files."""
    return {path.stem: path for path in sorted(data_dir.glob("*.toml"))} if data_dir.is_dir() else {}


def check_new(name: str, own: Own, data_dir: Path, taken: tuple[str, ...]) -> None:
    """Raise an error if a data set cannot have this name. The same one may be added again."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.endswith((".npz", *TABLES)):
        raise Error(f"{name!r} cannot name a data set: use lower-case letters, digits, - and _")
    if name in taken:
        raise Error(f"{name} is a data set built into pfedsim; choose another name")
    if name not in added(data_dir):
        return
    file = added(data_dir)[name]
    before = load(file)
    way_out = f"in {file}; delete that file first, or choose another name"
    if replace(before, digest=None) != replace(own, digest=None):
        raise Error(f"{name} was already added with other settings, {way_out}")
    if None not in (before.digest, own.digest) and before.digest != own.digest:
        raise Error(f"{name} was already added with other samples, {way_out}")


def add(name: str, own: Own, data_dir: Path) -> Path:
    """Record the data set under this name. Its files are not copied."""
    import tomli_w

    file = data_dir / f"{name}.toml"
    durable.make_folder(data_dir)
    content = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(own).items() if v is not None}
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
    return Own(**{**content, "drop": tuple(content.get("drop", ()))})
