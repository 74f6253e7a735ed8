"""Read tables from CSV and Parquet files: a label column, an optional client column, and numbers. Also reads UCI
heart disease."""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import memory
from pfedsim.data.dataset import DataSet
from pfedsim.data.readers.folders import check_case
from pfedsim.data.task import Defaults, suiting
from pfedsim.errors import Error, nearest

CELL = 40  # bytes of a number: while it is read, in the array, and in the mean and deviation
PARQUET_ROWS = 10_000  # converted at a time
TOO_LARGE = 2.0**128 - 2.0**103  # the first number that float32 rounds to infinity
MISSING = {"", "?", "na", "n/a", "nan", "null", "none"}


def read(
    path: Path,
    label: str = "label",
    client: str | None = None,
    drop: Sequence[str] = (),
    missing: str = "refuse",
    name: str | None = None,
) -> DataSet:
    """Read the table in this file. `client`: the column that names each row's client (default: "client", if there
    is one). All other columns, except those in `drop`, must be numbers. `missing`: "refuse" missing cells, or
    fill them with each client's "mean"."""
    heading, rows = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    whose = client or ("client" if "client" in heading else None)
    for asked, option in ((label, "--label"), (whose, "--client"), *((d, "--drop") for d in drop)):
        if asked is not None and asked not in heading:
            raise Error(
                f"{path} has no column {asked!r} ({option} of `pfedsim data add`); {nearest(asked, heading)}"
            )
    left_out = {label, whose, *drop}
    numbers = [c for c in heading if c not in left_out]
    if not numbers:
        raise Error(
            f"{path} has no columns to learn from besides {', '.join(sorted(str(c) for c in left_out if c))}"
        )
    words, x = _gathered(path, heading, rows, [c for c in (label, whose) if c is not None], numbers)
    classes = sorted(set(words[label]), key=in_order)
    if len(classes) == 1:
        raise Error(f"{path}: column {label!r} has only one class, {classes[0]!r}")
    check_case(classes, path)
    place = {word: k for k, word in enumerate(classes)}
    y = np.array([place[word] for word in words[label]], dtype=np.int64)
    owner = None if whose is None else np.array(words[whose])
    defaults = suiting((x.shape[1],), len(y), owner)
    return as_data(name or path.stem, path, x, y, tuple(classes), numbers, owner, missing, defaults)


def heart(folder: Path) -> DataSet:
    """UCI heart disease: four hospitals, 13 columns, two classes (any narrowing, num > 0, or none). Missing cells
    are filled with each hospital's mean."""
    rows: list[list[str]] = []
    who: list[str] = []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        path = folder / f"processed.{hospital}.data"
        need_for(path, 14)
        for number, row in enumerate(_rows(path), 1):
            if len(row) != 14:
                raise Error(f"{path}, row {number} has {len(row)} columns; heart disease has 14")
            rows.append(row)
            who.append(hospital)
    names = [
        *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
        *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
    ]
    _, x = _gathered(folder, names, rows, [], names)
    if np.isnan(x[:, 13]).any():
        raise Error(f"{folder}: a row has no diagnosis")
    y = (x[:, 13] > 0).astype(np.int64)
    defaults = Defaults(clients=None, partition="given", minimum=2, join=None, rounds=50, model="mlp")
    return as_data(
        "heart", folder, x[:, :13], y, ("absent", "present"), names[:13], np.array(who), "mean", defaults
    )


def as_data(
    name: str,
    path: Path,
    x: np.ndarray,
    y: np.ndarray,
    classes: tuple[str, ...],
    columns: Sequence[str],
    client: np.ndarray | None,
    missing: str,
    defaults: Defaults,
) -> DataSet:
    """A data set from columns of numbers, with each column's mean and standard deviation over its known cells."""
    gaps = np.isnan(x)
    if gaps.any() and missing == "refuse":
        row, column = (int(k) for k in np.argwhere(gaps)[0])
        many = f" ({int(gaps.sum())} cells in total)" if gaps.sum() > 1 else ""
        raise Error(
            f"{path}, row {row + 1}: column {columns[column]!r} is empty{many}; fill it in, or use "
            "`pfedsim data add --missing mean`"
        )
    empty = [column for column, gone in zip(columns, gaps.all(0), strict=True) if gone]
    if empty:
        raise Error(
            f"{path}: column {empty[0]!r} is empty in every row; leave it out with `pfedsim data add "
            "--drop`"
        )
    mean, deviation = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    std = np.where(deviation > 0, deviation, 1.0)  # a constant column is not scaled
    constants = tuple(map(float, mean)), tuple(map(float, std))
    x = x.astype(np.float32)
    return DataSet(name, x, y, classes, *constants, client, defaults=defaults, columns=tuple(columns))


def need_for(path: Path, columns: int, each: int = CELL) -> None:
    """Raise an error if a text file with so many columns does not fit in memory. Its lines are counted first."""
    try:
        with open(path, "rb") as file:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) + 1
            memory.need(path, max(file.tell(), lines * columns * each))
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error


def _csv(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    need_for(path, 1)
    rows = _rows(path)
    heading = [name.strip() for name in next(rows, [])]
    check_commas(path, heading)
    _check_twice(path, heading)
    need_for(path, len(heading))
    return heading, rows


def _check_twice(path: Path, heading: Sequence[str]) -> None:
    twice = [name for name, times in Counter(heading).items() if times > 1]
    if twice:
        raise Error(f"{path} has two columns named {twice[0]!r}")


def check_commas(path: Path, heading: Sequence[str]) -> None:
    """Raise an error if semicolons or tabs separate the columns."""
    for sign, name in ((";", "';'"), ("\t", "tabs")):
        if len(heading) == 1 and sign in heading[0]:
            raise Error(f"{path} is separated by {name}: save it with commas")


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            yield from (row for row in csv.reader(file) if any(cell.strip() for cell in row))
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Error(f"{path} is not UTF-8; in a spreadsheet choose 'CSV UTF-8'") from error
    except csv.Error as error:
        raise Error(f"{path} is not a CSV file: {error}") from error


def _parquet(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise Error(
            f"{path}: Parquet needs pyarrow; install it with pip install 'pfedsim[tables]'"
        ) from None
    if not path.is_file():
        raise Error(f"there is no file {path}")
    try:
        file = parquet.ParquetFile(path)
        heading = [str(name) for name in file.schema_arrow.names]
        rows, size = file.metadata.num_rows, file.metadata.num_columns
    except Exception as error:  # with a damaged file, the library may raise anything
        raise Error(f"{path} is not a valid Parquet file: {' '.join(str(error).split())}") from error
    _check_twice(path, heading)
    memory.need(path, rows * size * CELL)
    return heading, _parquet_rows(path, file)


def _parquet_rows(path: Path, file: Any) -> Iterator[list[str]]:
    try:
        for batch in file.iter_batches(PARQUET_ROWS):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield ["" if cell is None or cell != cell else str(cell) for cell in row]
    except Exception as error:  # with a damaged file, the library may raise anything
        raise Error(f"{path} is not a valid Parquet file: {' '.join(str(error).split())}") from error


def number(cell: str) -> float:
    """A cell's value, NaN if it is missing. Raises ValueError if it is not a number."""
    cell = cell.strip()
    return float("nan" if cell.lower() in MISSING else {"True": "1", "False": "0"}.get(cell, cell))


def _gathered(
    path: Path,
    heading: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Sequence[str],
    numbers: Sequence[str],
) -> tuple[dict[str, list[str]], np.ndarray]:
    """The columns of words, and those of numbers side by side. Rows are converted as they come, because cells of
    text take many times the memory of numbers."""
    places = {name: k for k, name in enumerate(heading)}
    kept: dict[str, list[str]] = {name: [] for name in words}
    found = {name: array("d") for name in numbers}
    same: dict[str, str] = {}  # one object for each word
    count = 0
    for count, row in enumerate(rows, 1):
        if len(row) != len(heading):
            raise Error(f"{path}, row {count} has {len(row)} columns, the header has {len(heading)}")
        for name, column in kept.items():
            if not (cell := row[places[name]].strip()):
                raise Error(f"{path}, row {count}: column {name!r} is empty")
            column.append(same.setdefault(cell, cell))
        for name, values in found.items():
            values.append(_number(path, count, name, row[places[name]].strip()))
    if not count:
        raise Error(f"{path} has no rows below its header")
    return kept, np.stack([np.frombuffer(values) for values in found.values()], axis=1)


def _number(path: Path, row: int, column: str, cell: str) -> float:
    try:
        value = number(cell)
    except ValueError:
        way_out = "convert it to numbers, or leave it out with `pfedsim data add --drop`"
        raise Error(
            f"{path}, row {row}: column {column!r} holds {cell!r}, not a number; {way_out}"
        ) from None
    if abs(value) >= TOO_LARGE:
        raise Error(f"{path}, row {row}: column {column!r} is infinite, or too large for float32")
    return value


def in_order(word: str) -> tuple[bool, float, str]:
    """Sort key of labels: numbers first, by value, then words alphabetically."""
    try:
        return False, float(word), word
    except ValueError:
        return True, 0.0, word
