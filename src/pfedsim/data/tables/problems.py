"""What is wrong with the files of a table: everything at once, with counts and numbers of rows, never with what the
cells hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pfedsim.data.tables.cells import DATE, GONE, NUMBER, WORDS, Column, fold
from pfedsim.data.tables.facts import agreed, look
from pfedsim.data.tables.sheets import Sheet, shown
from pfedsim.errors import Error

if TYPE_CHECKING:
    from pfedsim.data.tables.table import Files

FEW_ROWS = 5  # rows that a problem names
STRAY = 0.1  # fewer words than this share in a column of numbers are mistakes
MANY_CLASSES, PER_CLASS = 20, 5  # with more classes, each should have at least so many rows on average
MOST_CLASSES = 100
ADD = "`pfedsim data add`"
UNCLEAR = {
    "mark": "some numbers have decimal commas and others decimal points: write all of them the same way",
    "thousands": "a comma before three digits may separate thousands or decimals: write these numbers without it",
    "order": "the files do not tell days from months in these dates: write them as 2024-12-31",
    "orders": "some dates put the day first and others the month: write them as 2024-12-31",
    "year": "these dates have years of two digits: write four",
    "large": "these numbers are too large for float32",
}


class Problems(Error):
    """What is wrong with a table; the message is one line, `each` has a problem per entry."""

    def __init__(self, name: str, each: Sequence[str]):
        self.each = tuple(each)
        one = len(each) == 1
        numbered = each[0] if one else "; ".join(f"({k}) {text}" for k, text in enumerate(each, 1))
        super().__init__(numbered if one else f"{name} has {len(each)} problems: {numbered}")


def of(files: Files) -> list[str]:
    """All problems of all files. If the files themselves cannot be told apart into cells, only that is said."""
    broken = [text for sheet in files.sheets for text in of_sheet(sheet)]
    if broken:
        return broken
    return [
        *_of_labels(files),
        *_of_parties(files),
        *_of_names(files),
        *_of_cells(files),
        *_of_missing(files),
    ]


def rows(numbers: Sequence[int]) -> str:
    """Row numbers for a message, the first few."""
    numbers = sorted(numbers)
    more = ", ..." if len(numbers) > FEW_ROWS else ""
    return f"row{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:FEW_ROWS]))}{more}"


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'s' * (many != 1)}"


def of_sheet(sheet: Sheet) -> list[str]:
    """What keeps a file from being told apart into cells."""
    return list(_broken(sheet))


def _broken(sheet: Sheet) -> Iterator[str]:
    if sheet.values:
        yield (
            f"{sheet.name}: the first line holds {_count(sheet.values, 'value')} instead of names: put the names of "
            "the columns above the rows"
        )
    if sheet.twice and not sheet.values:
        yield f"{sheet.name} has two columns with the name {shown(sheet.twice)}: rename one"
    if sheet.ragged:
        yield (
            f"{sheet.name}: {_count(len(sheet.ragged), 'row')} with another number of cells than the heading has "
            f"({rows(sheet.ragged)})"
        )


def _of_labels(files: Files) -> Iterator[str]:
    from pfedsim.data.tables.table import label_names

    label = files.asked.label
    every: list[str] = []
    for sheet in files.sheets:
        words = files.words(label, sheet)
        if words is None:
            yield f"{sheet.name} has no column {label!r}, the label"
            continue
        if not any(words):
            yield f"{sheet.name}: column {label!r}, the label, is empty in every row"
        every += [word for word in words if word]
    classes = Counter(label_names(every))
    if len(classes) == 1:
        yield f"column {label!r} has only one class in all {len(every):,} rows: there is nothing to tell apart"
    elif len(classes) > MOST_CLASSES or (
        len(classes) > MANY_CLASSES and len(every) < PER_CLASS * len(classes)
    ):
        yield (
            f"column {label!r} has {len(classes):,} different values in {len(every):,} rows, too many for classes: "
            "name another column with --label, or put the values into a few groups"
        )
    else:
        alike = Counter(fold(word) for word in classes)
        many = sum(times for times in alike.values() if times > 1)
        if many:
            yield f"column {label!r} has {many} classes that differ only in case or spaces: write them the same way"


def _of_parties(files: Files) -> Iterator[str]:
    if files.client is not None:
        for sheet in files.sheets:
            words = files.words(files.client, sheet)
            if words is None:
                yield f"{sheet.name} has no column {files.client!r}, the party"
            elif gone := [k for k, word in enumerate(words, 1) if not word]:
                many = _count(len(gone), "row")
                yield f"{sheet.name}: column {files.client!r}, the party, is empty in {many} ({rows(gone)})"
    elif len(files.sheets) > 1:
        same = [name for name, times in Counter(s.party for s in files.sheets).items() if times > 1]
        if same:
            yield f"two files are called {shown(same)}: each file is a party and needs a name of its own"


def _of_names(files: Files) -> Iterator[str]:
    if not files.names:
        yield "there are no columns to learn from besides label and party"
    spelled: dict[str, list[str]] = {}
    for name in files.names:
        spelled.setdefault("".join(c for c in name.casefold() if c.isalnum()) or name, []).append(name)
    for same in spelled.values():
        apart = [{s.name for s, f in zip(files.sheets, files.found, strict=True) if n in f} for n in same]
        if len(same) > 1 and not set.intersection(*apart):
            yield f"the columns {shown(same)} of different files seem to be the same: give them one name"


def _looks(files: Files) -> dict[str, tuple[str, str]]:
    """By column, the kind that it seems to have, and why it would be left out."""
    every = {name: [f[name].column for f in files.found if name in f] for name in files.names}
    return {name: agreed([look(name, part) for part in parts]) for name, parts in every.items()}


def _of_cells(files: Files) -> Iterator[str]:
    for name, (kind, why) in _looks(files).items():
        chosen = files.asked.types.get(name)
        if chosen == "category":
            continue
        kinds: dict[str, list[str]] = {}
        for sheet, found in zip(files.sheets, files.found, strict=True):
            if name not in found:
                continue
            one, where = found[name], f"{sheet.name}: column {shown([name])}"
            for reason, these in one.unclear.items():
                yield f"{where}, {_count(len(these), 'cell')} ({rows(these)}): {UNCLEAR[reason]}"
            if chosen is None and kind == "category" and why not in ("id", "text") and not one.unclear:
                text, main = _strays(one.column)
                if text:
                    yield f"{where}: {text}"
                elif main:
                    kinds.setdefault(main, []).append(sheet.name)
        if len(kinds) > 1:
            what = " and ".join(f"{main} in {shown(names, 3)}" for main, names in sorted(kinds.items()))
            yield (
                f"column {shown([name])} holds {what}: write it the same way everywhere, or say what it is with "
                "--types COLUMN=category"
            )


def _strays(column: Column) -> tuple[str, str]:
    """A few words among numbers or dates, as a problem; else what the column mainly holds."""
    known = int((column.codes != GONE).sum())
    for code, what in ((NUMBER, "number"), (DATE, "date")):
        others = np.flatnonzero((column.codes != GONE) & (column.codes != code)) + 1
        if 0 < len(others) < max(2, STRAY * known) and known - len(others) > len(others):
            many = f"{_count(len(others), 'cell')} of {known:,} {'is' if len(others) == 1 else 'are'} no {what}"
            way_out = "correct them, say what stands for a missing cell with --na, or leave the column out with --drop"
            return f"{many} ({rows(others.tolist())}): {way_out}", what
    if not known:
        return "", ""
    words = int((column.codes >= WORDS).sum())
    numbers = int((column.codes == NUMBER).sum())
    return (
        "",
        "words"
        if words == known
        else "numbers"
        if numbers == known
        else "dates"
        if not words + numbers
        else "",
    )


def _of_missing(files: Files) -> Iterator[str]:
    if files.asked.missing != "refuse":
        return
    forced = files.asked.types
    used = [n for n, (_, why) in _looks(files).items() if n in forced or why not in ("id", "text", "empty")]
    found = []
    for sheet, columns in zip(files.sheets, files.found, strict=True):
        if lacking := [name for name in used if name not in columns]:
            found.append(f"{sheet.name} has no column {shown(lacking)}")
        gone = {n: int((columns[n].column.codes == GONE).sum()) for n in used if n in columns}
        if total := sum(gone.values()):
            most = sorted((name for name in gone if gone[name]), key=lambda name: -gone[name])
            each = ", ".join(f"{shown([name])} {gone[name]:,}" for name in most[:4])
            more = f" and {len(most) - 4} more columns" if len(most) > 4 else ""
            found.append(f"{sheet.name} lacks {_count(total, 'cell')} ({each}{more})")
    if found:
        yield f"{'; '.join(found)}: fill them in, or let each party's mean stand for them with --missing mean"
