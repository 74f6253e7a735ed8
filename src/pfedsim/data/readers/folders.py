"""Read folders of pictures: class/, domain/class/ or client/class/, always in sorted order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedsim.data.cache import Tell, cached, quiet
from pfedsim.data.dataset import DataSet, moments
from pfedsim.data.readers.pictures import CLUTTER, is_readable, listed, stacked
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

LAYOUTS = ("class", "domain/class", "client/class")


@dataclass(frozen=True)
class Listing:
    """Picture files in the order of the data set, each with its label and optionally its domain or client."""

    files: Sequence[Path]
    y: Sequence[int]
    classes: tuple[str, ...]
    client: Sequence[str] | None = None
    domain: Sequence[str] | None = None


def read(
    name: str,
    folder: Path,
    layout: str = "class",
    *,
    size: int | None = None,
    grey: bool = False,
    skip_broken: bool = False,
    defaults: Defaults | None = None,
    tell: Tell = quiet,
) -> DataSet:
    """Read the pictures in `folder`, which has this layout."""
    return as_data(
        name,
        listing(folder, layout, skip_broken),
        size=size,
        grey=grey,
        skip_broken=skip_broken,
        defaults=defaults,
        tell=tell,
    )


def as_data(
    name: str,
    pictures: Listing,
    *,
    size: int | None,
    grey: bool = False,
    skip_broken: bool = False,
    constants: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    defaults: Defaults | None = None,
    tell: Tell = quiet,
) -> DataSet:
    """The listed pictures as a data set, through the cache. `constants`: mean and standard deviation of each
    channel (default: computed)."""

    def make(into: Path) -> DataSet:
        x, intact = stacked(
            pictures.files, into, tell, what=name, size=size, grey=grey, skip_broken=skip_broken
        )
        mean, std = constants or moments(x)
        client, domain = (
            None if column is None else np.array(column)[intact]
            for column in (pictures.client, pictures.domain)
        )
        y = np.array(pictures.y, dtype=np.int64)[intact]
        return DataSet(name, x, y, pictures.classes, mean, std, client, domain)

    columns = pictures.y, pictures.classes, pictures.client, pictures.domain
    asked = {
        "size": size,
        "grey": grey,
        "skip_broken": skip_broken,
        "constants": constants,
        "listing": hashlib.sha256(repr(columns).encode()).hexdigest(),
    }
    return cached(name, pictures.files, asked, make, defaults)


def listing(folder: Path, layout: str, skip_broken: bool = False) -> Listing:
    """List the pictures in `folder`. Empty classes, stray files and classes that differ only in case are errors."""
    if not folder.is_dir():
        raise Error(f"there is no folder {folder}")
    if _holds_images(folder):
        raise Error(f"{folder} holds images directly; put them into one folder per class")
    groups = [""] if layout == "class" else subfolders(folder, skip_broken)
    if not groups:
        raise Error(f"{folder} has no folders; {layout} expects one for each {layout.partition('/')[0]}")
    if layout != "class" and all(_holds_images(folder / group) for group in groups):
        levels = layout.partition("/")[0].upper()
        raise Error(f"{folder}: expected {levels}/CLASS/file; this looks like `--layout class`")
    found = [
        (path, label, group)
        for group in groups
        for label in _classes(folder / group, skip_broken)
        for path in _pictures(folder / group / label, skip_broken)
    ]
    classes = sorted({label for _, label, _ in found})
    if len(classes) == 1:
        raise Error(f"{folder} has only one class, {classes[0]!r}")
    check_case(classes, folder)
    place = {label: k for k, label in enumerate(classes)}
    column = [group for _, _, group in found] if layout != "class" else None
    return Listing(
        [path for path, _, _ in found],
        [place[label] for _, label, _ in found],
        tuple(classes),
        client=column if layout == "client/class" else None,
        domain=column if layout == "domain/class" else None,
    )


def subfolders(folder: Path, skip_broken: bool = False) -> list[str]:
    """Sorted names of the folders in a folder. A file among them is an error, or skipped if asked."""
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            if path.name.encode(errors="replace").decode() != path.name:
                raise Error(f"the name of the folder {path} is not UTF-8; rename it")
            names.append(path.name)
        elif path.is_file() and not path.name.startswith(".") and not skip_broken:
            raise Error(
                f"{path} is a file where folders were expected; remove it, or skip such files with "
                "`pfedsim data add --skip-broken`"
            )
    return names


def skipped(folder: Path, layout: str, kept: int) -> list[Path]:
    """The files that `--skip-broken` leaves out of a data set of which it kept so many."""
    files = listing(folder, layout, skip_broken=True).files
    known = set(files)
    stray = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path not in known and path.name not in CLUTTER and not _hidden(path, folder)
    ]
    return sorted(
        [*stray, *(path for path in files if not is_readable(path))] if kept < len(files) else stray
    )


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _holds_images(folder: Path) -> bool:
    """Whether a folder contains files and no folders."""
    seen = [p for p in folder.iterdir() if not p.name.startswith(".") and p.name not in CLUTTER]
    return bool(seen) and all(path.is_file() for path in seen)


def check_case(classes: Sequence[str], where: Path) -> None:
    """Raise an error if two classes differ only in case: on some file systems they would be the same folder."""
    seen: dict[str, str] = {}
    for name in classes:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            raise Error(
                f"{where}: classes {other!r} and {name!r} differ only in case; rename one, or merge them"
            )


def _classes(folder: Path, skip_broken: bool) -> list[str]:
    names = subfolders(folder, skip_broken)
    if not names:
        raise Error(f"{folder} has no class folder")
    return names


def _pictures(folder: Path, skip_broken: bool) -> list[Path]:
    found = listed(folder, skip_broken)
    if not found:
        raise Error(f"class folder {folder} has no images; add some or remove it")
    return found
