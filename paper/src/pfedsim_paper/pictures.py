"""Pictures of the studies whose findings are few numbers: what a method costs, what can be read, what
differs, how far from the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.report import Figure, Table
from pfedsim_paper.grid import MICRO, TUNED, dealt, runs, set_name, title
from pfedsim_paper.protocol import Choice

if TYPE_CHECKING:
    from pfedsim.experiments import Store
    from pfedsim_paper.gaps import Compared, Tried

NEAR, CLOSED, OPEN = "near", "far, closed by a cause", "far, open"
KINDS = {"as served": MICRO, "after local epochs": TUNED}


def times(table: Table) -> list[Figure]:
    """Of a table of seconds: every method in times FedAvg, ours and the paper's."""
    places = [k for k, heading in enumerate(table.head) if heading == "times FedAvg"]
    rows = {
        row[0].text: _numbers(
            dict(zip(("ours", "the paper's"), (row[k].value for k in places), strict=True))
        )
        for row in table.rows
    }
    return _bars(
        f"{table.name}-times",
        "Local training, in times FedAvg's seconds per sample",
        rows,
        "xi_p, in times FedAvg",
        1,
    )


def readings(table: Table, where: str) -> list[Figure]:
    """Of a table of what a server can tell: AUROC by method and way."""
    rows: dict[str, dict[str, float]] = {}
    for method, way, auroc, *_ in table.rows:
        if auroc.value is not None:
            rows.setdefault(method.text, {})[way.text] = auroc.value
    words = f"{where}: how well the server tells which classes a client has"
    return _bars(table.name, words, rows, "AUROC (0.5: not at all, 1: perfectly)", 0.5)


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _bars(
    name: str, words: str, rows: Mapping[str, Mapping[str, float]], xlabel: str, line: float
) -> list[Figure]:
    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import bars

        return bars(rows, path, width, xlabel, line)

    return [Figure(name, words, draw)] if any(rows.values()) else []


def differences(
    store: Store, data: str, choice: Choice, switched: Mapping[str, Any], words: str
) -> list[Figure]:
    """The first method minus each other or, where something is switched, each method with it minus without;
    seed by seed."""
    first, *others = choice.methods
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for alpha in choice.alphas:
        for method in choice.methods if switched else others:
            here = runs(store, choice, data, method if switched else first, alpha, **switched)
            there = runs(store, choice, data, method, alpha)
            if here.common(there).by_seed:
                name = title(method) if switched else f"minus {title(method)}"
                panels.setdefault(dealt(alpha), {})[name] = {
                    kind: here.minus(there, path) for kind, path in KINDS.items()
                }

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import spreads

        return spreads(panels, path, width, "difference in points")

    said = (
        f"{set_name(data)}: {words}, in points (mean over seeds; bar: their "
        "standard deviation, where there are several)"
    )
    return [Figure(f"{next(iter(switched), 'forms')}-{data}", said, draw)] if panels else []


def distances(
    name: str, place: str, compared: Sequence[tuple[Compared, Sequence[Tried], bool]], far: float
) -> Figure:
    """Every cell's distance from the paper's; an arrow from a far one, closed or not, to where the best of
    the causes tried moves it."""
    from pfedsim.report import Distance

    panels: dict[str, dict[str, Distance]] = {}
    for one, attempts, closed in compared:
        moved = [one.apart(one.mean + t.moved) for t in attempts if t.moved is not None] if one.far else []
        then = min(moved, key=abs, default=None)
        kind = NEAR if not one.far else CLOSED if closed else OPEN
        panels.setdefault(dealt(one.alpha), {})[one.name] = Distance(one.apart(one.mean), kind, then)

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import distances as drawn

        return drawn(panels, path, width, "ours minus the paper's, in its std", far, (NEAR, CLOSED, OPEN))

    said = (
        f"{place}: how far ours lies from the paper's, in its standard deviations "
        "(arrow: moved by the cause that brings it nearest)"
    )
    return Figure(name, said, draw)
