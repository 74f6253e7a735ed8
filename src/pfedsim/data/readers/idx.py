"""Read the idx format of MNIST, Fashion-MNIST and EMNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import string
import zlib
from pathlib import Path

import numpy as np

from pfedsim import memory
from pfedsim.data.cache import Tell, cached, quiet
from pfedsim.data.dataset import DataSet, moments
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

IMAGES, LABELS = 0x00000803, 0x00000801
# upper- and lower-case letters of the same shape are one class
MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
SPLITS = {  # of EMNIST: the classes, and the label of the first one
    "byclass": (tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase), 0),
    "bymerge": (MERGED, 0),
    "balanced": (MERGED, 0),
    "letters": (tuple(string.ascii_lowercase), 1),
    "digits": (tuple(string.digits), 0),
    "mnist": (tuple(string.digits), 0),
}
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FIRST_LABELS = {  # both data sets use the same file names
    "mnist": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
    "fashion-mnist": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5],
}
CONSTANTS = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530), "emnist": (0.1736, 0.3248)}


def read(name: str, folder: Path, tell: Tell = quiet) -> DataSet:
    """Read and pool train and test of `mnist`, `fashion-mnist`, `emnist` (byclass) or `emnist-SPLIT`. EMNIST's
    images are transposed, as published."""
    parts, prefix, classes, first = ("train", "t10k"), "", tuple(string.digits), 0
    if name == "fashion-mnist":
        classes = CLOTHES
    elif name.startswith("emnist"):
        split = name.partition("-")[2] or "byclass"
        (classes, first), parts, prefix = SPLITS[split], ("train", "test"), f"emnist-{split}-"
    files = [
        _file(folder, f"{prefix}{part}-{what}-ubyte")
        for part in parts
        for what in ("images-idx3", "labels-idx1")
    ]

    def make(into: Path) -> DataSet:
        arrays = []
        for k, path in enumerate(files):
            tell(f"reading {name}", k, len(files))
            arrays.append(values(path, IMAGES if k % 2 == 0 else LABELS))
        tell(f"reading {name}", len(files), len(files))
        for k in (0, 2):
            if len(arrays[k]) != len(arrays[k + 1]):
                raise Error(
                    f"{files[k]} holds {len(arrays[k])} images, {files[k + 1].name} {len(arrays[k + 1])} "
                    "labels"
                )
        for k in (1, 3):
            low, high = int(arrays[k].min(initial=255)), int(arrays[k].max(initial=0))
            if len(arrays[k]) and (low < first or high >= first + len(classes)):
                raise Error(
                    f"{files[k]} holds labels from {low} to {high}; {name} has {first} to {first + len(classes) - 1}"
                )
        for other, labels in FIRST_LABELS.items():
            if other != name and arrays[1][: len(labels)].tolist() == labels:
                raise Error(f"{files[1]} holds the labels of {other}, not of {name}")
        x, y = np.concatenate(arrays[0::2])[:, None], np.concatenate(arrays[1::2]).astype(np.int64) - first
        mean, std = tuple((v,) for v in CONSTANTS[name]) if name in CONSTANTS else moments(x)
        return DataSet(name, x, y, classes, mean, std)

    return cached(name, files, {}, make, Defaults())


def values(path: Path, magic: int) -> np.ndarray:
    """Read the array in an idx file of bytes; `magic`: IMAGES or LABELS. No more is unpacked than the header
    announces."""
    dimensions = magic & 0xFF
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            head = file.read(4 + 4 * dimensions)
            found = int.from_bytes(head[:4], "big")
            if len(head) < 4 + 4 * dimensions or found != magic:
                what = "images" if magic == IMAGES else "labels"
                raise Error(
                    f"{path} begins with 0x{found:08x}; an idx file of {what} begins with 0x{magic:08x}"
                )
            shape = tuple(int.from_bytes(head[4 + 4 * k : 8 + 4 * k], "big") for k in range(dimensions))
            size = math.prod(shape)
            memory.need(path, size)
            raw = file.read(size)
            rest = bool(file.read(1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Error(f"{path} is truncated or not a gzip file: {error}") from error
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) != size or rest:
        raise Error(
            f"{path} should have {' x '.join(map(str, shape))} bytes but has {'more' if rest else f'{len(raw):,}'}: "
            "it is truncated or damaged"
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise Error(f"{folder} has no {name}.gz")
