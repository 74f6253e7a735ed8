"""The cells of one column of one file: which are missing, numbers, dates or words."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

MISSING = ("", "?", "na", "n/a", "nan", "null", "-", "--", "#n/a", "<na>", "nat")
"""what stands for a missing cell, in any case"""
GONE, NUMBER, DATE, WORDS = -1, 0, 1, 2
"""codes of a cell; words count from WORDS"""
TOO_LARGE = 2.0**128 - 2.0**103  # the first number that float32 rounds to infinity
YES, NO = {"true", "yes", "y", "t", "on"}, {"false", "no", "n", "f", "off"}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
EPOCH = datetime.date(1970, 1, 1).toordinal()

_POINT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_COMMA = re.compile(r"[+-]?(\d+,?\d*|,\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_BY_COMMA = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", re.ASCII)  # 1,234,567.8
_BY_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?", re.ASCII)
_TIME = r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_ISO = re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_TIME}", re.ASCII)
_DAYS = re.compile(rf"(\d{{1,2}})([-/.])(\d{{1,2}})\2(\d{{4}}|\d{{2}}){_TIME}", re.ASCII)
_NAMED = re.compile(rf"(\d{{1,2}})[-. ]*([A-Za-z]{{3,9}})[-., ]*(\d{{4}}){_TIME}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Raw:
    """The cells of a column as text: a code for each row, and the words that the codes stand for."""

    codes: np.ndarray
    words: Sequence[str]


@dataclass(frozen=True, eq=False)
class Column:
    """The cells of a column: numbers and dates (in days since 1970) in `values`; a code says what each cell is."""

    values: np.ndarray
    codes: np.ndarray
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def taken(self, rows: np.ndarray) -> Column:
        """The cells of these rows."""
        return Column(self.values[rows], self.codes[rows], self.words)

    @classmethod
    def empty(cls, rows: int) -> Column:
        return cls(np.full(rows, np.nan), np.full(rows, GONE, np.int32), ())

    @classmethod
    def joined(cls, parts: Sequence[Column]) -> Column:
        """Columns below one another."""
        places: dict[str, int] = {}
        codes = []
        for part in parts:
            new = [WORDS + places.setdefault(word, len(places)) for word in part.words]
            table = np.array([GONE, NUMBER, DATE, *new], dtype=np.int32)
            codes.append(table[part.codes - GONE])
        return cls(np.concatenate([p.values for p in parts]), np.concatenate(codes), tuple(places))


@dataclass
class Found:
    """What a column of a file holds, in rows counted from 1; the rows of what cannot be read."""

    column: Column
    comma: bool = False
    order: str | None = None
    """"dmy" or "mdy" for dates such as 3/4/2020"""
    unclear: dict[str, list[int]] = field(default_factory=dict)


def parsed(raw: Raw, missing: Collection[str], comma: bool = False, order: str | None = None) -> Found:
    """Read the cells. `comma`: other columns of the file have decimal commas; `order`: that of day and month, if
    the file itself does not tell."""
    words = [word.replace("\u2212", "-") for word in raw.words]
    there = [k for k, word in enumerate(words) if word.casefold() not in missing]
    mark, doubt = _mark([words[k] for k in there], comma)
    found, unsure = _order([words[k] for k in there])
    order = found or order
    values = np.full(len(words), np.nan)
    codes = np.full(len(words), GONE, dtype=np.int32)
    kept: dict[str, int] = {}
    unclear: dict[str, list[int]] = {}
    for k in there:
        word = words[k]
        number = _number(word, mark)
        day = None if number is not None else _day(word, order)
        if number is not None and abs(number) < TOO_LARGE:
            values[k], codes[k] = number, NUMBER
        elif number is not None:
            unclear.setdefault("large", []).append(k)
        elif day is not None:
            values[k], codes[k] = day, DATE
        else:
            codes[k] = WORDS + kept.setdefault(raw.words[k], len(kept))
            if (slash := _DAYS.fullmatch(word)) is not None and _is_day(word):
                why = "year" if len(slash[4]) == 2 else unsure
                unclear.setdefault(why, []).append(k)
        if doubt and _doubtful(word, doubt):
            unclear.setdefault(doubt, []).append(k)
    if not len(words):
        return Found(Column.empty(len(raw.codes)))
    rows = {why: (np.flatnonzero(np.isin(raw.codes, ks)) + 1).tolist() for why, ks in unclear.items()}
    column = Column(values[raw.codes], codes[raw.codes], tuple(kept))
    return Found(column, mark == ",", found, rows)


def has_decimal_commas(raw: Raw) -> bool:
    """Whether the column has decimal commas beyond doubt."""
    return _mark(list(raw.words), False) == (",", "") and any(
        "," in word and _COMMA.fullmatch(word) for word in raw.words
    )


def is_value(cell: str, missing: Collection[str] = MISSING) -> bool:
    """Whether a cell holds a number, a date or a sign for a missing cell: something that names no column."""
    cell = cell.strip()
    is_number = any(_number(cell, mark) is not None for mark in ".,")
    return cell.casefold() in missing or is_number or _day(cell, "dmy") is not None


def fold(word: str) -> str:
    """The form in which words are compared."""
    return " ".join(word.split()).casefold()


def number_text(value: float) -> str:
    """A number as the name of a category or class."""
    return f"{value:.15g}"


def date_text(day: float) -> str:
    """A date, with its time if it has one."""
    seconds = round((day - np.floor(day)) * 86400)
    date = datetime.date.fromordinal(int(np.floor(day)) + EPOCH)
    if not seconds:
        return date.isoformat()
    return (
        datetime.datetime.combine(date, datetime.time()) + datetime.timedelta(seconds=seconds)
    ).isoformat()


def _mark(words: Sequence[str], comma: bool) -> tuple[str, str]:
    """The decimal mark of these words, and why it is in doubt, if it is."""
    commas = [w for w in words if "," in w and (_COMMA.fullmatch(w) or _BY_POINT.fullmatch(w))]
    points = [w for w in words if "." in w and (_POINT.fullmatch(w) or _BY_COMMA.fullmatch(w))]
    sure_comma = [w for w in commas if not _BY_COMMA.fullmatch(w)]
    sure_point = [w for w in points if not _BY_POINT.fullmatch(w)]
    if sure_comma and sure_point:
        return ".", "mark"
    if sure_comma or (comma and not sure_point):
        return ",", ""
    if sure_point or not commas:
        return ".", ""
    return ".", "thousands"  # 1,234 may be 1234 or 1.234


def _doubtful(word: str, doubt: str) -> bool:
    if doubt == "thousands":
        return _BY_COMMA.fullmatch(word) is not None
    return "," in word and _COMMA.fullmatch(word) is not None


def _number(word: str, mark: str) -> float | None:
    groups, plain = (_BY_POINT, _COMMA) if mark == "," else (_BY_COMMA, _POINT)
    if groups.fullmatch(word):
        word = word.replace("." if mark == "," else ",", "")
    elif not plain.fullmatch(word):
        return None
    return float(word.replace(",", "."))


def _is_day(word: str) -> bool:
    return any(_day(word, order) is not None for order in ("dmy", "mdy")) or bool(
        (found := _DAYS.fullmatch(word)) and int(found[1]) <= 31 and int(found[3]) <= 31
    )


def _order(words: Sequence[str]) -> tuple[str | None, str]:
    """Whether dates such as 3/4/2020 put the day or the month first; if the words do not tell, why."""
    found = [m for w in words if (m := _DAYS.fullmatch(w)) and m[2] != "." and len(m[4]) == 4]
    day_first = any(int(m[1]) > 12 for m in found)
    month_first = any(int(m[3]) > 12 for m in found)
    if day_first and month_first:
        return None, "orders"
    return ("dmy" if day_first else "mdy" if month_first else None), "order"


def _day(word: str, order: str | None) -> float | None:
    """Days since 1970; None if the word is no date."""
    if (found := _ISO.fullmatch(word)) is not None:
        year, month, day, *time = found.groups()
    elif (found := _DAYS.fullmatch(word)) is not None:
        first, sign, second, year, *time = found.groups()
        order = "dmy" if sign == "." else order
        if order is None or len(year) == 2:
            return None
        day, month = (first, second) if order == "dmy" else (second, first)
    elif (found := _NAMED.fullmatch(word)) is not None and found[2][:3].lower() in MONTHS:
        day, name, year, *time = found.groups()
        month = str(MONTHS.index(name[:3].lower()) + 1)
    else:
        return None
    try:
        days = datetime.date(int(year), int(month), int(day)).toordinal() - EPOCH
        hour, minute, second = (int(part or 0) for part in time)
        moment = datetime.time(hour, minute, second)
    except ValueError:
        return None
    return days + (moment.hour * 3600 + moment.minute * 60 + moment.second) / 86400
