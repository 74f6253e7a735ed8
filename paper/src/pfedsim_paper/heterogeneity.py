"""The second limitation: the more alike the clients' data, the less personalisation gains."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from pfedsim.experiments import Cell, Store
from pfedsim.report import Document, Figure, Section, Table, entries, ranked
from pfedsim_paper.grid import MICRO, TUNED, Runs, by_alpha, dealt, points, scale, set_name, title
from pfedsim_paper.protocol import Choice, grid

METHODS = ("local", "fedavg", "fedper", "pfedsim")
ALPHAS = (0.1, 0.5, 1.0, 10.0)
Found = dict[float | None, dict[str, Runs]]


def defaults(choice: Choice) -> Choice:
    return choice.of(methods=METHODS, alphas=ALPHAS, seeds=(42, 43))


def plan(choice: Choice) -> list[Cell]:
    return grid(defaults(choice))


def report(store: Store, choice: Choice) -> Document:
    choice = defaults(choice)
    sections = []
    for data in choice.data:
        if found := by_alpha(store, choice, data):
            sections.append(
                Section(
                    set_name(data),
                    [
                        scale(
                            next(
                                r for by in found.values() for s in by.values() for r in s.by_seed.values()
                            )
                        ),
                        _table(data, found, MICRO),
                        _table(data, found, TUNED),
                        _gains(data, found),
                        _figure(data, found),
                    ],
                )
            )
    return Document(
        "heterogeneity", "How unequal the data are", sections or [Section("", ["Nothing is measured yet."])]
    )


def _words(path: tuple[str, ...]) -> str:
    return "as served" if path == MICRO else "after local epochs"


def _table(data: str, found: Found, path: tuple[str, ...]) -> Table:
    methods = list(next(iter(found.values())))
    columns = [entries(*map(title, methods))]
    for by in found.values():
        columns.append(ranked([by[m].mean(path) for m in methods], [by[m].text(path) for m in methods]))
    head = [
        "method",
        *(
            f"{dealt(a)}, seeds {' or '.join(dict.fromkeys(r.seeds for r in by.values() if r.by_seed))}"
            for a, by in found.items()
        ),
    ]
    return Table(
        f"heterogeneity-{data}-{path[0]}",
        f"{set_name(data)}: accuracy in %, {_words(path)}",
        head,
        list(zip(*columns, strict=True)),
    )


def gain(by: dict[str, Runs], over: str, path: tuple[str, ...]) -> float | None:
    """Points of pFedSim above another method, over the seeds that both have."""
    if "pfedsim" not in by or over not in by:
        return None
    gaps = by["pfedsim"].minus(by[over], path)
    return mean(gaps) if gaps else None


def _gains(data: str, found: Found) -> Table:
    rows = []
    for over in ("local", "fedavg", "fedper"):
        for path in (MICRO, TUNED):
            rows.append(
                [
                    *entries(f"minus {title(over)}, {_words(path)}"),
                    *(points(gain(by, over, path)) for by in found.values()),
                ]
            )
    return Table(
        f"gains-{data}",
        f"{set_name(data)}: pFedSim's gain in points",
        ["pFedSim", *map(dealt, found)],
        rows,
    )


def _figure(data: str, found: Found) -> Figure:
    shown: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    for path in (MICRO, TUNED):
        panel = {}
        for method in next(iter(found.values())):
            points_ = [(alpha, by[method].mean(path)) for alpha, by in found.items()]
            have = [(a, v) for a, v in points_ if a is not None and v is not None]
            if have:
                panel[title(method)] = [([a for a, _ in have], [v for _, v in have])]
        shown[_words(path)] = panel

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import lines

        return lines(shown, path, width, "alpha: small is unequal", "accuracy, %", log=True)

    return Figure(
        f"heterogeneity-{data}", f"{set_name(data)}: accuracy from unequal to nearly equal data", draw
    )
