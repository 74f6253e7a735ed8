"""Where ours differs from the paper by more than two of its standard deviations, and the runs that look for the cause."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from pfedsim.report.document import Cell, Section, Table, cells
from pfedsim.studies.cells import Cell as Run
from pfedsim.studies.cells import Store
from pfedsim.studies.grid import Runs, dealt, points, set_name
from pfedsim.studies.protocol import Choice, base_name, cell

FAR = 2  # standard deviations of the paper
CLOSED, EXPLAINED = "closes it", "explained"


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
    model: str = "served"
    """which of the two scores to look at"""
    seeds: Sequence[int] = ()
    """at which it is tried, where not the study's first alone: some gaps show in the mean only"""

    def cells(self, choice: Choice, data: str, method: str, alpha: float | None) -> dict[int, Run]:
        """Its runs by seed."""
        settings, made = {**choice.settings, **self.settings}, {}
        for seed in self.seeds or choice.seeds[:1]:
            one = cell(data, self.run or method, alpha, seed, settings, full=choice.full)
            made[seed] = Run(one.words, one.kind, tuple(self.extra.items()))
        return made


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
        if base_name(method) in choice.methods
        for one in cause.cells(choice, data, method, alpha).values()
    ]


@dataclass(frozen=True)
class Compared:
    """A cell of the paper that we have measured."""

    name: str
    method: str
    alpha: float | None
    ours: Runs
    theirs: tuple[float, float]
    """mean and standard deviation"""

    def far(self, accuracy: float | None) -> bool:
        return accuracy is not None and abs(accuracy - self.theirs[0]) > FAR * self.theirs[1]


def section(store: Store, choice: Choice, data: str, compared: Sequence[Compared]) -> list[Section]:
    """The cells that lie far from the paper's, each with the causes tried."""
    if not compared:
        return []
    heading = f"{set_name(data)}: more than two of the paper's standard deviations away"
    rows = [row for one in compared if one.far(one.ours.mean()) for row in _rows(store, choice, data, one)]
    if not rows:
        return [Section(heading, ["No cell measured so far lies that far from the paper's."])]
    title = f"Ours, and below it our run of seed {choice.seeds[0]} with a named cause switched (`pfedsim reproduce gaps`)"
    note = (
        f"Moved: against our own runs of the same seeds. A cause closes the gap where those lie more than {FAR} of the paper's standard "
        "deviations away and those with the cause switched do not; with one or two seeds this is a hint, not a proof."
    )
    return [Section(heading, [Table(f"gaps-{data}", title, HEAD, rows, notes=[note])])]


HEAD = ["method, and what was switched", "accuracy", "moved", "paper", "in std", "so"]


def explained(store: Store, choice: Choice, data: str, one: Compared) -> bool:
    """Whether a run is finished that closes this gap."""
    return _rows(store, choice, data, one)[0][-1].text == EXPLAINED


def _rows(store: Store, choice: Choice, data: str, one: Compared) -> list[list[Cell]]:
    """Ours, and below it a row for each cause."""
    tried: list[list[Cell]] = []
    for cause in [c for c in causes() if one.method in c.methods]:
        asked = cause.cells(choice, data, one.method, one.alpha)
        switched = Runs({seed: record for seed, run in asked.items() if (record := store.find(run))})
        here, there = one.ours.common(switched).mean(), switched.mean((cause.model, "micro"))
        why = f"- {cause.why}" + (f", seeds {switched.seeds}" if len(asked) > 1 else "")
        if here is None or there is None or len(switched.by_seed) < len(asked):
            tried.append(cells(why, "-", "-", "-", "-", "not run"))
        else:
            so = "near before" if not one.far(here) else "does not" if one.far(there) else CLOSED
            tried.append(_row(why, there, there - here, one.theirs, so))
    verdict = EXPLAINED if any(row[-1].text == CLOSED for row in tried) else "open"
    return [_row(f"{one.name}, {dealt(one.alpha)}", one.ours.mean() or 0.0, None, one.theirs, verdict), *tried]


def _row(what: str, accuracy: float, moved: float | None, theirs: tuple[float, float], so: str) -> list[Cell]:
    apart = (accuracy - theirs[0]) / theirs[1]
    return [Cell(what), Cell(f"{accuracy:.2f}", value=accuracy), Cell("") if moved is None else points(moved),
            *cells(f"{theirs[0]:.2f} ({theirs[1]:.2f})"), Cell(f"{apart:+.1f}", value=apart), Cell(so)]  # fmt: skip
