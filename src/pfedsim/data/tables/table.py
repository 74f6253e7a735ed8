"""A table of one or several files: its columns, labels and parties, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.tables import problems
from pfedsim.data.tables.cells import (
    MISSING,
    NUMBER,
    Column,
    Found,
    has_decimal_commas,
    number_text,
    parsed,
)
from pfedsim.data.tables.facts import KINDS
from pfedsim.data.tables.problems import Problems
from pfedsim.data.tables.recipe import Recipe, fit
from pfedsim.data.tables.sheets import Sheet, coded, shown
from pfedsim.data.task import Defaults, suiting
from pfedsim.errors import Error, nearest


@dataclass(frozen=True)
class Asked:
    """What a user may say of a table. `client`: the column that names the parties (default: "client", if there is
    one, else each file is a party's); `na`: further signs for missing cells; `types`: the kind of a column, where it
    should not be guessed."""

    label: str = "label"
    client: str | None = None
    drop: tuple[str, ...] = ()
    missing: str = "refuse"
    na: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column, kind in self.types.items():
            if kind not in KINDS:
                raise Error(
                    f"--types {column}={kind}: the kind {kind!r} is unknown; {nearest(kind, KINDS)}"
                )

    @cached_property
    def signs(self) -> frozenset[str]:
        """All signs for missing cells, in the form in which they are compared."""
        return frozenset((*MISSING, *(sign.strip().casefold() for sign in self.na)))


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of a table, from which every partition makes its own numbers. `lacks`: columns that a party has no
    value of; `notes`: what users should know of how it was read."""

    columns: dict[str, Column]
    y: np.ndarray
    classes: tuple[str, ...]
    client: np.ndarray | None
    asked: Asked
    orders: dict[str, str]
    lacks: dict[str, list[str]]
    notes: tuple[str, ...]

    def made(self, name: str, parties: Sequence[np.ndarray], defaults: Defaults) -> DataSet:
        """The data set of numbers that a recipe fitted on these rows of each party makes."""
        about = {"label": self.asked.label, "client": self.asked.client, "dropped": list(self.asked.drop)}
        signs = sorted({sign.strip() for sign in self.asked.na})
        types = {k: v for k, v in self.asked.types.items() if k in self.columns}
        recipe = fit(self.columns, parties, types, self.orders, missing=signs, **about)
        return self.encoded(name, recipe, defaults)

    def encoded(self, name: str, recipe: Recipe, defaults: Defaults) -> DataSet:
        """The data set of numbers that this recipe makes."""
        x, _ = recipe.apply(self.columns, len(self.y))
        constants = [pair for step in recipe.steps for pair in step.constants]
        mean, std = (tuple(float(pair[k]) for pair in constants) for k in (0, 1))
        made = DataSet(
            name, x, self.y, self.classes, mean, std, self.client, defaults=defaults, columns=recipe.names
        )
        return replace(made, table=self, recipe=recipe, notes=self.notes)


@dataclass(frozen=True, eq=False)
class Files:
    """The files of a table, read column by column."""

    sheets: list[Sheet]
    found: list[dict[str, Found]]
    """of each sheet, the columns to learn from"""
    asked: Asked
    client: str | None
    """the column that names the parties"""

    @property
    def names(self) -> list[str]:
        """The columns to learn from, in the order in which the files have them."""
        return list(dict.fromkeys(name for found in self.found for name in found))

    def merged(self) -> dict[str, Column]:
        """The columns of all files below one another."""
        return {
            name: Column.joined(
                [
                    found[name].column if name in found else Column.empty(sheet.rows)
                    for sheet, found in zip(self.sheets, self.found, strict=True)
                ]
            )
            for name in self.names
        }

    def words(self, column: str | None, sheet: Sheet) -> list[str] | None:
        """The cells of a column of words, as they are; None if the file has no such column."""
        raw = sheet.columns.get(column or "")
        return None if raw is None else [raw.words[code] for code in raw.codes.tolist()]


def opened(sheets: Sequence[Sheet], asked: Asked) -> Files:
    """Read the cells of all files. Raises an error for a column that no file has."""
    everywhere = list(dict.fromkeys(name for sheet in sheets for name in sheet.columns))
    where = sheets[0].name if len(sheets) == 1 else f"none of the {len(sheets)} files"
    has = "has no" if len(sheets) == 1 else "has a"
    wanted = [(asked.label, "--label"), (asked.client, "--client"), *((d, "--drop") for d in asked.drop)]
    for word, option in [*wanted, *((name, "--types") for name in asked.types)]:
        if word is not None and word not in everywhere:
            hint = (
                f"; {nearest(word, everywhere)}"
                if not any(sheet.values for sheet in sheets)
                else ("; its first line holds values, not names: put the names of the columns above it")
            )
            raise Error(f"{where} {has} column {word!r} ({option} of `pfedsim data add`){hint}")
    client = asked.client or ("client" if all("client" in sheet.columns for sheet in sheets) else None)
    if client == asked.label:
        raise Error(
            f"column {client!r} cannot be both the label and the party: name another one for either"
        )
    apart = {asked.label, client, *asked.drop}
    return Files(list(sheets), [columns_of(s, asked.signs, apart) for s in sheets], asked, client)


def columns_of(
    sheet: Sheet, signs: frozenset[str], apart: Set[str | None], orders: Mapping[str, str] | None = None
) -> dict[str, Found]:
    """The columns of a file, without those set `apart`. `orders`: that of day and month where the file does not
    tell."""
    taken = {name: raw for name, raw in sheet.columns.items() if name not in apart}
    commas = any(has_decimal_commas(raw) for raw in taken.values())
    return {name: parsed(raw, signs, commas, (orders or {}).get(name)) for name, raw in taken.items()}


def read(sheets: Sequence[Sheet], asked: Asked, name: str) -> DataSet:
    """The data set of these files, with a recipe fitted on all rows; each partition fits its own. Raises one error
    with everything that is wrong."""
    files = opened(sheets, asked)
    wrong = problems.of(files)
    if wrong:
        raise Problems(name, wrong)
    y, classes, kept = _labels(files)
    owner = owners(files)
    columns = files.merged()
    notes = [_dialect(sheet, found) for sheet, found in zip(files.sheets, files.found, strict=True)]
    if not kept.all():
        gone = int((~kept).sum())
        notes.append(
            f"{gone} row{'s' * (gone != 1)} without a label {'are' if gone != 1 else 'is'} left out"
        )
        columns = {k: column.taken(np.flatnonzero(kept)) for k, column in columns.items()}
        owner = None if owner is None else owner[kept]
    lacks = _lacking(columns, owner)
    notes += [f"{who} lacks {shown(what)}" for who, what in lacks.items()]
    if owner is not None:
        one = [str(who) for who in np.unique(owner) if len(np.unique(y[owner == who])) == 1]
        notes += [f"all rows of {shown(one)} have the same label"] if one else []
    asked = replace(asked, client=files.client)
    filled = [note for note in notes if note]
    table = Table(columns, y, classes, owner, asked, _orders(files), lacks, tuple(filled))
    parties = (
        [np.arange(len(y))] if owner is None else [np.flatnonzero(owner == w) for w in np.unique(owner)]
    )
    return table.made(name, parties, suiting((1,), len(y), owner))


def owners(files: Files) -> np.ndarray | None:
    """The party of each row: by column, or by file if there are several."""
    if files.client is not None:
        words = [word for sheet in files.sheets for word in files.words(files.client, sheet) or []]
        return np.array(words)
    if len(files.sheets) == 1:
        return None
    return np.concatenate([np.full(sheet.rows, sheet.party) for sheet in files.sheets])


def label_names(words: Sequence[str]) -> list[str]:
    """The classes that these labels name. If all are numbers, 1 and 1.0 are the same."""
    column = parsed(coded(words), {""}).column
    if len(words) and bool((column.codes == NUMBER).all()):
        return [number_text(value) for value in column.values.tolist()]
    return list(words)


def _labels(files: Files) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    """The class of each row that has one, the classes, and which rows have one."""
    words = [word for sheet in files.sheets for word in files.words(files.asked.label, sheet) or []]
    kept = np.array([bool(word) for word in words])
    named = label_names([word for word in words if word])
    classes = sorted(set(named), key=in_order)
    place = {word: k for k, word in enumerate(classes)}
    return np.array([place[word] for word in named], dtype=np.int64), tuple(classes), kept


def in_order(word: str) -> tuple[bool, float, str]:
    """Sort key of labels: numbers first, by value, then words alphabetically."""
    try:
        return False, float(word), word
    except ValueError:
        return True, 0.0, word


def _lacking(columns: Mapping[str, Column], owner: np.ndarray | None) -> dict[str, list[str]]:
    """By party, the columns that it has no value of although others have."""
    if owner is None:
        return {}
    known = {name: Counter(owner[column.codes >= 0].tolist()) for name, column in columns.items()}
    return {
        str(who): lacking
        for who in np.unique(owner)
        if (lacking := [name for name, has in known.items() if has and not has[who]])
    }


def _orders(files: Files) -> dict[str, str]:
    """The order of day and month in columns where all files that tell have the same."""
    told: dict[str, set[str]] = {}
    for found in files.found:
        for name, one in found.items():
            if one.order is not None:
                told.setdefault(name, set()).add(one.order)
    return {name: next(iter(orders)) for name, orders in told.items() if len(orders) == 1}


def _dialect(sheet: Sheet, found: Mapping[str, Found]) -> str:
    """How a file was read."""
    said = [sheet.said] if sheet.said else []
    said += ["decimal commas"] if any(one.comma for one in found.values()) else []
    orders = {"dmy": "days before months", "mdy": "months before days"}
    said += sorted({orders[one.order] for one in found.values() if one.order is not None})
    return f"{sheet.name}: {', '.join(said)}, {sheet.rows:,} rows" if said else ""
