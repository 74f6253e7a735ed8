"""Tables as a Python program gives them: DataFrames, and the files of parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfedsim.data.dataset import DataSet
from pfedsim.data.tables import sheets, table
from pfedsim.errors import Error

OPTIONS = ("label", "client", "drop", "missing", "na", "types")
ENDINGS = (".csv", ".parquet")


def read(
    data: Any,
    label: str = "label",
    client: str | None = None,
    drop: Sequence[str] = (),
    missing: str = "refuse",
    na: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
) -> DataSet:
    """The data set of a DataFrame, a file, several files, or DataFrames by the name of their party."""
    if missing not in ("refuse", "mean"):
        raise Error(f"missing = {missing!r}: it should be 'refuse' or 'mean'")
    for name, value in (("drop", drop), ("na", na)):
        if isinstance(value, str) or not all(isinstance(word, str) for word in value):
            raise Error(
                f"{name} takes a list of {'columns' if name == 'drop' else 'signs'}, such as ['a', 'b']"
            )
    if types is not None and not isinstance(types, Mapping):
        raise Error("types takes a dictionary such as {'code': 'category'}")
    asked = table.Asked(label, client, tuple(drop), missing, tuple(na), dict(types or {}))
    found = _sheets(data)
    return table.read(found, asked, found[0].party if len(found) == 1 else "table")


def _sheets(data: Any) -> list[sheets.Sheet]:
    if sheets.is_frame(data):
        return [sheets.of_frame(data, "table")]
    if isinstance(data, Mapping) and data and all(map(sheets.is_frame, data.values())):
        return [sheets.of_frame(frame, str(party)) for party, frame in data.items()]
    files = [data] if isinstance(data, str | Path) else data
    if isinstance(files, Sequence) and files and all(isinstance(file, str | Path) for file in files):
        odd = [file for file in files if Path(file).suffix.lower() not in ENDINGS]
        if odd:
            raise Error(f"{odd[0]} is no .csv or .parquet file; {', '.join(OPTIONS)} are for tables")
        return [sheets.read(Path(file)) for file in files]
    shape = getattr(data, "shape", None)
    what = type(data).__name__ + (f" of shape {shape}" if isinstance(shape, tuple) else "")
    raise Error(
        f"federate takes a name, a file or several, pandas DataFrames or a pfedsim.data.DataSet, not {what}; save "
        "arrays with numpy.savez('mine.npz', x=x, y=y) and give that file"
    )
