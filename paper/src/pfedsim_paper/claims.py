"""Every sentence of the paper that a number can refute, with what the finished runs say of it."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib import resources
from typing import Any

from pfedsim.experiments import Cell, Store
from pfedsim.report import Document, Section, Table, entries
from pfedsim_paper.evidence import Evidence
from pfedsim_paper.protocol import Choice
from pfedsim_paper.verdicts import CHECKS
from pfedsim_paper.verdicts.verdict import Verdict


def stated() -> list[dict[str, Any]]:
    """claims.toml."""
    content = tomllib.loads((resources.files("pfedsim_paper") / "claims.toml").read_text(encoding="utf-8"))
    return list(content["claim"])


def plan(choice: Choice) -> list[Cell]:
    """Claims are judged by what other studies have finished."""
    return []


def summary(store: Store, choice: Choice) -> str:
    """How many claims hold, do not, and are not measured."""
    words: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for claim in stated():
        words[claim.get("rescored", False)][CHECKS[claim["id"]](Evidence(store, choice)).word] += 1
    plain, rescored = words[False], words[True]
    return (
        f"{plain.total()} claims: {plain['holds']} hold, {plain['does not']} do not, {plain['not measured']} "
        "are not measured. "
        f"{rescored.total()} of them are judged again with every method scored after the same local epochs: "
        f"{rescored['holds']} hold, "
        f"{rescored['does not']} do not. {_by_what(store, choice)}"
    )


def report(store: Store, choice: Choice) -> Document:
    rows = []
    for claim in stated():
        check = CHECKS[claim["id"]]
        mine, theirs = check(Evidence(store, choice)), check(Evidence(store, choice, "paper"))
        sentence = f'"{claim["sentence"]}" ({claim["place"]})'
        rows.append(entries(mine.word, sentence, claim["holds"], mine.figures or "-", _own(theirs)))
    head = ["verdict", "the paper's sentence", "it holds if", "our figures", "by the paper's own numbers"]
    title = (
        "Claims and verdicts; NOT marks the cases that fail; - means that the paper prints no such numbers"
    )
    table = Table("claims", title, head, rows, prose=True)
    return Document("claims", "The paper's claims", [Section("", [summary(store, choice), table])])


def _own(theirs: Verdict) -> str:
    """The verdict by the paper's tables, with the cases that speak against it."""
    if theirs.holds is None:
        return "-"
    against = [part for part in theirs.figures.split("; ") if part.startswith("NOT ")]
    return "; ".join([theirs.word, *against])


def _by_what(store: Store, choice: Choice) -> str:
    """How much of the paper the verdicts are of."""
    ours, theirs = (
        Evidence(store, choice),
        {(data, alpha) for data, alpha, _ in Evidence(store, choice, "paper").cases()},
    )
    count = sum((data, alpha) in theirs and not ours.reduced(data) for data, alpha, _ in ours.cases())
    return (
        f"A claim about all cases is judged by the measured cases that are partitioned by label: {count} of "
        f"the {len(theirs)} columns of "
        "Table 3, plus other data sets and the paper's at a smaller scale. The hospitals and the "
        "smartwatch, whose clients are given, "
        "do not count. Methods are compared over the seeds that all of them have."
    )
