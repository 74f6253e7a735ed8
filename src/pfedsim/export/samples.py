"""Read pictures, folders of pictures, tables and `.npz` files as samples for a model."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from pfedsim import memory
from pfedsim.arrays import arrays_in
from pfedsim.data.own import TABLES
from pfedsim.data.readers import tables
from pfedsim.data.readers.npz import samples_of
from pfedsim.data.readers.pictures import SUFFIXES, image_in, pixels_of, rescaled
from pfedsim.data.tables import sheets
from pfedsim.errors import Error
from pfedsim.export.client_model import ClientModel

TEXT = 100  # bytes of a cell of text


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as a model takes them, with their names and, if known, their true classes."""

    names: list[str]
    x: np.ndarray
    labels: list[str] | None = None
    warnings: tuple[str, ...] = ()


def read(model: ClientModel, sources: Sequence[Path], resize: bool = False) -> Samples:
    """Read one table, one `.npz`, or any number of pictures and folders of pictures."""
    missing = [path for path in sources if not path.exists()]
    if missing:
        raise Error(f"there is no file or folder {missing[0]}")
    if [path.suffix.lower() for path in sources] == [".npz"]:
        return npz(model, sources[0])
    if model.recipe is not None and [path.suffix.lower() in TABLES for path in sources] == [True]:
        return original(model, sources[0])
    if [path.suffix.lower() for path in sources] == [".csv"]:
        return table(model, sources[0])
    files = [file for path in sources for file in _pictures(path)]
    memory.need(f"reading {len(files)} images", 2 * len(files) * math.prod(model.shape))
    return Samples(
        [str(file) for file in files], np.stack([picture(model, file, resize) for file in files])
    )


def original(model: ClientModel, path: Path) -> Samples:
    """Read a file of the original table."""
    rows = model.rows(sheets.read(path))
    names = [str(k) for k in range(1, len(rows.x) + 1)]
    foreign = sum(label not in model.classes for label in rows.labels or () if label)
    said = (
        [f"{foreign:,} of {len(names):,} labels are no class of the model and count as wrong"]
        if foreign
        else []
    )
    return Samples(names, model.filled(rows.x), rows.labels, (*said, *rows.warnings))


def _pictures(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not found:
            raise Error(f"{path} has no images ({', '.join(SUFFIXES)})")
        return found
    if path.suffix.lower() in (".npz", *TABLES):
        raise Error(
            f"{path} must be the only input: give images and folders of images, or one .csv, or one .npz"
        )
    return [path]


def picture(model: ClientModel, file: Path | IO[bytes], resize: bool = False) -> np.ndarray:
    """Read one picture as bytes of shape (channels, height, width), in grey or colour as the model needs; `resize`
    rescales it to the model's size."""
    if model.dtype != "uint8" or len(model.shape) != 3 or model.shape[0] not in (1, 3):
        raise Error(
            f"this model takes {model.dtype} samples of shape {model.shape}, not images; give a .npz with x"
        )
    channels, height, width = model.shape
    image = image_in(file, grey=channels == 1)
    if image.size != (width, height) and not resize:
        name = file if isinstance(file, Path) else "the image"
        what = f"is {image.width} x {image.height} pixels; this model takes {width} x {height}"
        raise Error(f"{name} {what} (--resize rescales images)")
    return pixels_of(rescaled(image, width, height))


def table(model: ClientModel, path: Path) -> Samples:
    """Read a CSV file with one sample per row. Its columns are named as in the training data, or, without a header,
    are in that order. Cells may be missing if the model has fill values."""
    if len(model.shape) != 1:
        raise Error(f"this model takes samples of shape {model.shape}, not rows of a table")
    tables.need_for(path, *model.shape, each=TEXT)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except UnicodeDecodeError as error:
        raise Error(f"{path} is not UTF-8; in a spreadsheet choose 'CSV UTF-8'") from error
    except (OSError, csv.Error) as error:
        raise Error(f"{path} is not a CSV table: {error}") from error
    if rows:
        tables.check_commas(path, rows[0])
    head = [cell.strip() for cell in rows.pop(0)] if rows and _is_heading(model, rows[0]) else None
    if not rows:
        raise Error(f"{path} has no rows of numbers")
    (columns,) = model.shape
    first = 1 if head is None else 2
    if head is not None and model.columns is not None:
        odd = [name for name in model.columns if name not in head] or [
            name for name in head if name not in model.columns
        ]
        if odd:
            what = "is missing" if odd[0] in model.columns else "is not one of the model's"
            raise Error(f"{path}: column {odd[0]!r} {what}; this model takes {', '.join(model.columns)}")
    for number, row in enumerate([head, *rows] if head else rows, 1):
        if len(row) != columns:
            raise Error(f"{path}, row {number} has {len(row)} columns; this model takes {columns}")
    for number, row in enumerate(rows, first):
        bad = next(
            (
                k
                for k, cell in enumerate(row)
                if not _is_number(cell) and not (model.fill is not None and _is_missing(cell))
            ),
            None,
        )
        if bad is not None:
            raise Error(
                f"{path}, row {number}, column {head[bad] if head else bad + 1}: {row[bad]!r} is not a "
                "number"
            )
    x = np.array([[tables.number(cell) for cell in row] for row in rows])
    if head is not None and model.columns is not None:
        x = x[:, [head.index(name) for name in model.columns]]
    with np.errstate(over="ignore"):  # the model refuses what is infinite
        return Samples([str(k) for k in range(1, len(rows) + 1)], x.astype(np.float32))


def _is_heading(model: ClientModel, row: list[str]) -> bool:
    names = [cell.strip() for cell in row]
    if model.columns is not None and sorted(names) == sorted(model.columns):
        return True
    return not any(map(_is_number, names)) and not all(map(_is_missing, names))


def npz(model: ClientModel, path: Path) -> Samples:
    """Read `x` of a .npz file, as `--data` takes it, and with `y` the true classes."""
    arrays = arrays_in(path, ("x",), ("y", "classes"))
    x = samples_of(path, arrays["x"], "refuse" if model.fill is None else "mean")
    names = [str(k) for k in range(len(x))]
    return Samples(names, x, _labels(model, path, arrays) if "y" in arrays else None)


def _labels(model: ClientModel, path: Path, arrays: dict[str, np.ndarray]) -> list[str]:
    y = arrays["y"]
    if y.shape != arrays["x"].shape[:1]:
        raise Error(f"{path}: y has shape {y.shape}; it must be one label per sample")
    if y.dtype.kind in "US":
        return [str(label) for label in y.tolist()]
    classes = [str(c) for c in arrays["classes"].tolist()] if "classes" in arrays else list(model.classes)
    if y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < len(classes)):
        raise Error(f"{path}: y must hold words, or integers from 0 to {len(classes) - 1}")
    return [classes[k] for k in y.tolist()]


def _is_missing(cell: str) -> bool:
    return cell.strip().lower() in tables.MISSING


def _is_number(cell: str) -> bool:
    try:
        tables.number(cell)
    except ValueError:
        return False
    return not _is_missing(cell)
