"""Build one self-contained HTML page, with style and pictures embedded."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pfedsim import escape

WIDE, NARROW = 7.5, 4.2  # inches; narrow screens get a smaller drawing, which keeps its text readable

STYLE = """
:root { color-scheme: light; }
body {
  margin: 0 auto; padding: 1.5rem; max-width: 60rem;
  font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
}
h1 { margin: 0 0 1rem; font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid #ccc; font-size: 1.2rem; }
nav a { margin-right: 1rem; }
a { color: #0059a0; }
img { display: block; max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table {
  border-collapse: separate; border-spacing: 0; border-bottom: 1px solid #e3e3e3;
  font-variant-numeric: tabular-nums;
}
th, td { padding: .2rem .9rem .2rem 0; text-align: right; vertical-align: top; }
th { vertical-align: bottom; }
/* borders on top of rows: the sticky first column would cover borders below */
tr + tr > * { border-top: 1px solid #e3e3e3; }
tr:has(th) + tr > * { border-top-color: #888; }
th:first-child, td:first-child { text-align: left; }
th[colspan] { text-align: center; }
td { white-space: nowrap; }
td.words, th.words { min-width: 5rem; text-align: left; white-space: normal; }
td.long, th.long { min-width: 14rem; text-align: left; white-space: normal; }
.scroll td:first-child, .scroll th:first-child { position: sticky; left: 0; background: #fff; }
table.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.facts td:first-child { overflow-wrap: normal; color: #555; }
pre { padding: .8rem; overflow-x: auto; background: #f4f4f4; font-size: .85rem; }
summary { cursor: pointer; color: #0059a0; }
@media (max-width: 600px) {
  body { padding: 1rem; font-size: 15px; }
  td.long:first-child, th.long:first-child { min-width: 9rem; }
}
"""


def page(title: str, sections: Sequence[tuple[str, str]], style: str = "", script: str = "") -> str:
    """A page with a heading and HTML for each section, and links to the sections at the top. `style` and `script`
    are added to the page itself."""
    parts = [(f"s{k}", escape.html(heading), body) for k, (heading, body) in enumerate(sections)]
    links = " ".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in parts)
    bodies = "\n".join(
        f'<section id="{name}">\n<h2>{heading}</h2>\n{body}\n</section>' for name, heading, body in parts
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape.html(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape.html(title)}</h1>\n<nav>{links}</nav>\n{bodies}\n"
        + (f"<script>\n{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    return f"<p>{escape.html(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with the first column aligned left, the others right."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def facts(named: Mapping[str, object]) -> str:
    """A table of names and values."""
    return f'<table class="facts">{"".join(_row("td", pair) for pair in named.items())}</table>'


def preformatted(text: str) -> str:
    return f"<pre>{escape.html(text)}</pre>"


def folded(summary: str, body: str) -> str:
    """A part that the reader can unfold."""
    return f"<details><summary>{escape.html(summary)}</summary>{body}</details>"


def picture(draw: Callable[[Path, float], Path], alt: str) -> str:
    """An embedded picture by `draw(path, width in inches)`, drawn once for wide and once for narrow screens."""
    with tempfile.TemporaryDirectory() as folder:
        wide, narrow = (_data_uri(draw(Path(folder) / f"{width}.svg", width)) for width in (WIDE, NARROW))
    return (
        f'<picture><source media="(max-width: 600px)" srcset="{narrow}">'
        f'<img src="{wide}" alt="{escape.html(alt)}"></picture>'
    )


def _data_uri(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()


def _row(cell: str, values: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape.html(str(v))}</{cell}>' for v in values)}</tr>"
