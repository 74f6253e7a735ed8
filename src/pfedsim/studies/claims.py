"""Every sentence of the paper that a number can refute, with what the finished runs say of it."""

from __future__ import annotations

import tomllib
from collections import Counter
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


def verdicts(store: Store, choice: Choice) -> Counter[str]:
    """How many claims hold, do not, and are not measured."""
    return Counter(CHECKS[claim["id"]](Evidence(store, choice)).word for claim in stated())


def counted(words: Counter[str]) -> str:
    """The verdicts in a sentence."""
    return f"{words.total()} claims: {words['holds']} hold, {words['does not']} do not, {words['not measured']} are not measured."


def report(store: Store, choice: Choice) -> Document:
    rows = []
    for claim in stated():
        check = CHECKS[claim["id"]]
        mine, theirs = check(Evidence(store, choice)), check(Evidence(store, choice, "paper"))
        sentence = f'"{claim["sentence"]}" ({claim["place"]})'
        own = "-" if theirs.holds is None else theirs.word
        rows.append(cells(mine.word, sentence, claim["holds"], mine.figures or "-", own))
    head = ["verdict", "the paper's sentence", "it holds if", "our figures", "by the paper's own numbers"]
    summary = counted(Counter(row[0].text for row in rows))
    table = Table("claims", "Claims and verdicts; NOT marks the cases that fail", head, rows, prose=True)
    return Document("claims", "The paper's claims", [Section("", [f"{summary} {_by_what(store, choice)}", table])])


def _by_what(store: Store, choice: Choice) -> str:
    """How much of the paper the verdicts are of."""
    theirs = {(data, alpha) for data, alpha, _ in Evidence(store, choice, "paper").cases()}
    ours = [case for case in Evidence(store, choice).cases() if case[:2] in theirs]
    return (
        f"A claim about all cases is judged by those that are measured: {len(ours)} of the {len(theirs)} columns of Table 3. "
        "Methods are compared over the seeds that all of them have."
    )
