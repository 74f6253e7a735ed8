"""Show tables on a terminal."""

from __future__ import annotations

from rich.table import Table as RichTable
from rich.text import Text

from pfedsim import escape
from pfedsim.report.document import BEST, SECOND, Table

LONG_HEADING = 16  # characters


def terminal(table: Table, width: int) -> list[RichTable]:
    """Tables for a screen of this width, without title and notes: one for each group of columns, split further if
    a group is too wide."""
    styles = {BEST: "bold", SECOND: "underline", "": ""}
    long = table.sentences()
    made = []
    for words, columns in _fitting(table, width):
        shown = RichTable(title=words or None, title_justify="left")
        shown.add_column(_broken(table.head[0]), overflow="fold")  # names are never cut
        for k in columns:
            shown.add_column(
                _broken(table.head[k]),
                justify="left" if long[k] or k < table.names else "right",
                no_wrap=not (long[k] or table.prose),
            )
        for n, row in enumerate(table.rows):
            shown.add_row(
                *(Text(escape.visible(row[k].text), style=styles[row[k].mark]) for k in [0, *columns]),
                end_section=n + 1 in table.rules,
            )
        made.append(shown)
    return made


def _broken(heading: str) -> str:
    """The heading on two lines: broken after a colon, or in the middle if it is long."""
    if ": " in heading or len(heading) < LONG_HEADING or " " not in heading:
        return heading.replace(": ", ":\n")
    spaces = [k for k, character in enumerate(heading) if character == " "]
    middle = min(spaces, key=lambda k: abs(k - len(heading) / 2))
    return f"{heading[:middle]}\n{heading[middle + 1 :]}"


def _fitting(table: Table, width: int) -> list[tuple[str, list[int]]]:
    """The columns of each group, in parts that fit beside the first column. Columns of sentences are wrapped at a
    third of the screen."""
    room = []
    for k, sentences in enumerate(table.sentences()):
        texts = [*_broken(table.head[k]).split("\n"), *(row[k].text for row in table.rows)]
        needed = 3 + max(map(len, texts))
        room.append(min(needed, width // 3) if sentences else needed)
    parts: list[tuple[str, list[int]]] = []
    at = 1
    for words, count in table.groups or [("", len(table.head) - 1)]:
        here: list[int] = []
        for k in range(at, at + count):
            if here and not table.prose and room[0] + sum(room[j] for j in [*here, k]) + 1 > width:
                parts.append((words, here))
                here = []
            here.append(k)
        parts.append((words, here))
        at += count
    return parts
