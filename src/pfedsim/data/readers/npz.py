"""Read a `.npz` file with x (images, signals or tables), y, and optionally client, domain, classes, mean and
std."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from pfedsim import memory
from pfedsim.arrays import arrays_in
from pfedsim.data.dataset import DataSet, deviation, parts
from pfedsim.data.readers.lengths import evened
from pfedsim.data.task import suiting
from pfedsim.errors import Error

MOST_CLASSES, PER_CLASS = 100, 10  # with more labels, each should have so many samples on average


def read(
    path: Path,
    missing: str = "refuse",
    name: str | None = None,
    lengths: str | None = None,
    length: int | None = None,
    any_labels: bool = False,
) -> DataSet:
    """Read the data set in this file. uint8 means pixels; other numbers become float32. Mean and std of each
    channel (or column of a table) are computed unless the file has them. `missing`: "refuse" NaN, or fill it
    with each client's "mean"; `lengths`: "pad", "cut" or "window" signals of unequal lengths, to `length`;
    `any_labels`: integers are the names of classes, not their numbers."""
    arrays = arrays_in(path, ("x", "y"), ("client", "domain", "classes", "mean", "std", "length"))
    notes = []
    if any_labels and "length" in arrays:
        signals = len(arrays["length"]) if arrays["length"].ndim == 1 else -1
        for array in ("y", "client", "domain"):
            if array in arrays and arrays[array].shape != (signals,):
                raise Error(
                    f"{path}: {array} has shape {arrays[array].shape} for {signals} signals of given length"
                )
        samples_of(path, arrays["x"].reshape(len(arrays["x"]), -1), missing)
        arrays["x"], whose, said = evened(path, arrays["x"], arrays["length"], lengths, length)
        arrays |= {array: arrays[array][whose] for array in ("y", "client", "domain") if array in arrays}
        missing, notes = ("mean" if lengths == "pad" else missing), [said]
    elif any_labels and (lengths is not None or length is not None):
        raise Error(f"{path}: --lengths is for signals of unequal lengths, which need an array `length`")
    x = samples_of(path, arrays["x"], missing)
    if any_labels:
        y, classes, said = _named_labels(path, arrays["y"], arrays.get("classes"))
        notes.append(said)
    else:
        y, classes = _labels(path, arrays["y"], arrays.get("classes"))
    if len(y) and y.min() == y.max() >= 0:
        raise Error(f"{path}: y has only one class, {classes[y[0]]!r}")
    mean, std = _normal(path, x, arrays)
    client = _column(path, arrays, "client", len(x))
    domain = _column(path, arrays, "domain", len(x))
    defaults = suiting(tuple(x.shape[1:]), len(y), client)
    told = tuple(filter(None, notes))
    return DataSet(name or path.stem, x, y, classes, mean, std, client, domain, defaults, notes=told)


def samples_of(path: Path, x: np.ndarray, missing: str = "refuse") -> np.ndarray:
    """Samples as stored: bytes as images with channels first, other numbers as float32."""
    if x.ndim < 2 or x.dtype.kind not in "uifb":
        raise Error(f"{path}: x is {x.dtype} of shape {x.shape}; it must hold numbers, one sample per row")
    if not x.size:
        raise Error(f"{path} has no samples" + (f": x has the shape {x.shape}" if len(x) else ""))
    if x.dtype == np.uint8:
        if x.ndim == 3:  # grey images without a channel
            x = x.reshape(len(x), 1, *x.shape[1:])
        elif x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):  # channels last
            memory.need(path, x.nbytes)
            x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        return x
    if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise Error(
            f"{path}: x has shape {x.shape}; channels come first for float images: x.transpose(0, 3, 1, 2)"
        )
    with np.errstate(over="ignore"):
        x = x.astype(np.float32, copy=False)
    gone = sum(int((np.isinf(p) if missing == "mean" else ~np.isfinite(p)).sum()) for p in parts(x))
    if gone:
        raise Error(
            f"{path}: x has {gone} {'infinite' if missing == 'mean' else 'missing or infinite'} "
            "values; replace them first"
        )
    return x


def _labels(path: Path, y: np.ndarray, names: np.ndarray | None) -> tuple[np.ndarray, tuple[str, ...]]:
    if y.ndim != 1:
        raise Error(f"{path}: y has shape {y.shape}; it must be one label per sample")
    if y.dtype.kind in "US":
        words, y = np.unique(y.astype(str), return_inverse=True)
        return y.astype(np.int64), tuple(words.tolist())
    if y.dtype.kind not in "iub":
        raise Error(f"{path}: y is {y.dtype}; labels are integers from 0, or words")
    if names is None and len(y) and int(y.max()) >= len(y):
        raise Error(
            f"{path}: y reaches {y.max()} for {len(y)} samples; labels are integers from 0 without gaps, or words"
        )
    if names is not None and (names.ndim != 1 or (len(y) and int(y.max()) >= len(names))):
        raise Error(f"{path}: classes must be a list of names, one for each label from 0 to {y.max()}")
    classes = (
        tuple(map(str, names))
        if names is not None
        else tuple(str(c) for c in range(int(y.max()) + 1 if len(y) else 0))
    )
    return y.astype(np.int64), classes


def _named_labels(
    path: Path, y: np.ndarray, names: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Labels as the numbers of classes, their names, and what was done. Integers 0, 1, ... stay as they are, others
    are names."""
    if (
        y.ndim == 1
        and y.dtype.kind == "f"
        and len(y)
        and bool((y == np.floor(y)).all())
        and abs(y).max() < 2**53
    ):
        y = y.astype(np.int64)
    said = ""
    if names is None and y.ndim == 1 and y.dtype.kind in "iu" and len(y):
        values, places = np.unique(y, return_inverse=True)
        other = values[0] != 0 or values[-1] != len(values) - 1
        many = len(values) > MOST_CLASSES and len(y) < PER_CLASS * len(values)
        if many or (other and len(values) > len(y) / 2):
            raise Error(
                f"{path}: y has {len(values):,} different values for {len(y):,} samples, too many for classes: put "
                "them into a few groups"
            )
        if other:
            names, y = values.astype(str), places.reshape(-1)
            said = f"the labels are {len(values)} classes, numbered from 0 in their order"
    made, classes = _labels(path, y, names)
    return made, classes, said


def _normal(
    path: Path, x: np.ndarray, arrays: dict[str, np.ndarray]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    channels = x.shape[1]
    if "mean" in arrays and "std" in arrays:
        words = {arrays["mean"].dtype.kind, arrays["std"].dtype.kind} - set("iuf")
        mean, std = (
            np.zeros(0) if words else arrays[name].astype(float).reshape(-1) for name in ("mean", "std")
        )
        if (
            len(mean) != channels
            or len(std) != channels
            or not (std > 0).all()
            or not np.isfinite([mean, std]).all()
        ):
            raise Error(
                f"{path}: mean and std must hold one number for each of the {channels} channels, std "
                "above 0"
            )
    else:
        mean, std = _moments(path, x)
        if np.isnan(mean).any():
            raise Error(f"{path}: channel {int(np.isnan(mean).argmax())} of x has no values")
        std = np.where(std > 0, std, 1.0)  # a constant channel is not scaled
    return tuple(mean.tolist()), tuple(std.tolist())


def _moments(path: Path, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel, of the values that are there."""
    others = (0, *range(2, x.ndim))
    if x.dtype == np.uint8 or not any(np.isnan(part).any() for part in parts(x)):
        mean = np.asarray(np.mean(x, axis=others, dtype=np.float64))
        scale = 255.0 if x.dtype == np.uint8 else 1.0
        return mean / scale, deviation(x, mean) / scale
    memory.need(path, 3 * x.nbytes)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # of a channel without values, which is an error below
        found = (np.asarray(of(x, axis=others, dtype=np.float64)) for of in (np.nanmean, np.nanstd))
        return next(found), next(found)


def _column(path: Path, arrays: dict[str, np.ndarray], name: str, length: int) -> np.ndarray | None:
    if name not in arrays or arrays[name].ndim == 0:
        return None
    if arrays[name].shape != (length,):
        raise Error(
            f"{path}: {name} has shape {arrays[name].shape}; it must hold one entry for each of the "
            f"{length} samples"
        )
    return arrays[name]
