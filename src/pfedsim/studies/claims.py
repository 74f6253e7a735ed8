"""Every sentence of the paper that a number can refute, with what the finished runs say of it."""

from __future__ import annotations

import tomllib
from importlib import resources

from pfedsim.report.document import Document, Section, Table, cells
from pfedsim.studies.cells import Cell as Run
from pfedsim.studies.cells import Store
from pfedsim.studies.evidence import Evidence
from pfedsim.studies.protocol import Choice
from pfedsim.studies.verdicts import CHECKS


def stated() -> list[dict[str, str]]:
    """claims.toml."""
    content = tomllib.loads((resources.files("pfedsim.studies") / "claims.toml").read_text())
    return list(content["claim"])


def plan(choice: Choice) -> list[Run]:
    """Claims are judged by what other studies have finished."""
    return []


def report(store: Store, choice: Choice) -> Document:
    rows = []
    for claim in stated():
        check = CHECKS[claim["id"]]
        mine, theirs = check(Evidence(store, choice)), check(Evidence(store, choice, "paper"))
        own = "" if theirs.holds is None else f" By the paper's own numbers it {'holds' if theirs.holds else 'does not hold'}."
        sentence = f'"{claim["sentence"]}" ({claim["place"]})'
        rows.append(cells(mine.word, sentence, f"{claim['holds']}.{own}", mine.figures or "-"))
    counts = {word: sum(row[0].text == word for row in rows) for word in ("holds", "does not", "not measured")}
    head = ["verdict", "the paper's sentence", "it holds if", "our figures"]
    summary = f"{len(rows)} claims: {counts['holds']} hold, {counts['does not']} do not, {counts['not measured']} are not measured."
    table = Table("claims", "Claims and verdicts; NOT marks the cases that fail", head, rows, prose=True)
    return Document("claims", "The paper's claims", [Section("", [summary, table])])
