"""Read other programs' partitions from plain arrays and JSON, so that people compare on the same split. Pickles are
refused: loading one runs whatever code is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import memory
from pfedsim.arrays import arrays_in
from pfedsim.data import by_content
from pfedsim.data.by_content import HOW, refuse_objects
from pfedsim.data.dataset import DataSet
from pfedsim.data.partition import Partition, Split, split_share
from pfedsim.errors import Error

PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
LISTS = ("data_indices", "partitions", "clients")  # keys under which JSON files hold the clients
PARTS = ("train", "val", "test")


@dataclass
class Found:
    """A partition and what the user should know of it."""

    clients: list[Split]
    split: bool
    """whether the source divides each client's samples into train and test"""
    what: str
    notes: list[str] = field(default_factory=list)


def read(path: Path, data: DataSet, test: float, seed: int) -> tuple[Partition, list[str]]:
    """The partition in a file or folder, and notes on it. `test` and `seed` divide the samples of each client where
    the source does not."""
    found = _read(path, data)
    recipe: dict[str, Any] = {"kind": "imported", "source": found.what, "clients": len(found.clients)}
    clients = found.clients
    if not found.split:
        stream = np.random.RandomState(seed)
        clients = [split_share(c.train, test, stream) for c in clients]
        recipe |= {"test": test, "seed": seed}
        found.notes.append(
            f"it does not divide train from test: {test:g} of each client's samples, seed {seed}"
        )
    _check(path, clients, len(data.y))
    return Partition(tuple(clients), recipe, data.digest), [*found.notes, *_counted(clients, len(data.y))]


def _read(path: Path, data: DataSet) -> Found:
    if path.is_dir():
        clients = by_content.folder(path, data)
        notes = [f"all samples were found in {data.name}, by their content"]
        return Found(clients, True, "samples of every client", notes)
    if not path.is_file():
        raise Error(f"there is no file or folder {path}")
    ending = path.suffix.lower()
    if ending in PICKLES:
        raise Error(f"{path} is a pickle, which pfedsim never loads: it could run any code; {HOW}")
    if ending == ".json":
        return _json(path, data)
    if ending == ".npz":
        return _npz(path, data)
    if ending == ".npy":
        return _owners(path, _npy(path), data)
    raise Error(f"{path}: a partition comes as .json, .npz, .npy or a folder of .npz files; {HOW}")


# JSON: positions by client, as FL-bench and Flower have them


def _json(path: Path, data: DataSet) -> Found:
    memory.need(path, 12 * path.stat().st_size)  # what lists of integers take in Python
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"{path} is not JSON: {' '.join(str(error).split())[:200]}") from error
    notes, listed = [], content
    if isinstance(content, Mapping):
        key = next((k for k in LISTS if k in content), None)
        if key is not None:
            listed = content[key]
        if (separation := content.get("separation")) is not None:
            _refuse_users(path, separation)
        notes = _same_order(path, content.get("labels"), data)
    rows = _in_order(path, listed)
    divided = [isinstance(row, Mapping) for row in rows]
    if any(divided) and not all(divided):
        k = divided.index(False)
        raise Error(
            f"{path}: client {k} is a plain list, others have {' and '.join(PARTS)}; give all alike"
        )
    if not rows:
        raise Error(f"{path} has no clients")
    if not divided[0]:
        clients = [Split(_positions(path, k, row), np.empty(0, np.int64)) for k, row in enumerate(rows)]
        return Found(clients, False, "positions by client", notes)
    parts = [{p: _positions(path, k, row.get(p, [])) for p in PARTS} for k, row in enumerate(rows)]
    notes += _of_validation(parts)
    clients = [Split(np.concatenate([p["val"], p["train"]]), p["test"]) for p in parts]
    return Found(clients, True, "positions by client, train and test", notes)


def _in_order(path: Path, listed: Any) -> list[Any]:
    """The clients of a list, or of an object whose keys are 0, 1, 2, ..."""
    if isinstance(listed, Mapping):
        keys = [key for key in listed if str(key) not in ("labels", "separation")]
        if sorted(keys, key=str) != sorted(map(str, range(len(keys)))):
            raise Error(
                f"{path}: clients should be numbered 0, 1, 2, ...; found {', '.join(map(str, keys[:5]))}"
            )
        return [listed[str(k)] for k in range(len(keys))]
    if isinstance(listed, list):
        return listed
    raise Error(
        f"{path} should hold the clients' positions, as a list or under one of {', '.join(LISTS)}; {HOW}"
    )


def _positions(path: Path, client: int, row: Any) -> np.ndarray:
    whole = isinstance(row, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in row)
    if not whole:
        raise Error(f"{path}: client {client} should be a list of positions, or hold {', '.join(PARTS)}")
    try:
        return np.array(row, dtype=np.int64)
    except OverflowError as error:
        raise Error(f"{path}: client {client} has a position that is too large") from error


def _same_order(path: Path, labels: Any, data: DataSet) -> list[str]:
    """Compare the labels in the file, one for each sample in their order, with ours."""
    if labels is None:
        return [
            "it holds no labels, so nothing shows that its samples come in our order; docs/migrate.md says how to add "
            "them"
        ]
    try:
        theirs = np.array(labels, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise Error(f"{path}: labels should be integers, one for each sample") from error
    if theirs.ndim != 1 or len(theirs) > len(data.y):
        raise Error(
            f"{path} has labels of the shape {theirs.shape}, but {data.name} has {len(data.y):,} samples"
        )
    differ = np.flatnonzero(theirs != data.y[: len(theirs)])
    if len(differ):
        k = int(differ[0])
        raise Error(
            f"{path}: sample {k} has the label {theirs[k]}, in {data.name} it has {data.y[k]}: the samples come in "
            "another order, or the classes are numbered otherwise"
        )
    return [f"the labels of its {len(theirs):,} samples are ours, in the same order"]


def _refuse_users(path: Path, separation: Any) -> None:
    """FL-bench can hold whole clients back for testing; we do so with `unseen`."""
    if isinstance(separation, Mapping) and separation.get("train") != separation.get("test"):
        raise Error(
            f"{path} divides the clients, not their samples, into train and test (--split user); import one made with "
            "--split sample, and hold clients back with --unseen"
        )


def _of_validation(parts: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    """Where there are validation parts: which share gives the same ones."""
    held = [len(p["val"]) for p in parts]
    if not any(held):
        return []
    train = [len(p["val"]) + len(p["train"]) for p in parts]
    share = next((s for s in np.arange(1, 1000) / 1000 if [int(s * n + 1e-9) for n in train] == held), None)
    said = "its validation parts come first in the train parts"
    if share is None:
        return [f"{said}; no --validation gives the same ones, because their shares differ"]
    return [f"{said}; --validation {share:g} holds the same ones back"]


# arrays


def _npy(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            memory.need(path, path.stat().st_size)
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Error(
            f"{path} is not a plain .npy file: {' '.join(str(error).split())[:200]}; {HOW}"
        ) from error


def _npz(path: Path, data: DataSet) -> Found:
    """The owner of every sample under `client`, or an array of positions for each client."""
    refuse_objects(path)
    arrays = arrays_in(path)
    if "client" in arrays:
        return _owners(path, arrays["client"], data)
    names = [str(k) for k in range(len(arrays))]
    if set(arrays) != set(names):
        raise Error(
            f"{path} should have an array `client` with the client of every sample, or arrays 0, 1, 2, ... of "
            f"positions; it has {', '.join(sorted(arrays)[:5])}"
        )
    clients = []
    for name in names:
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
            raise Error(
                f"{path}: client {name} is {arrays[name].dtype} of shape {arrays[name].shape}, not positions"
            )
        clients.append(Split(arrays[name].astype(np.int64), np.empty(0, np.int64)))
    notes = _same_order(path, None, data)
    return Found(clients, False, "positions by client", notes)


def _owners(path: Path, owner: np.ndarray, data: DataSet) -> Found:
    """The client of every sample; a negative number: of none."""
    if owner.shape != (len(data.y),) or owner.dtype.kind not in "iu":
        raise Error(
            f"{path} holds {owner.dtype} of shape {owner.shape}; it should be the client of each of the "
            f"{len(data.y):,} samples of {data.name}"
        )
    count = int(owner.max()) + 1
    if count > len(owner):
        raise Error(
            f"{path} names client {count - 1}, but there are {len(owner):,} samples; number clients from 0"
        )
    clients = [Split(np.flatnonzero(owner == k), np.empty(0, np.int64)) for k in range(count)]
    return Found(clients, False, "the client of every sample", _same_order(path, None, data))


def _check(path: Path, clients: Sequence[Split], samples: int) -> None:
    if not clients:
        raise Error(f"{path} has no clients")
    for k, split in enumerate(clients):
        both = np.concatenate([split.train, split.test])
        strange = both[(both < 0) | (both >= samples)]
        if len(strange):
            raise Error(
                f"{path}: client {k} has the position {strange[0]}; the data have {samples:,} samples from 0"
            )
        if len(np.unique(both)) < len(both):
            raise Error(f"{path}: client {k} has a sample twice")
        if not len(split.train) or not len(split.test):
            part = "train" if not len(split.train) else "test"
            raise Error(f"{path}: client {k} has no sample in its {part} part; leave it out or give it one")


def _counted(clients: Sequence[Split], samples: int) -> list[str]:
    every = np.concatenate([part for split in clients for part in (split.train, split.test)])
    counts = np.bincount(every, minlength=samples)
    notes = []
    if unused := int((counts == 0).sum()):
        notes.append(f"{unused:,} of the {samples:,} samples belong to no client")
    if shared := int((counts > 1).sum()):
        notes.append(f"{shared:,} samples belong to several clients")
    return notes
