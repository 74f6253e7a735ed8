"""What the parties say of their train parts, so that all of them make the same numbers of a table. Nothing else of
a table leaves a party: counts, sums, sums of squares, the words of categories with their counts, and first dates."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pfedsim.data.tables.cells import (
    DATE,
    GONE,
    NO,
    NUMBER,
    WORDS,
    YES,
    Column,
    date_text,
    fold,
    number_text,
)

ENOUGH = 10  # known cells from which a party can say whether a column identifies rows
ID_NAME = re.compile(
    r"(.*[_\s.-])?(id|ids|uuid|guid|key|nr|no|number|index|idx|row|record|mrn|ssn|name|surname|e-?mail|phone)",
    re.IGNORECASE,
)
ID_ENDING = re.compile(r".*[a-z](ID|Id|Nr|No)")
KINDS = ("number", "category", "boolean", "date")


@dataclass(frozen=True)
class Look:
    """A first look at a column at one party: how many cells of each kind it has."""

    numbers: int
    dates: int
    words: int
    booleans: int
    """words such as yes and no, and the numbers 0 and 1"""
    unique: str = ""
    """why the column seems to identify rows instead of describing them"""

    @property
    def known(self) -> int:
        return self.numbers + self.dates + self.words


@dataclass(frozen=True)
class Sums:
    """A column's numbers at one party: how many, their sum, and the sum of squared distances from their mean."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: np.ndarray) -> Sums:
        """Exactly rounded, so that no machine has other bits."""
        if not len(values):
            return cls()
        total = math.fsum(values)
        away = values - total / len(values)
        return cls(len(values), total, math.fsum(away * away))

    def __add__(self, other: Sums) -> Sums:
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        apart = other.total / other.count - self.total / self.count
        between = apart * apart * self.count * other.count / count
        return Sums(count, self.total + other.total, self.squares + other.squares + between)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def look(name: str, column: Column) -> Look:
    """A first look at a column at one party."""
    numbers = column.values[column.codes == NUMBER]
    words = Counter((column.codes[column.codes >= WORDS] - WORDS).tolist())
    truths = sum(many for k, many in words.items() if fold(column.words[k]) in YES | NO)
    dates = int((column.codes == DATE).sum())
    binary = int(np.isin(numbers, (0.0, 1.0)).sum())
    count = sum(words.values())
    return Look(len(numbers), dates, count, truths + binary, _unique(name, numbers, words, count))


def _unique(name: str, numbers: np.ndarray, words: Counter[int], count: int) -> str:
    known = len(numbers) + count
    if known < ENOUGH:
        return ""
    different = len(np.unique(numbers)) + len(words)
    whole = bool((numbers == np.floor(numbers)).all())
    if (ID_NAME.fullmatch(name) or ID_ENDING.fullmatch(name)) and whole and different > known / 2:
        return "id"
    if count > len(numbers) and different > known / 2:
        return "text"
    steps = np.diff(numbers)
    close = len(numbers) > 1 and numbers[-1] - numbers[0] < 4 * len(numbers)
    return "rows" if not count and whole and close and bool((steps > 0).all()) else ""


def agreed(looks: Sequence[Look]) -> tuple[str, str]:
    """The kind of a column that follows from all parties' looks; if it is left out, why: "empty", "id", "text" or
    "rows" (numbers that only count rows)."""
    numbers, dates, words = (
        sum(getattr(one, what) for one in looks) for what in ("numbers", "dates", "words")
    )
    known = numbers + dates + words
    if not known:
        return "number", "empty"
    kind = "category"
    if not dates and sum(one.booleans for one in looks) == known and words:
        kind = "boolean"
    elif not words and not (numbers and dates):
        kind = "number" if numbers else "date"
    votes = Counter[str]()
    for one in looks:
        if one.known >= ENOUGH:
            votes[one.unique] += one.known
    why = votes.most_common(1)[0][0] if votes else ""
    return kind, why if kind in ("number", "category") else ""


def cells(kind: str, column: Column) -> np.ndarray:
    """The cells as numbers of this kind; NaN where a cell is missing or of another kind."""
    if kind == "boolean":
        truth = [1.0 if fold(w) in YES else 0.0 if fold(w) in NO else np.nan for w in column.words]
        table = np.array([np.nan, np.nan, np.nan, *truth])
        found = table[column.codes - GONE]
        binary = (column.codes == NUMBER) & np.isin(column.values, (0.0, 1.0))
        return np.where(binary, column.values, found)
    return np.where(column.codes == (DATE if kind == "date" else NUMBER), column.values, np.nan)


def categories(column: Column) -> tuple[np.ndarray, list[str]]:
    """The cells as categories: the index of each one's word (-1: missing), and the words."""
    found = np.full(len(column), -1, dtype=np.int64)
    words = list(column.words)
    known = column.codes >= WORDS
    found[known] = column.codes[known] - WORDS
    for code, text in ((NUMBER, number_text), (DATE, date_text)):
        here = column.codes == code
        values, places = np.unique(column.values[here], return_inverse=True)
        found[here] = places.reshape(-1) + len(words)
        words += [text(float(value)) for value in values]
    return found, words


def counts(column: Column) -> Counter[str]:
    """How often a party has each category."""
    found, words = categories(column)
    many = np.bincount(found[found >= 0], minlength=len(words))
    return Counter({word: int(n) for word, n in zip(words, many, strict=True) if n})
