"""Where ours differs from the paper by more than two of its standard deviations, and the runs that look for the cause."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from pfedsim.report.document import Cell, Section, Table, cells
from pfedsim.studies.cells import Cell as Run
from pfedsim.studies.cells import Store
from pfedsim.studies.grid import Runs, dealt, points, runs, set_name, title
from pfedsim.studies.paper import printed
from pfedsim.studies.protocol import Choice, cell

FAR = 2  # standard deviations of the paper


@dataclass(frozen=True)
class Cause:
    """What may explain a method's distance from the paper, and the settings that switch it."""

    method: str
    why: str
    run: str
    """the method to run in its place"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "served"
    """which of the two scores to look at"""


@cache
def causes() -> list[Cause]:
    """gaps.toml."""
    content = tomllib.loads((resources.files("pfedsim.studies") / "gaps.toml").read_text())
    return [
        Cause(c["method"], c["why"], c.get("run", c["method"]), c.get("settings", {}), c.get("model", "served")) for c in content["cause"]
    ]


def plan(choice: Choice) -> list[Run]:
    """Every cause's run at the study's first seed."""
    choice = choice.of(data=("cifar10",))
    return [
        cell(data, c.run, alpha, choice.seeds[0], _switched(choice, c).settings, full=choice.full)
        for data in choice.data
        for alpha in choice.alphas
        for c in causes()
        if c.method in choice.methods
    ]


def _switched(choice: Choice, cause: Cause) -> Choice:
    """The first seed with this cause's settings."""
    return replace(choice, seeds=choice.seeds[:1], settings={**choice.settings, **cause.settings})


def section(store: Store, choice: Choice, data: str, found: Mapping[float | None, Mapping[str, Runs]]) -> list[Section]:
    """The cells that lie far from the paper's, each with the causes tried."""
    rows: list[list[Cell]] = []
    for alpha, by in found.items():
        for method, mine in by.items():
            theirs, ours = printed("accuracy", method, data, alpha), mine.mean()
            if theirs is None or ours is None or abs(ours - theirs[0]) <= FAR * theirs[1]:
                continue
            rows.append(_row(title(method), alpha, "ours", ours, theirs, "tried below"))
            tried = [c for c in causes() if c.method == method]
            for c in tried:
                there = runs(store, _switched(choice, c), data, c.run, alpha).mean((c.model, "micro"))
                if there is None:
                    rows.append(cells("", dealt(alpha), c.why, "-", "-", "-", "-", "not run yet"))
                else:
                    rows.append(_row("", alpha, c.why, there, theirs, "does not close it"))
            if not tried:
                rows[-1][-1] = Cell("open: no cause tried")
            elif all(r[-1].text != CLOSED for r in rows[-len(tried) :]):
                rows[-len(tried) - 1][-1] = Cell("open")
            else:
                rows[-len(tried) - 1][-1] = Cell("explained")
    heading = f"{set_name(data)}: more than two of the paper's standard deviations away"
    compared = any(printed("accuracy", m, data, a) and r.by_seed for a, by in found.items() for m, r in by.items())
    if not compared:
        return []
    if not rows:
        return [Section(heading, ["No cell measured so far lies that far from the paper's."])]
    head = ["method", "partition", "run", "accuracy", "paper", "difference", "in std", "so"]
    table = Table(f"gaps-{data}", "Ours, and with a named cause switched (first seed)", head, rows)
    return [Section(heading, [table])]


CLOSED = "closes it"


def _row(name: str, alpha: float | None, what: str, ours: float, theirs: tuple[float, float], else_: str) -> list[Cell]:
    apart = (ours - theirs[0]) / theirs[1]
    so = CLOSED if what != "ours" and abs(apart) <= FAR else else_
    return [*cells(name, dealt(alpha), what), Cell(f"{ours:.2f}", value=ours), *cells(f"{theirs[0]:.2f} ({theirs[1]:.2f})"),
            points(ours - theirs[0]), Cell(f"{apart:+.1f}", value=apart), Cell(so)]  # fmt: skip
