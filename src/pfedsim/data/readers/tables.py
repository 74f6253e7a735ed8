"""Read tables from CSV and Parquet files: a label column, an optional client column, and numbers. Also reads UCI
heart disease."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.readers.folders import check_case
from pfedsim.data.task import Defaults, suiting
from pfedsim.errors import Error, nearest

MISSING = {"", "?", "na", "n/a", "nan", "null", "none"}
Columns = dict[str, list[str]]  # each cell as text


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
    columns = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    whose = client or ("client" if "client" in columns else None)
    for asked, option in ((label, "--label"), (whose, "--client"), *((d, "--drop") for d in drop)):
        if asked is not None and asked not in columns:
            raise Error(
                f"{path} has no column {asked!r} ({option} of `pfedsim data add`); {nearest(asked, columns)}"
            )
    left_out = {label, whose, *drop}
    numbers = [c for c in columns if c not in left_out]
    if not numbers:
        raise Error(
            f"{path} has no columns to learn from besides {', '.join(sorted(str(c) for c in left_out if c))}"
        )
    for column in (label, whose):
        if column is not None and "" in columns[column]:
            raise Error(f"{path}, row {columns[column].index('') + 1}: column {column!r} is empty")
    x = np.stack([_numbers(path, column, columns[column]) for column in numbers], axis=1)
    classes = sorted(set(columns[label]), key=_in_order)
    if len(classes) == 1:
        raise Error(f"{path}: column {label!r} has only one class, {classes[0]!r}")
    check_case(classes, path)
    place = {word: k for k, word in enumerate(classes)}
    y = np.array([place[word] for word in columns[label]], dtype=np.int64)
    owner = None if whose is None else np.array(columns[whose])
    defaults = suiting((x.shape[1],), len(y), owner)
    return as_data(name or path.stem, path, x, y, tuple(classes), numbers, owner, missing, defaults)


def heart(folder: Path) -> DataSet:
    """UCI heart disease: four hospitals, 13 columns, two classes (any narrowing, num > 0, or none). Missing cells
    are filled with each hospital's mean."""
    rows: list[list[str]] = []
    who: list[str] = []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        path = folder / f"processed.{hospital}.data"
        for number, row in enumerate(_rows(path), 1):
            if len(row) != 14:
                raise Error(f"{path}, row {number} has {len(row)} columns; heart disease has 14")
            rows.append(row)
            who.append(hospital)
    names = [
        *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
        *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
    ]
    columns = {name: [row[k].strip() for row in rows] for k, name in enumerate(names)}
    x = np.stack([_numbers(folder, name, columns[name]) for name in names], axis=1)
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


def _csv(path: Path) -> Columns:
    rows = _rows(path)
    if len(rows) < 2:
        raise Error(f"{path} has no rows below its header")
    check_commas(path, rows[0])
    heading = [name.strip() for name in rows[0]]
    twice = [name for name in heading if heading.count(name) > 1]
    if twice:
        raise Error(f"{path} has two columns named {twice[0]!r}")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(heading):
            raise Error(f"{path}, row {number} has {len(row)} columns, the header has {len(heading)}")
    return {name: [row[k].strip() for row in rows[1:]] for k, name in enumerate(heading)}


def check_commas(path: Path, heading: Sequence[str]) -> None:
    """Raise an error if semicolons or tabs separate the columns."""
    for sign, name in ((";", "';'"), ("\t", "tabs")):
        if len(heading) == 1 and sign in heading[0]:
            raise Error(f"{path} is separated by {name}: save it with commas")


def _rows(path: Path) -> list[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Error(f"{path} is not UTF-8; in a spreadsheet choose 'CSV UTF-8'") from error
    except csv.Error as error:
        raise Error(f"{path} is not a CSV file: {error}") from error


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise Error(
            f"{path}: Parquet needs pyarrow; install it with pip install 'pfedsim[tables]'"
        ) from None
    if not path.is_file():
        raise Error(f"there is no file {path}")
    try:
        table = parquet.read_table(path)
        columns = {str(name): table.column(name).to_pylist() for name in table.column_names}
    except Exception as error:  # with a damaged file, the library may raise anything
        raise Error(f"{path} is not a valid Parquet file: {' '.join(str(error).split())}") from error
    if not columns or not table.num_rows:
        raise Error(f"{path} has no rows")
    return {
        name: ["" if cell is None or cell != cell else str(cell).strip() for cell in cells]
        for name, cells in columns.items()
    }


def number(cell: str) -> float:
    """A cell's value, NaN if it is missing. Raises ValueError if it is not a number."""
    cell = cell.strip()
    return float("nan" if cell.lower() in MISSING else {"True": "1", "False": "0"}.get(cell, cell))


def _numbers(path: Path, column: str, cells: Sequence[str]) -> np.ndarray:
    values = np.empty(len(cells))
    for k, cell in enumerate(cells):
        try:
            values[k] = number(cell)
        except ValueError:
            way_out = "convert it to numbers, or leave it out with `pfedsim data add --drop`"
            raise Error(
                f"{path}, row {k + 1}: column {column!r} holds {cell!r}, not a number; {way_out}"
            ) from None
    with np.errstate(over="ignore"):
        infinite = np.isinf(values.astype(np.float32))  # as it will be stored
    if infinite.any():
        raise Error(
            f"{path}, row {int(infinite.argmax()) + 1}: column {column!r} is infinite, or too large for "
            "float32"
        )
    return values


def _in_order(word: str) -> tuple[bool, float, str]:
    """Sort key of labels: numbers first, by value, then words alphabetically."""
    try:
        return False, float(word), word
    except ValueError:
        return True, 0.0, word
