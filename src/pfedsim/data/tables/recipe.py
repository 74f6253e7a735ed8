"""The recipe of a table: what becomes of each column. It is fitted on train parts and applied to any rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfedsim.data.tables.cells import Column, date_text, fold
from pfedsim.data.tables.facts import Look, Sums, agreed, categories, cells, counts, look
from pfedsim.data.tables.sheets import shown
from pfedsim.errors import Error

RARE = 5  # a category with fewer rows in all train parts is rare
MOST = 50  # categories of a column that get a number of their own
OTHER = "(rare)"
WHY = {
    "empty": "no train part has a value",
    "id": "it identifies rows",
    "text": "words that hardly repeat",
    "rows": "it only numbers the rows",
    "constant": "a single value in the train parts",
    "rare": "every value is rare",
}


class Step(BaseModel):
    """What becomes of one column. `mean` and `std` are those of a number, in days since `origin` for a date, and
    the share of yes for a boolean; of a category, `values` have a number each, and rare ones one together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["number", "date", "boolean", "category"]
    known: int = 0
    mean: float | None = None
    std: float | None = None
    origin: float | None = None
    order: Literal["dmy", "mdy"] | None = None
    values: list[str] = []
    shares: list[float] = []
    rare: float | None = None
    """the share of rare values, if there are any"""

    @property
    def width(self) -> int:
        return len(self.values) + (self.rare is not None) if self.kind == "category" else 1

    @property
    def names(self) -> list[str]:
        """The names of its numbers."""
        if self.kind != "category":
            return [self.name]
        return [
            f"{self.name}={word}" for word in [*self.values, *([OTHER] if self.rare is not None else [])]
        ]

    @property
    def constants(self) -> list[tuple[float, float]]:
        """Mean and scale of its numbers. Shares are subtracted, and yes and no are not scaled."""
        if self.kind == "category":
            return [
                (share, 1.0) for share in [*self.shares, *([self.rare] if self.rare is not None else [])]
            ]
        return [(self.mean or 0.0, self.std or 1.0)]

    @property
    def in_words(self) -> str:
        """For people."""
        if self.kind == "number":
            return f"number, mean {self.mean:.4g}, std {self.std:.4g}"
        if self.kind == "date":
            return f"days since {date_text(self.origin or 0.0)}"
        if self.kind == "boolean":
            return f"yes or no, {100 * (self.mean or 0):.0f}% yes"
        rare = " and one number for rare ones" if self.rare is not None else ""
        return f"category, {len(self.values)} value{'s' * (len(self.values) != 1)}{rare}"


class Recipe(BaseModel):
    """What becomes of a table's columns, and which columns are not used: those of label and party, those that the
    user drops, and those `left_out` for a reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["pfedsim recipe 1"] = "pfedsim recipe 1"
    label: str
    client: str | None = None
    dropped: list[str] = []
    missing: list[str] = Field(default_factory=list)
    """what stands for a missing cell"""
    rows: int
    steps: list[Step] = Field(min_length=1)
    left_out: dict[str, str] = {}

    @property
    def digest(self) -> str:
        """sha256 of the recipe."""
        return sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the numbers of a row."""
        return tuple(name for step in self.steps for name in step.names)

    @property
    def said(self) -> list[str]:
        """Which columns are left out, and why."""
        every = {why: [name for name, reason in self.left_out.items() if reason == why] for why in WHY}
        return [f"left out: {shown(names)} ({WHY[why]})" for why, names in every.items() if names]

    def plain(self) -> dict[str, Any]:
        """As a JSON object."""
        return self.model_dump(exclude_none=True)

    @classmethod
    def of(cls, content: Any, where: object) -> Recipe:
        """The inverse of `plain`, of a file that anybody may have written."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise Error(f"{where} does not hold a recipe of this version: {place} is wrong") from None

    def apply(self, columns: Mapping[str, Column], rows: int) -> tuple[np.ndarray, dict[str, int]]:
        """The rows as numbers, NaN where a cell is missing, and how many cells of each column are values that the
        recipe does not know: unseen categories, and what is no number in a column of numbers."""
        x = np.full((rows, len(self.names)), np.nan, dtype=np.float32)
        unknown: dict[str, int] = {}
        first = 0
        for step in self.steps:
            column = columns.get(step.name)
            if column is not None:
                x[:, first : first + step.width], strange = _numbers(step, column)
                if strange:
                    unknown[step.name] = strange
            first += step.width
        return x, unknown


def recipe_in(content: Mapping[str, Any], where: object) -> Recipe | None:
    """The recipe that a JSON object holds with its digest; None if it holds none."""
    if content.get("recipe") is None:
        return None
    recipe = Recipe.of(content["recipe"], where)
    if recipe.digest != content.get("recipe_digest"):
        raise Error(f"{where} is damaged: its recipe does not match its digest")
    return recipe


def _numbers(step: Step, column: Column) -> tuple[np.ndarray, int]:
    known = int((column.codes >= 0).sum())
    if step.kind != "category":
        found = cells(step.kind, column) - (step.origin or 0.0)
        with np.errstate(over="ignore"):
            return found[:, None].astype(np.float32), known - int((~np.isnan(found)).sum())
    which, words = categories(column)
    places = {fold(word): k for k, word in enumerate(step.values)}
    unseen = len(step.values) + (step.rare is not None)
    nowhere = len(step.values)  # rare, or without a number of its own
    table = np.array([places.get(fold(word), nowhere) for word in words] + [unseen + 1])
    place = table[which]
    x = np.zeros((len(column), max(unseen, nowhere) + 2), dtype=np.float32)
    x[np.arange(len(column)), place] = 1
    x = x[:, : step.width]
    x[which < 0] = np.nan
    strange = 0 if step.rare is not None else int((place == nowhere).sum())
    return x, strange


def fit(
    columns: Mapping[str, Column],
    parties: Sequence[np.ndarray],
    types: Mapping[str, str],
    orders: Mapping[str, str],
    **about: Any,
) -> Recipe:
    """The recipe that follows from what the parties say of these rows of theirs. `types`: the kinds that the user
    decides; `orders`: that of day and month in a column of dates."""
    steps, left_out = [], {}
    numbered: list[Step] = []
    for name, column in columns.items():
        parts = [column.taken(rows) for rows in parties]
        looks: list[Look] = [look(name, part) for part in parts]
        kind, why = agreed(looks)
        if name in types:
            kind, why = types[name], "empty" if why == "empty" else ""
        if why in ("empty", "id", "text"):
            left_out[name] = why
            continue
        step, why_not = _step(name, kind, parts)
        if why_not:
            left_out[name] = why_not
            continue
        step = step.model_copy(update={"order": orders.get(name)}) if kind == "date" else step
        steps.append(step)
        numbered += [step] if why == "rows" else []
    if len(numbered) < len(steps):  # a count of rows is better than nothing
        left_out |= {step.name: "rows" for step in numbered}
        steps = [step for step in steps if step not in numbered]
    if not steps:
        every = {why: [name for name, reason in left_out.items() if reason == why] for why in WHY}
        reasons = "; ".join(f"{shown(names)}: {WHY[why]}" for why, names in every.items() if names)
        raise Error(f"no column is left to learn from; {reasons}; --types keeps a column")
    return Recipe(rows=int(sum(map(len, parties))), steps=steps, left_out=left_out, **about)


def _step(name: str, kind: str, parts: Sequence[Column]) -> tuple[Step, str]:
    """A column's step, and why it should be left out after all."""
    if kind == "category":
        return _category(name, parts)
    values = [cells(kind, part) for part in parts]
    known = [v[~np.isnan(v)] for v in values]
    count = sum(map(len, known))
    if not count:
        return Step(name=name, kind="number"), "empty"
    origin = min(float(v.min()) for v in known if len(v)) if kind == "date" else 0.0
    origin = float(np.floor(origin))
    sums = sum((Sums.of(v - origin) for v in known), Sums())
    if not sums.deviation > 1e-12 * abs(sums.mean):
        return Step(name=name, kind="number"), "constant"
    std = 1.0 if kind == "boolean" else sums.deviation
    more = {"origin": origin} if kind == "date" else {}
    return Step(name=name, kind=kind, known=count, mean=sums.mean, std=std, **more), ""


def _category(name: str, parts: Sequence[Column]) -> tuple[Step, str]:
    spelled = sum((counts(part) for part in parts), Counter[str]())
    total = sum(spelled.values())
    if not total:
        return Step(name=name, kind="category"), "empty"
    together: dict[str, Counter[str]] = {}
    for word, many in spelled.items():
        together.setdefault(fold(word), Counter())[word] = many
    if len(together) == 1:
        return Step(name=name, kind="category"), "constant"
    often = sorted(together.values(), key=lambda words: -words.total())[:MOST]
    kept = {
        min(words, key=lambda w: (-words[w], w)): words.total() for words in often if words.total() >= RARE
    }
    if not kept:
        return Step(name=name, kind="category"), "rare"
    values = sorted(kept)
    rest = total - sum(kept.values())
    shares = [kept[word] / total for word in values]
    return Step(
        name=name,
        kind="category",
        known=total,
        values=values,
        shares=shares,
        rare=rest / total if rest else None,
    ), ""
