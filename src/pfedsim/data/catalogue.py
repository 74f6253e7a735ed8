"""The data sets that pfedsim knows by name: what they are, where to find them, and which reader to use."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pfedsim.data.cache import Tell
from pfedsim.data.dataset import DataSet
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

Reader = Callable[[Path, int | None, Tell], DataSet]
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TINY_FOLDERS = ("tiny-imagenet-200",)
# in the folder of a data set during its download: the names of the files already unpacked
UNFINISHED = ".unfinished"
EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")


@dataclass(frozen=True)
class Known:
    """A known data set. `marker`: the file or folder by which it is recognised; `folders`: names that its folder
    may have besides the name of the data set."""

    name: str
    about: str
    marker: str
    read: Reader
    folders: tuple[str, ...] = ()
    rescaled: bool = False
    """whether --size applies"""
    parts: tuple[str, ...] = ()
    """the parts of a complete copy, if the marker is not enough"""
    digest: str | None = None
    """sha256 of the published samples, if there is only one version of them"""

    def place(self, data_dir: Path) -> Path | None:
        """The folder that contains it, or None. A data set inside a library has no marker and is always there."""
        if not self.marker:
            return data_dir
        for folder in (self.name, *(f"{self.name}/{f}" for f in self.folders), *self.folders, "."):
            if any((data_dir / folder).glob(self.marker)):
                return data_dir / folder
        return None

    def missing(self, place: Path) -> list[str]:
        """The parts that are missing from this folder."""
        return [part for part in self.parts if not any(place.glob(part))]


def unfinished(place: Path) -> bool:
    """Whether the download into this folder is incomplete."""
    return any((folder / UNFINISHED).is_file() for folder in (place, place.parent))


def _idx_files(prefix: str, test: str) -> tuple[str, ...]:
    return tuple(
        f"{prefix}{part}-{what}-ubyte*"
        for part in ("train", test)
        for what in ("images-idx3", "labels-idx1")
    )


def data_dir() -> Path:
    """The folder of the data sets: $PFEDSIM_DATA, else ./data."""
    return Path(os.environ.get("PFEDSIM_DATA", "data"))


def _digits(folder: Path, size: int | None, tell: Tell) -> DataSet:
    from pfedsim.data.readers import digits

    return digits.read()


def _cifar10(folder: Path, size: int | None, tell: Tell) -> DataSet:
    from pfedsim.data.readers import cifar10

    return cifar10.read(folder)


def _idx(name: str) -> Reader:
    def read(folder: Path, size: int | None, tell: Tell) -> DataSet:
        from pfedsim.data.readers import idx

        return idx.read(name, folder, tell)

    return read


def _pictures(name: str) -> Reader:
    def read(folder: Path, size: int | None, tell: Tell) -> DataSet:
        from pfedsim.data.readers import publishers

        made: DataSet = getattr(publishers, name)(folder, size, tell)
        return made

    return read


def _heart(folder: Path, size: int | None, tell: Tell) -> DataSet:
    from pfedsim.data.readers import tables

    return tables.heart(folder)


def _watch(folder: Path, size: int | None, tell: Tell) -> DataSet:
    from pfedsim.data.readers import npz

    data = npz.read(folder / "watch.npz")
    if data.client is None or len(data.classes) != len(EXERCISES):
        raise Error(
            f"{folder / 'watch.npz'} is not the smartwatch data: it needs seven exercises in y, and client"
        )
    return replace(data, classes=EXERCISES, defaults=replace(data.defaults, rounds=50))


def _emnist(split: str, about: str) -> Known:
    name = "emnist" if split == "byclass" else f"emnist-{split}"
    parts = _idx_files(f"emnist-{split}-", "test")
    return Known(
        name, about, parts[0], _idx(name), ("gzip", "emnist", "emnist/gzip", "EMNIST"), parts=parts
    )


MNIST_FILES = _idx_files("", "t10k")
KNOWN = {
    known.name: known
    for known in (
        Known(
            "digits",
            "1,797 digits, 1 x 32 x 32",
            "",
            _digits,
            digest="b73c4999a3806fffb276d310173c99e1489d23080984dce56f1d65f03351cf31",
        ),
        Known(
            "cifar10",
            "60,000 images, 10 classes",
            "data_batch_1.bin",
            _cifar10,
            ("cifar-10-batches-bin",),
            parts=(*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
            digest="e9fbfe3cd215e252bde802eb8e15cf68f8a2769ce6d97d3555b3c68fe5f1a996",
        ),
        Known(
            "cinic10",
            "270,000 images, 10 classes",
            "valid/airplane",
            _pictures("cinic10"),
            ("CINIC-10",),
            True,
            ("test/airplane", "train/airplane", "valid/airplane"),
        ),
        _emnist("byclass", "814,255 characters, 62 classes"),
        _emnist("bymerge", "814,255 characters, 47 classes"),
        _emnist("balanced", "131,600 characters, 47 classes"),
        _emnist("letters", "145,600 letters, 26 classes"),
        _emnist("digits", "280,000 digits, 1 x 28 x 28"),
        _emnist("mnist", "70,000 digits, 1 x 28 x 28"),
        Known(
            "mnist",
            "70,000 digits, 1 x 28 x 28",
            MNIST_FILES[0],
            _idx("mnist"),
            ("MNIST",),
            parts=MNIST_FILES,
            digest="f2758268d73e732a21145a5bb508ab12bbac710479e21b1cdd7a29b996021076",
        ),
        Known(
            "fashion-mnist",
            "70,000 clothes, 1 x 28 x 28",
            MNIST_FILES[0],
            _idx("fashion-mnist"),
            ("FashionMNIST",),
            parts=MNIST_FILES,
            digest="bd1c6adaf6f14ead7aaa749fe1bf91bec1c107075f01f81541cbe822aa60882d",
        ),
        Known(
            "tiny-imagenet",
            "110,000 images, 200 classes",
            "wnids.txt",
            _pictures("tiny_imagenet"),
            TINY_FOLDERS,
            True,
            ("wnids.txt", "words.txt", "train", "val/val_annotations.txt"),
        ),
        Known(
            "domainnet",
            "6 domains, 20 of 345 classes",
            "clipart",
            _pictures("domainnet"),
            ("DomainNet",),
            True,
            DOMAINS,
        ),
        Known(
            "pacs", "9,991 images, 4 domains", "art_painting", _pictures("pacs"), ("PACS", "kfold"), True
        ),
        Known(
            "digit-domains", "ten digits, several domains", "usps.npz", _pictures("digit_domains"), (), True
        ),
        Known(
            "heart",
            "920 patients, 4 hospitals",
            "processed.cleveland.data",
            _heart,
            parts=tuple(
                f"processed.{hospital}.data" for hospital in ("cleveland", "hungarian", "switzerland", "va")
            ),
            digest="1bfb929a8afb2dba02b3039b9889dee66e4153555f13c59441fb2ce9f068c4ff",
        ),
        Known("watch", "4,677 signals, 10 people", "watch.npz", _watch),
    )
}


def read(name: str, folder: Path | None, size: int | None, tell: Tell) -> DataSet:
    """Read a known data set from `folder` (default: the data folder)."""
    known, where = KNOWN[name], folder or data_dir()
    if size is not None and not known.rescaled:
        raise Error(f"size = {size}: {name} cannot be rescaled; only data sets of image files can")
    place = known.place(where)
    if place is None and name == "cifar10":
        place = where  # its reader has a more specific error
    if place is None:
        raise Error(
            f"no {name} in {where}: get it with `pfedsim data get {name}`, or set `--data-dir` to the folder that "
            "contains it"
        )
    if unfinished(place):
        raise Error(
            f"the download of {name} in {place} is incomplete: `pfedsim data get {name}` resumes it"
        )
    data = known.read(place, size, tell)
    if known.digest is not None and data.digest != known.digest:
        raise Error(
            f"{place} does not hold {name} as published: the samples' sha256 is {data.digest[:12]}..., not "
            f"{known.digest[:12]}...; get it again with `pfedsim data get {name}` in another folder, or give your "
            "own version another name with `pfedsim data add`"
        )
    return data


__all__ = ["KNOWN", "Defaults", "Known", "data_dir", "read"]
