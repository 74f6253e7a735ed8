"""The columns of a comparison by the names that `--columns` takes."""

from __future__ import annotations

from collections.abc import Sequence

from pfedsim.errors import Error, nearest

COLUMNS = (
    *("served", "served-mean", "tuned", "tuned-mean", "worst-tenth", "worse-off", "received", "sent"),
    *("minus-local", "minus-fedavg", "tuned-minus-local", "tuned-minus-fedavg"),
)


def check_columns(names: Sequence[str]) -> None:
    """Refuses a column that there is not."""
    for name in names:
        if name not in COLUMNS:
            raise Error(f"--columns {name}: there is no such column; {nearest(name, COLUMNS)}")
