"""Find the samples of every client in a data set by their content: PFLlib stores samples, not positions."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pfedsim.arrays import arrays_in
from pfedsim.data.dataset import DataSet
from pfedsim.data.partition import Split
from pfedsim.errors import Error

HOW = "docs/migrate.md has the few lines that convert it in the program that wrote it"
WHOLE = 1e-3  # how far a pixel may be from an integer
SCALES = ((255.0, 0.0), (127.5, 127.5), (1.0, 0.0))  # from 0..1, -1..1 and 0..255 to pixels


def folder(path: Path, data: DataSet) -> list[Split]:
    """The clients in a folder with train/0.npz, test/0.npz, ..., each with plain arrays x and y."""
    files = {part: sorted((path / part).glob("*.npz"), key=_number) for part in ("train", "test")}
    names = [[_number(file) for file in several] for several in files.values()]
    if not names[0] or names[0] != names[1] or names[0] != list(range(len(names[0]))):
        raise Error(
            f"{path} should hold train/0.npz, train/1.npz, ... and test/0.npz, test/1.npz, ..., as PFLlib does"
        )
    for file in files["train"]:
        refuse_objects(file)
    places = _Places(data)
    clients = [
        Split(*(places.of(files[part][k]) for part in ("train", "test"))) for k in range(len(names[0]))
    ]
    _check_counts(path / "config.json", clients, data)
    return clients


def _number(file: Path) -> int:
    return int(file.stem) if file.stem.isdecimal() else -1


class _Places:
    """Finds samples in a data set by their content. Equal samples are taken in order, each once."""

    def __init__(self, data: DataSet):
        self._data = data
        self._free: dict[bytes, list[int]] = {}
        for k in range(len(data.y) - 1, -1, -1):  # the first is taken first
            self._free.setdefault(self._key(data.x[k], int(data.y[k])), []).append(k)

    @staticmethod
    def _key(sample: np.ndarray, label: int) -> bytes:
        content = hashlib.blake2b(np.ascontiguousarray(sample).data, digest_size=16)
        content.update(label.to_bytes(8, "little", signed=True))
        return content.digest()

    def of(self, file: Path) -> np.ndarray:
        """The positions of the samples in this file."""
        refuse_objects(file)
        arrays = arrays_in(file, ("x", "y"))
        x, y = arrays["x"], arrays["y"]
        if y.ndim != 1 or y.dtype.kind not in "iu" or len(x) != len(y):
            raise Error(f"{file}: x and y should have one entry for each sample, y a label")
        shape = self._data.shape
        if x.shape[1:] != shape and (1, *x.shape[1:]) != shape:
            raise Error(
                f"{file}: samples have the shape {x.shape[1:]}, those of {self._data.name} have {shape}"
            )
        x = x.reshape(-1, *shape)
        for stored in self._forms(x):
            keys = [self._key(sample, int(label)) for sample, label in zip(stored, y, strict=True)]
            if not keys or keys[0] in self._free:
                return np.array([self._take(file, key, k) for k, key in enumerate(keys)], dtype=np.int64)
        raise self._absent(file, 0)

    def _forms(self, x: np.ndarray) -> Iterator[np.ndarray]:
        """The samples as ours are stored, from what they may be: the same, or pixels of 0..1 or -1..1."""
        if self._data.x.dtype != np.uint8 or x.dtype.kind != "f":
            yield x.astype(self._data.x.dtype, copy=False)
            return
        for scale, shift in SCALES:
            pixels = x * scale + shift
            near = np.rint(pixels)
            whole = np.isfinite(pixels).all() and np.abs(pixels - near).max(initial=0) < WHOLE
            if whole and near.min(initial=0) >= 0 and near.max(initial=0) <= 255:
                yield near.astype(np.uint8)

    def _take(self, file: Path, key: bytes, sample: int) -> int:
        free = self._free.get(key)
        if not free:
            raise self._absent(file, sample)
        return free.pop()

    def _absent(self, file: Path, sample: int) -> Error:
        return Error(
            f"{file}: sample {sample} is not in {self._data.name} with this label, or it has been found as often as it "
            "is there; it may be another data set, or normalised in another way than to 0..1 or -1..1"
        )


def refuse_objects(path: Path) -> None:
    """Name the way out if an array of the file is a pickle."""
    try:
        with zipfile.ZipFile(path) as packed:
            for name in packed.namelist():
                with packed.open(name) as file:
                    np.lib.format.read_magic(file)
                    _, _, dtype = np.lib.format.read_array_header_1_0(file)
                if dtype.hasobject:
                    raise Error(
                        f"{path} holds pickled objects, as PFLlib writes them, which pfedsim never loads: they could "
                        f"run any code; {HOW}"
                    )
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # its reader has the error


def _check_counts(file: Path, clients: Sequence[Split], data: DataSet) -> None:
    """Compare with the counts that PFLlib writes into config.json, if it is there."""
    if not file.is_file():
        return
    try:
        listed = json.loads(file.read_bytes())["Size of samples for labels in clients"]
        theirs = [{int(label): int(n) for label, n in row} for row in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Error(f"{file} is not a configuration of PFLlib: {error}") from error
    for k, (split, counts) in enumerate(zip(clients, theirs, strict=False)):
        ours = np.bincount(data.y[np.concatenate([split.train, split.test])])
        if len(theirs) != len(clients) or {c: int(n) for c, n in enumerate(ours) if n} != counts:
            raise Error(
                f"{file} counts other samples of client {k} than its files hold: files of two partitions?"
            )
