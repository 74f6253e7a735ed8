"""The columns of a comparison, as named in `--columns`."""

from __future__ import annotations

from collections.abc import Sequence

from pfedsim.errors import Error, nearest

COLUMNS = (
    *("served", "served-mean", "tuned", "tuned-mean", "worst-tenth", "worse-off", "received", "sent"),
    *("minus-local", "minus-fedavg", "tuned-minus-local", "tuned-minus-fedavg"),
)


def check_columns(names: Sequence[str]) -> None:
    """Raise an error for an unknown column."""
    for name in names:
        if name not in COLUMNS:
            raise Error(f"--columns {name}: there is no such column; {nearest(name, COLUMNS)}")
