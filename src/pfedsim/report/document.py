"""A report of text, tables and pictures, and its output formats: Markdown, LaTeX, CSV, JSON, PNG, SVG and HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pfedsim import durable, escape
from pfedsim.report import page
from pfedsim.report.latex import latex

BEST, SECOND = "best", "second"
MARKDOWN = {BEST: "**{}**", SECOND: "<u>{}</u>", "": "{}"}
HTML = {BEST: "<b>{}</b>", SECOND: "<u>{}</u>", "": "{}"}
SENTENCE = 30  # characters: columns with longer cells are text, aligned left and wrapped
DAGGERS = ("†", "‡", "§", "¶")


@dataclass(frozen=True)
class Entry:
    """One cell of a table: its text, its mark (best or second) and the number behind it."""

    text: str
    mark: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """A table. `groups`: headings over several columns, as (text, number of columns), without the first column.
    `rules`: rows with a line above."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    groups: Sequence[tuple[str, int]] = ()
    rules: Sequence[int] = ()
    notes: Sequence[str] = ()
    prose: bool = False
    """cells contain sentences rather than numbers"""
    for_papers: bool = False
    """a copy of another table, laid out for LaTeX; not shown on pages and screens"""
    bars: Sequence[int] = ()
    """columns with a line to their left in LaTeX"""
    names: int = 1
    """the number of leading columns that name the row"""

    def sentences(self) -> list[bool]:
        """Which columns contain sentences."""
        return [any(len(row[k].text) > SENTENCE for row in self.rows) for k in range(len(self.head))]


@dataclass(frozen=True)
class Figure:
    """A picture. `draw(path, width in inches)` writes it in the format of the path's suffix."""

    name: str
    title: str
    draw: Callable[[Path, float], Path]
    width: float = page.WIDE


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it."""

    heading: str
    parts: Sequence[str | Table | Figure]


@dataclass(frozen=True)
class Document:
    name: str
    title: str
    sections: Sequence[Section] = field(default_factory=list)

    def parts(self) -> Iterator[str | Table | Figure]:
        for section in self.sections:
            yield from section.parts

    def tables(self) -> list[Table]:
        return [part for part in self.parts() if isinstance(part, Table)]

    def shown(self) -> list[Section]:
        """The sections that pages and screens show."""
        kept = [
            Section(s.heading, [p for p in s.parts if not (isinstance(p, Table) and p.for_papers)])
            for s in self.sections
        ]
        return [section for section in kept if section.parts]

    def figures(self) -> list[Figure]:
        return [part for part in self.parts() if isinstance(part, Figure)]


def entries(*texts: object) -> list[Entry]:
    """Cells without marks."""
    return [text if isinstance(text, Entry) else Entry(str(text)) for text in texts]


def ranked(values: Sequence[float | None], texts: Sequence[str]) -> list[Entry]:
    """Cells with best and second best marked, after rounding to two decimals. Two cells may share a mark; a value
    shared by more than two, or by all, is not marked."""
    shown = [None if v is None else round(v, 2) for v in values]
    known = [v for v in shown if v is not None]
    order = sorted(set(known), reverse=True)
    places = {
        v: mark
        for v, mark in zip(order, (BEST, SECOND), strict=False)
        if known.count(v) <= 2 and (known.count(v) < len(known) or len(known) == 1)
    }
    marks = ["" if v is None else places.get(v, "") for v in shown]
    return [Entry(text, mark, value) for text, mark, value in zip(texts, marks, values, strict=True)]


def markdown(document: Document, level: int = 1, pictures: str | None = None) -> str:
    """The report as Markdown. `pictures`: the folder of the linked images (None: no images)."""
    lines = [f"{'#' * level} {document.title}", ""]
    for section in document.shown():
        if pictures is None and all(isinstance(part, Figure) for part in section.parts):
            continue
        lines += [f"{'#' * (level + 1)} {section.heading}", ""] if section.heading else []
        for part in section.parts:
            if isinstance(part, str):
                lines += [part, ""]
            elif isinstance(part, Table):
                lines += [markdown_table(part), ""]
            elif pictures is not None:
                lines += [f"![{part.title}]({pictures}/{part.name}.png)", ""]
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    head = _headings(table)
    sides = "".join(
        "|---" if words or table.prose or k < table.names else "|---:"
        for k, words in enumerate(table.sentences())
    )
    lines = [f"**{escape.markdown(table.title)}**", "", _piped(map(escape.markdown, head)), f"{sides}|"]
    lines += [_piped(MARKDOWN[c.mark].format(escape.markdown(c.text)) for c in row) for row in table.rows]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines)


def _headings(table: Table) -> list[str]:
    """Each column's heading, prefixed with that of its group."""
    over = [""] * len(table.head)
    if table.groups:
        over = ["", *(words for words, count in table.groups for _ in range(count))]
    return [
        f"{words}: {heading}" if words else heading for words, heading in zip(over, table.head, strict=True)
    ]


def _piped(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def html(document: Document) -> str:
    """The report as one self-contained page."""
    sections = [
        (section.heading or "Overview", "\n".join(map(html_part, section.parts)))
        for section in document.shown()
    ]
    return page.page(document.title, sections)


def html_part(part: str | Table | Figure) -> str:
    """A part of a report as HTML."""
    if isinstance(part, str):
        return _html_words(part)
    if isinstance(part, Table):
        return html_table(part)
    return f"<p>{escape.html(part.title)}</p>\n" + page.picture(
        lambda path, width: part.draw(path, min(width, part.width)), part.title
    )


def _html_words(text: str) -> str:
    """Paragraphs, lists (lines that start with a dash) and `code` as HTML."""
    made = []
    for block in text.split("\n\n"):
        pieces = escape.html(block).split("`")
        block = "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(pieces))
        if block.startswith("- "):
            made.append("<ul>" + "".join(f"<li>{item}</li>" for item in block[2:].split("\n- ")) + "</ul>")
        else:
            made.append(f"<p>{block}</p>")
    return "\n".join(made)


def html_table(table: Table) -> str:
    """The table with its title and notes, as HTML."""
    rows = []
    if table.groups:
        rows.append(
            "<tr><th></th>"
            + "".join(f'<th colspan="{n}">{escape.html(words)}</th>' for words, n in table.groups)
            + "</tr>"
        )
    kinds = [
        ' class="words"' if table.prose or 0 < k < table.names else ' class="long"' if words else ""
        for k, words in enumerate(table.sentences())
    ]
    rows.append(
        "<tr>"
        + "".join(f"<th{kind}>{escape.html(h)}</th>" for kind, h in zip(kinds, table.head, strict=True))
        + "</tr>"
    )
    for row in table.rows:
        shown = [
            f"<td{kind}>{HTML[c.mark].format(escape.html(c.text))}</td>"
            for kind, c in zip(kinds, row, strict=True)
        ]
        rows.append("<tr>" + "".join(shown) + "</tr>")
    notes = "".join(map(_html_words, table.notes))
    return f'<p><b>{escape.html(table.title)}</b></p><div class="scroll"><table>{"".join(rows)}</table></div>{notes}'


def csv_text(tables: Sequence[Table]) -> str:
    """One line per cell: table, the row's number and first cell, the column, the printed text, and the number
    behind it if there is one."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "number", "row", "column", "printed", "value"])
    for table in tables:
        names = _headings(table)
        for number, row in enumerate(table.rows, 1):
            for name, cell in list(zip(names, row, strict=True))[1:]:
                value = "" if cell.value is None else cell.value
                texts = (table.name, number, row[0].text, name, cell.text, value)
                writer.writerow(map(escape.cell, texts))
    return file.getvalue()


def json_text(document: Document) -> str:
    """All tables as JSON, as lists of rows."""
    tables = [
        {
            "name": t.name,
            "title": t.title,
            "groups": t.groups,
            "head": t.head,
            "notes": t.notes,
            "rows": [[{"text": c.text, "mark": c.mark, "value": c.value} for c in row] for row in t.rows],
        }
        for t in document.tables()
    ]
    return json.dumps({"title": document.title, "tables": tables}, indent=1, ensure_ascii=False) + "\n"


def write(document: Document, folder: Path) -> list[Path]:
    """Write the report to this folder in every format, the fast ones first."""
    durable.make_folder(folder)
    forms: dict[str, Callable[[], str]] = {
        "md": lambda: markdown(document, pictures="figures"),
        "tex": lambda: latex(document.tables()),
        "csv": lambda: csv_text(document.tables()),
        "json": lambda: json_text(document),
        "html": lambda: html(document),
    }
    made = []
    for ending, form in forms.items():
        made.append(folder / f"{document.name}.{ending}")
        durable.write(made[-1], form().encode())
    for figure in document.figures():
        made += [
            figure.draw(folder / "figures" / f"{figure.name}.{ending}", figure.width)
            for ending in ("png", "svg")
        ]
    return made
