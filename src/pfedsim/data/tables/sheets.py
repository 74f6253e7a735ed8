"""Read the cells of a CSV or Parquet file or a pandas DataFrame as text. Separator and encoding are found out."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import escape, memory
from pfedsim.data.tables.cells import Raw, is_value
from pfedsim.errors import Error

CELL = 120  # bytes of a cell while it is read: its text, its code and its number
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
SAMPLE, ENOUGH = 200, 1 << 18  # lines, and characters, from which the separator is found out
PARQUET_ROWS = 10_000  # converted at a time
BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, eq=False)
class Sheet:
    """One file: its columns as text. `ragged`: rows whose number of cells is not that of the heading; `twice`:
    names that two columns have; `said`: how the file was read."""

    name: str
    columns: dict[str, Raw]
    rows: int
    said: str = ""
    ragged: list[int] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    values: int = 0
    """cells of the heading that hold values instead of names"""

    party: str = ""
    """the party whose file this is, if each has one"""


def read(path: Path) -> Sheet:
    """Read a file of a table."""
    if not path.is_file():
        raise Error(f"there is no file {path}")
    return _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)


def of_frame(frame: Any, name: str) -> Sheet:
    """Read a pandas DataFrame."""
    names = [str(column).strip() for column in frame.columns]
    memory.need(name, len(frame) * max(1, len(names)) * CELL)
    cells = (_texts(frame.iloc[:, k].tolist()) for k in range(len(names)))
    columns = [coded(column) for column in cells]
    return Sheet(name, dict(zip(names, columns, strict=True)), len(frame), twice=_twice(names), party=name)


def is_frame(value: object) -> bool:
    """Whether this is a pandas DataFrame, which nobody has who has not imported pandas."""
    kind = type(value)
    return any(k.__name__ == "DataFrame" and k.__module__.startswith("pandas") for k in kind.__mro__)


def coded(cells: Iterable[str]) -> Raw:
    """The cells of a column, each different one stored once."""
    places: dict[str, int] = {}
    codes = array("i", (places.setdefault(cell, len(places)) for cell in cells))
    return Raw(np.array(codes, dtype=np.int32), list(places))


def _texts(cells: Iterable[Any]) -> Iterator[str]:
    """Cells of a typed table as text; what compares unequal to itself is missing."""
    for cell in cells:
        if (
            cell is None
            or type(cell).__name__ in ("NAType", "NaTType")
            or (isinstance(cell, float) and cell != cell)
        ):
            yield ""
        else:
            yield str(cell).strip()


def _csv(path: Path) -> Sheet:
    try:
        memory.need(path, 6 * path.stat().st_size)
        content = path.read_bytes()
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    text, encoding = _decoded(path, content)
    del content
    separator, text = _separator(text)
    rows = _rows(path, text, separator)
    heading = [name.strip() for name in next(rows, [])]
    if not any(heading):
        raise Error(f"{path} is empty")
    while (
        heading
        and not heading[-1]
        and len(heading) > 1
        and _last_is_empty(path, text, separator, len(heading))
    ):
        heading.pop()
    memory.need(path, (text.count("\n") + 1) * len(heading) * CELL)
    names = [name or f"column {k}" for k, name in enumerate(heading, 1)]
    columns, ragged, count = _gathered(rows, len(names))
    if not count:
        raise Error(f"{path} has no rows below its heading")
    again = _again(names, columns)
    odd = sum(
        is_value(name) or (2 * again > len(names) and name in raw.words)
        for name, raw in zip(heading, columns, strict=True)
        if name
    )
    said = f"{encoding}, separated by {SEPARATORS[separator]}"
    return Sheet(
        path.name,
        dict(zip(names, columns, strict=False)),
        count,
        said,
        ragged,
        _twice(names),
        odd,
        path.stem,
    )


def _again(names: Sequence[str], columns: Sequence[Raw]) -> int:
    """How many names come again among the cells of their column, as they do if the first line holds values."""
    return sum(name in raw.words for name, raw in zip(names, columns, strict=True))


def _gathered(rows: Iterator[list[str]], width: int) -> tuple[list[Raw], list[int], int]:
    """The columns, the numbers of the rows of another length, and the number of rows."""
    places: list[dict[str, int]] = [{} for _ in range(width)]
    codes = [array("i") for _ in range(width)]
    ragged, count = [], 0
    for count, row in enumerate(rows, 1):
        if len(row) != width:
            if len(row) < width or any(cell.strip() for cell in row[width:]):
                ragged.append(count)
            row = [*row, *[""] * (width - len(row))]
        for k in range(width):
            cell = row[k].strip()
            codes[k].append(places[k].setdefault(cell, len(places[k])))
    raws = [Raw(np.array(c, dtype=np.int32), list(p)) for c, p in zip(codes, places, strict=True)]
    return raws, ragged, count


def _decoded(path: Path, content: bytes) -> tuple[str, str]:
    """The text, and the name of its encoding."""
    for mark, encoding in BOMS:
        if content.startswith(mark):
            try:
                text = content.decode(encoding)
            except UnicodeDecodeError as error:
                raise Error(f"{path} is not a text file: it is damaged after its first bytes") from error
            name = "UTF-8 with a byte order mark" if encoding == "utf-8-sig" else "UTF-16"
            break
    else:
        try:
            text, name = content.decode("utf-8"), "UTF-8"
        except UnicodeDecodeError:
            try:
                text, name = content.decode("cp1252"), "Windows-1252"
            except UnicodeDecodeError:
                text, name = content.decode("latin-1"), "Latin-1"
    if _CONTROL.search(text):
        raise Error(f"{path} is not a text file: save the table as CSV")
    return text, name


def _separator(text: str) -> tuple[str, str]:
    """The character between cells, and the text without the line that names it."""
    first, _, rest = text.partition("\n")
    if (named := re.fullmatch(r'"?sep=([,;\t|])"?\r?', first)) is not None:
        return named[1], rest
    lines = text[:ENOUGH].splitlines(keepends=True)[: SAMPLE if len(text) <= ENOUGH else -1][:SAMPLE]
    best, most = ",", (0.0, 0)
    for separator in SEPARATORS:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        except csv.Error:
            continue
        if not widths or widths[0] < 2:
            continue
        same = sum(width == widths[0] for width in widths) / len(widths)
        if (round(same, 1), widths[0]) > most:
            best, most = separator, (round(same, 1), widths[0])
    return best, text


def _rows(path: Path, text: str, separator: str) -> Iterator[list[str]]:
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        yield from (row for row in reader if any(cell.strip() for cell in row))
    except csv.Error as error:
        raise Error(f"{path} is not a CSV file: {error}") from error


def _last_is_empty(path: Path, text: str, separator: str, width: int) -> bool:
    """Whether no row has a cell in this column, the last, which then comes from separators at the ends of lines."""
    return not any(cell.strip() for row in _rows(path, text, separator) for cell in row[width - 1 :])


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _parquet(path: Path) -> Sheet:
    try:
        from pyarrow import parquet
    except ImportError:
        raise Error(
            f"{path}: Parquet needs pyarrow; install it with pip install 'pfedsim[tables]'"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        names = [str(name).strip() for name in file.schema_arrow.names]
        rows, size = file.metadata.num_rows, file.metadata.num_columns
        memory.need(path, rows * size * CELL)
        places: list[dict[str, int]] = [{} for _ in names]
        codes = [array("i") for _ in names]
        for batch in file.iter_batches(PARQUET_ROWS):
            for k, column in enumerate(batch.columns):
                codes[k].extend(
                    places[k].setdefault(cell, len(places[k])) for cell in _texts(column.to_pylist())
                )
    except Error:
        raise
    except Exception as error:  # with a damaged file, the library may raise anything
        raise Error(f"{path} is not a valid Parquet file ({type(error).__name__})") from error
    if not rows:
        raise Error(f"{path} has no rows")
    raws = [Raw(np.array(c, dtype=np.int32), list(p)) for c, p in zip(codes, places, strict=True)]
    return Sheet(
        path.name,
        dict(zip(names, raws, strict=False)),
        rows,
        "Parquet",
        twice=_twice(names),
        party=path.stem,
    )


def shown(names: Iterable[str], most: int = 6) -> str:
    """Names for a message, the first few."""
    names = [escape.visible(name)[:60] for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
