"""Where ours differs from the paper by more than two of its standard deviations, and the runs that look for the cause."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import mean
from typing import Any

from pfedsim.report.document import Cell, Section, Table, cells
from pfedsim.studies.cells import Cell as Run
from pfedsim.studies.cells import Store
from pfedsim.studies.grid import Runs, dealt, points, set_name, title
from pfedsim.studies.paper import printed
from pfedsim.studies.protocol import Choice, cell

FAR = 2  # standard deviations of the paper
CLOSED = "closes it"


@dataclass(frozen=True)
class Cause:
    """What may explain the distance of some methods from the paper, and what switches it."""

    methods: Sequence[str]
    why: str
    run: str = ""
    """the method to run in their place"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """what is no setting: see `measure.varied`"""
    partitions: Sequence[int] = ()
    """seeds, each of the run and of a partition of its own"""
    model: str = "served"
    """which of the two scores to look at"""

    def cells(self, choice: Choice, data: str, method: str, alpha: float | None) -> list[Run]:
        """Its runs: one at the study's first seed, or one for each partition."""
        dealt_anew = [{"seed": seed, "partition_seed": seed} for seed in self.partitions] or [{}]
        made = []
        for seeds in dealt_anew:
            settings = {**choice.settings, **self.settings, **seeds}
            made.append(cell(data, self.run or method, alpha, choice.seeds[0], settings, full=choice.full))
        return [Run(one.words, one.kind, tuple(self.extra.items())) for one in made]


@cache
def causes() -> list[Cause]:
    """gaps.toml."""
    stated: list[dict[str, Any]] = tomllib.loads((resources.files("pfedsim.studies") / "gaps.toml").read_text())["cause"]
    return [Cause(**one) for one in stated]


def plan(choice: Choice) -> list[Run]:
    """Every cause's runs."""
    choice = choice.of(data=("cifar10",))
    return [
        one
        for data in choice.data
        for alpha in choice.alphas
        for cause in causes()
        for method in cause.methods
        if method in choice.methods
        for one in cause.cells(choice, data, method, alpha)
    ]


def section(store: Store, choice: Choice, data: str, found: Mapping[float | None, Mapping[str, Runs]]) -> list[Section]:
    """The cells that lie far from the paper's, each with the causes tried."""
    compared = [
        (method, alpha, ours, theirs)
        for alpha, by in found.items()
        for method, mine in by.items()
        if (theirs := printed("accuracy", method, data, alpha)) and (ours := mine.mean()) is not None
    ]
    if not compared:
        return []
    rows: list[list[Cell]] = []
    for method, alpha, ours, theirs in compared:
        if abs(ours - theirs[0]) > FAR * theirs[1]:
            rows += _rows(store, choice, data, method, alpha, ours, theirs)
    heading = f"{set_name(data)}: more than two of the paper's standard deviations away"
    if not rows:
        return [Section(heading, ["No cell measured so far lies that far from the paper's."])]
    head = ["method", "partition", "run", "accuracy", "paper", "difference", "in std", "so"]
    table = Table(f"gaps-{data}", "Ours, and with a named cause switched (first seed, where no other is named)", head, rows)
    return [Section(heading, [table])]


def _rows(
    store: Store, choice: Choice, data: str, method: str, alpha: float | None, ours: float, theirs: tuple[float, float]
) -> list[list[Cell]]:
    """Ours, and below it a row for each cause."""
    tried: list[list[Cell]] = []
    for cause in [c for c in causes() if method in c.methods]:
        asked = cause.cells(choice, data, method, alpha)
        accuracies = Runs(dict(enumerate(store.records(asked)))).figures((cause.model, "micro")).values()
        if len(accuracies) < len(asked):
            tried.append(cells("", dealt(alpha), cause.why, "-", "-", "-", "-", "not run yet"))
        else:
            there = mean(accuracies)
            so = CLOSED if abs(there - theirs[0]) <= FAR * theirs[1] else "does not close it"
            tried.append(_row("", alpha, cause.why, there, theirs, so))
    verdict = "open: no cause tried" if not tried else "explained" if any(r[-1].text == CLOSED for r in tried) else "open"
    return [_row(title(method), alpha, "ours", ours, theirs, verdict), *tried]


def _row(name: str, alpha: float | None, what: str, ours: float, theirs: tuple[float, float], so: str) -> list[Cell]:
    apart = (ours - theirs[0]) / theirs[1]
    return [*cells(name, dealt(alpha), what), Cell(f"{ours:.2f}", value=ours), *cells(f"{theirs[0]:.2f} ({theirs[1]:.2f})"),
            points(ours - theirs[0]), Cell(f"{apart:+.1f}", value=apart), Cell(so)]  # fmt: skip
