"""A leaderboard as one self-contained page. Its table can be filtered and sorted in the browser; without JavaScript it
is a plain table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pfedsim import escape
from pfedsim.experiments.leaderboard import Contender
from pfedsim.methods import TWELVE
from pfedsim.report import page as pages
from pfedsim.report.document import HTML, Document, Table, html_part
from pfedsim.report.published import HEADING
from pfedsim.report.standings import (
    Standings,
    board_command,
    chosen_text,
    run_command,
)
from pfedsim.runs.reader import slug

if TYPE_CHECKING:
    from pfedsim.experiments.board import Place

FIRST = "served"  # the measure that the table shows at first


def page(standings: Standings, report: Document) -> str:
    """The page. Its first table links each cell to the command and the digests behind it."""
    sections = []
    for section in report.shown():
        heading = section.heading or "Overview"
        if heading == "Standings":
            tables = [part for part in section.parts if isinstance(part, Table)]
            body = _standings(standings, tables[0]) + _other_tables(tables[1:])
        else:
            body = "\n".join(map(html_part, section.parts))
        for place in standings.leaderboard.board.set:
            if heading == (HEADING if place.varies else place.title):
                body += _commands(standings, place)
        sections.append((heading, body))
    style, script = (
        (files(__package__) / f"leaderboard.{e}").read_text(encoding="utf-8") for e in ("css", "js")
    )
    return pages.page(report.title, sections, style, script)


def _standings(standings: Standings, table: Table) -> str:
    """The table of all data sets, with the numbers of all measures beside it for the script."""
    head = "".join(
        f'<th data-set="{escape.html(name)}">{escape.html(words)}</th>'
        for name, words in zip(_columns(standings), table.head[1:], strict=True)
    )
    rows = []
    for row in table.rows:
        name = row[0].text
        cells = []
        for column, cell in zip(_columns(standings), row[1:], strict=True):
            text = HTML[cell.mark].format(escape.html(cell.text))
            known = column and name in standings.by_place[column]
            inside = f'<a href="#{_anchor(column, name)}">{text}</a>' if known else text
            cells.append(f"<td>{inside}</td>")
        rows.append(
            f'<tr data-method="{escape.html(name)}"><td>{escape.html(name)}</td>{"".join(cells)}</tr>'
        )
    data = json.dumps(_data(standings), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<p id="shown"><b>{escape.html(table.title)}</b></p>\n<div id="controls"></div>\n'
        f'<div class="scroll"><table id="standings"><thead><tr><th>{table.head[0]}</th>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
        "<p>Best in bold, second underlined. A cell leads to its command and digests. Mean ranks are over the data "
        "sets that are shown and on which at least half of the methods are finished.</p>\n"
        f'<script type="application/json" id="numbers">{data}</script>\n'
    )


def _other_tables(tables: list[Table]) -> str:
    """The standings by another measure, which the script can show in the first table: folded."""
    return "".join(pages.folded(table.title, html_part(table)) for table in tables)


def _columns(standings: Standings) -> list[str]:
    """What each column of the standings holds: "" for the mean rank, or a data set."""
    return ["", *(place.name for place in standings.places)]


def _data(standings: Standings) -> dict[str, Any]:
    """The numbers of all measures: method -> data set -> measure -> [mean, text]."""
    ours = {kind.title for kind in TWELVE.values()}
    cells: dict[str, dict[str, Any]] = {}
    for title in standings.titles:
        for place in standings.places:
            scores = {m.key: standings.score(place, title, m.key) for m in standings.measures}
            found = {key: [round(s.mean, 4), s.text()] for key, s in scores.items() if s}
            one = standings.by_place[place.name].get(title)
            if one is not None:
                whole = {"whole": one.finished and bool(one.runs)}
                cells.setdefault(title, {})[place.name] = {**found, **whole}
    return {
        "measures": [[m.key, m.title, m.words, m.higher, m.cost] for m in standings.measures],
        "sets": [[place.name, place.title] for place in standings.places],
        "paper": [title for title in standings.titles if title in ours],
        "cells": cells,
        "first": FIRST,
    }


def _anchor(place: str, method: str) -> str:
    return f"{place}--{slug(method)}"


def _commands(standings: Standings, place: Place) -> str:
    """What lies behind each cell of one data set."""
    parts = [
        f'<details id="{_anchor(place.name, title)}"><summary>{escape.html(title)}: {escape.html(_brief(one))}'
        f"</summary>{_behind(standings, one)}</details>"
        for title, one in standings.by_place[place.name].items()
    ]
    body = "".join(parts)
    if not any(one.runs for one in standings.by_place[place.name].values()):
        return pages.folded("Commands of single methods", body)
    return f"<p><b>{escape.html(place.title)}: commands and digests</b></p>\n{body}\n"


def _brief(one: Contender) -> str:
    count = f"{len(one.runs)} of {len(one.cells)} seeds"
    return f"{count}, {chosen_text(one)}" if one.runs else "missing"


def _behind(standings: Standings, one: Contender) -> str:
    """The command of every seed, the digests and the trials."""
    parts = []
    if not one.finished:
        parts.append(pages.paragraph("What is missing is run by:"))
        parts.append(pages.preformatted(board_command(standings.leaderboard, one)))
    first = next(iter(one.runs.values()), None)
    if first is not None:
        parts.append(pages.preformatted(run_command(first.cell)))
        seeds = ", ".join(str(seed) for seed in one.runs)
        parts.append(
            pages.paragraph(
                f"Finished seeds (--seed): {seeds}. sha256 of the clients' models and of the configuration:"
            )
        )
        digests = [
            (seed, r.found["models_digest"], r.found["config_digest"]) for seed, r in one.runs.items()
        ]
        parts.append(pages.table(("seed", "models", "configuration"), digests))
    if one.tuned is not None:
        parts.append(_trials(one.tuned.found))
    return "".join(parts)


def _trials(found: Mapping[str, Any]) -> str:
    trials = sorted(found["trials"], key=lambda t: -(t["accuracy"] or 0))
    rows = [
        (
            ", ".join(f"{k}={v}" for k, v in t["settings"].items()) or "as given",
            "diverged" if t["accuracy"] is None else f"{100 * t['accuracy']:.2f}",
        )
        for t in trials
    ]
    return pages.table(("tuning trial", "accuracy on validation parts, %"), rows)
