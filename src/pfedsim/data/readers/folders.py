"""Folders of pictures: class/, domain/class/ or client/class/, listed in sorted order whatever the file
system says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedsim.data.cache import Tell, kept, quiet
from pfedsim.data.dataset import DataSet, moments
from pfedsim.data.readers.pictures import listed, stacked
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

LAYOUTS = ("class", "domain/class", "client/class")


@dataclass(frozen=True)
class Listing:
    """Pictures in the order in which they are stored, each with its label and perhaps its domain or
    client."""

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
    """The pictures below `folder`, laid out as `layout` says."""
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
    """Listed pictures as a data set, through the cache; without `constants`, each channel's mean and
    deviation over the set."""

    def make(into: Path) -> DataSet:
        x, whole = stacked(
            pictures.files, into, tell, what=name, size=size, grey=grey, skip_broken=skip_broken
        )
        mean, std = constants or moments(x)
        client, domain = (
            None if column is None else np.array(column)[whole]
            for column in (pictures.client, pictures.domain)
        )
        return DataSet(
            name,
            x,
            np.array(pictures.y, dtype=np.int64)[whole],
            pictures.classes,
            mean,
            std,
            client,
            domain,
        )

    said = hashlib.sha256(
        repr((pictures.y, pictures.classes, pictures.client, pictures.domain)).encode()
    ).hexdigest()
    asked = {
        "size": size,
        "grey": grey,
        "skip_broken": skip_broken,
        "constants": constants,
        "listing": said,
    }
    return kept(name, pictures.files, asked, make, defaults)


def listing(folder: Path, layout: str, skip_broken: bool = False) -> Listing:
    """What lies below `folder`; an empty class, a stray file and classes that differ only in case are
    refused by name."""
    if not folder.is_dir():
        raise Error(f"there is no folder {folder}")
    groups = [""] if layout == "class" else subfolders(folder, skip_broken)
    if not groups:
        raise Error(f"{folder} holds no folder; {layout} expects one for each {layout.partition('/')[0]}")
    found = [
        (path, label, group)
        for group in groups
        for label in _classes(folder / group, skip_broken)
        for path in _pictures(folder / group / label, skip_broken)
    ]
    classes = sorted({label for _, label, _ in found})
    alike(classes, folder)
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
    """Names of the folders in a folder, sorted; a file among them is refused, or left out where asked."""
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            names.append(path.name)
        elif path.is_file() and not path.name.startswith(".") and not skip_broken:
            raise Error(
                f"{path} is a file where folders were expected; take it away, or `pfedsim data add "
                "--skip-broken` leaves such out"
            )
    return names


def alike(classes: Sequence[str], where: Path) -> None:
    """Refuses two classes that differ only in case: on another file system they would be one."""
    seen: dict[str, str] = {}
    for name in classes:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            raise Error(
                f"{where}: classes {other!r} and {name!r} differ only in case; rename one, or put their "
                "samples together"
            )


def _classes(folder: Path, skip_broken: bool) -> list[str]:
    names = subfolders(folder, skip_broken)
    if not names:
        raise Error(f"{folder} holds no class folder")
    return names


def _pictures(folder: Path, skip_broken: bool) -> list[Path]:
    found = listed(folder, skip_broken)
    if not found:
        raise Error(f"class folder {folder} holds no picture; fill it or take it away")
    return found
