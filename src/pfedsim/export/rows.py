"""Rows of the original file of a table, or of a DataFrame, as a model takes them, with warnings by the names of
columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pfedsim.data.tables import problems
from pfedsim.data.tables.cells import MISSING, date_text
from pfedsim.data.tables.problems import UNCLEAR, Problems
from pfedsim.data.tables.recipe import Recipe, Step
from pfedsim.data.tables.sheets import Sheet, shown
from pfedsim.data.tables.table import columns_of, label_names
from pfedsim.errors import Error

Ranges = Mapping[str, list[float]]
"""by column that the party had values of: the smallest and largest number, or nothing"""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as numbers, NaN where a cell is missing; their labels ("" where there is none), if the file has them."""

    x: np.ndarray
    labels: list[str] | None
    warnings: list[str]


def rows_of(sheet: Sheet, recipe: Recipe, ranges: Ranges | None = None) -> Rows:
    """Apply the recipe to a file. Columns of label and party, those left out in training, and unknown ones are
    ignored."""
    if sheet.values or sheet.ragged:
        raise Problems(sheet.name, problems.of_sheet(sheet))
    names = [step.name for step in recipe.steps]
    here = [name for name in names if name in sheet.columns]
    if not here:
        raise Error(f"{sheet.name} has none of the model's columns: {shown(names)}")
    if twice := [name for name in sheet.twice if name in names]:
        raise Error(f"{sheet.name} has two columns with the name {shown(twice)}: rename one")
    signs = frozenset((*MISSING, *(sign.casefold() for sign in recipe.missing)))
    orders = {step.name: step.order for step in recipe.steps if step.order is not None}
    found = columns_of(sheet, signs, {*sheet.columns} - set(here), orders)
    columns = {name: one.column for name, one in found.items()}
    x, unknown = recipe.apply(columns, sheet.rows)
    labels, said = _labels(sheet, recipe)
    said += [
        f"column {shown([name])}, {len(these):,} cell{'s' * (len(these) != 1)} ({problems.rows(these)}): {UNCLEAR[why]}"
        for name, one in found.items()
        for why, these in one.unclear.items()
    ]
    warnings = [*said, *_absent(sheet, recipe, ranges), *_unknown(recipe, unknown, sheet.rows)]
    warnings += [*_outside(recipe, x, ranges), *_mostly_missing(recipe, x)]
    return Rows(x, labels, warnings)


def _labels(sheet: Sheet, recipe: Recipe) -> tuple[list[str] | None, list[str]]:
    if (raw := sheet.columns.get(recipe.label)) is None:
        return None, []
    words = [raw.words[code] for code in raw.codes.tolist()]
    named = iter(label_names([word for word in words if word]))
    labels = [next(named) if word else "" for word in words]
    if not any(labels):
        return None, []
    gone = labels.count("")
    return labels, [f"{gone} of {len(labels):,} rows have no label and are not scored"] if gone else []


def _absent(sheet: Sheet, recipe: Recipe, ranges: Ranges | None) -> list[str]:
    gone = [
        step.name
        for step in recipe.steps
        if step.name not in sheet.columns and (ranges is None or step.name in ranges)
    ]
    known = {
        *(step.name for step in recipe.steps),
        recipe.label,
        recipe.client,
        *recipe.dropped,
        *recipe.left_out,
    }
    more = [name for name in sheet.columns if name not in known]
    said = [f"{sheet.name} has no column {shown(gone)}: its mean in training stands for it"] if gone else []
    return said + (
        [f"{shown(more)} of {sheet.name} is not used: training had no such column"] if more else []
    )


def _unknown(recipe: Recipe, unknown: Mapping[str, int], rows: int) -> list[str]:
    kinds = {step.name: step.kind for step in recipe.steps}
    what = {
        "category": "hold categories that training did not have",
        "number": "hold no number and count as missing",
        "date": "hold no date and count as missing",
        "boolean": "hold neither yes nor no and count as missing",
    }
    return [
        f"column {shown([name])}: {many:,} of {rows:,} rows {what[kinds[name]]}"
        for name, many in unknown.items()
    ]


def _outside(recipe: Recipe, x: np.ndarray, ranges: Ranges | None) -> list[str]:
    """Numbers and dates beyond those of the party's own train part."""
    said, first = [], 0
    for step in recipe.steps:
        values = x[:, first]
        first += step.width
        limits = (ranges or {}).get(step.name)
        if step.kind not in ("number", "date") or not limits:
            continue
        low, high = np.float32(limits[0]), np.float32(limits[1])
        if many := int(((values < low) | (values > high)).sum()):
            said.append(
                f"column {shown([step.name])}: {many:,} of {len(x):,} rows are outside the range of training, "
                f"{_limit(step, limits[0])} to {_limit(step, limits[1])}"
            )
    return said


def _limit(step: Step, value: float) -> str:
    return date_text(value + (step.origin or 0.0)) if step.kind == "date" else f"{value:.6g}"


def _mostly_missing(recipe: Recipe, x: np.ndarray) -> list[str]:
    starts = np.cumsum([0, *(step.width for step in recipe.steps)])[:-1]
    gone = np.isnan(x[:, starts]).mean(1)
    few = (np.flatnonzero(gone > 0.5) + 1).tolist()
    if not few:
        return []
    many = f"{len(few):,} rows miss" if len(few) > 1 else "1 row misses"
    return [f"{many} more than half of the columns ({problems.rows(few)})"]


def ranges_of(recipe: Recipe, x: np.ndarray) -> dict[str, list[float]]:
    """The ranges of these rows."""
    found, first = {}, 0
    for step in recipe.steps:
        values = x[:, first]
        values = values[~np.isnan(values)]
        first += step.width
        if len(values):
            limits = step.kind in ("number", "date")
            found[step.name] = [float(values.min()), float(values.max())] if limits else []
    return found
