"""Runs of a study by what tells them apart, and the cells that tables make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from pfedsim import data as datasets
from pfedsim.methods import METHODS, label, parse
from pfedsim.report.document import Cell
from pfedsim.studies import paper
from pfedsim.studies.cells import Record, Store
from pfedsim.studies.protocol import Choice, cell

Path = tuple[str, ...]
MICRO: Path = ("served", "micro")
CLIENTS: Path = ("served", "mean")
TUNED: Path = ("finetuned", "micro")
TUNED_CLIENTS: Path = ("finetuned", "mean")


@dataclass(frozen=True)
class Runs:
    """The finished runs of one method on one federation, by seed."""

    by_seed: Mapping[int, Record]

    def figures(self, path: Path = MICRO) -> list[float]:
        """In %, seed by seed."""
        values = []
        for record in self.by_seed.values():
            value: Any = record.found
            for key in path:
                value = (value or {}).get(key)
            if value is not None:
                values.append(100 * value)
        return values

    def mean(self, path: Path = MICRO) -> float | None:
        values = self.figures(path)
        return mean(values) if values else None

    def text(self, path: Path = MICRO) -> str:
        """mean (std, ddof 1) in %; one seed has no spread."""
        values = self.figures(path)
        if not values:
            return "-"
        return f"{mean(values):.2f}" + (f" ({stdev(values):.2f})" if len(values) > 1 else "")

    def number(self, name: str) -> float | None:
        """A plain number of the record, averaged over the seeds."""
        values = [record.found[name] for record in self.by_seed.values()]
        return mean(values) if values else None

    @property
    def seeds(self) -> str:
        seeds = sorted(self.by_seed)
        whole = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
        return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds)) or "-"

    def curves(self) -> list[tuple[list[float], list[float]]]:
        """Round and accuracy as served, of each seed."""
        found = [record.found["curve"] for record in self.by_seed.values()]
        return [(c["round"], [100 * m for m in c["micro"]]) for c in found]


def runs(store: Store, choice: Choice, data: str, method: str, alpha: float | None, **more: Any) -> Runs:
    """What is there of the seeds and settings chosen; nothing of a set that this version cannot read."""
    if data not in datasets.NAMES:
        return Runs({})
    found = {seed: store.find(cell(data, method, alpha, seed, choice.settings, full=choice.full, **more)) for seed in choice.seeds}
    return Runs({seed: record for seed, record in found.items() if record is not None})


def table_of(store: Store, choice: Choice, data: str, alpha: float | None) -> dict[str, Runs]:
    """Method -> its runs."""
    return {method: runs(store, choice, data, method, alpha) for method in choice.methods}


def title(method: str) -> str:
    """As tables call it."""
    return METHODS[method].title if method in METHODS else label(parse(method))


def set_name(data: str) -> str:
    return paper.SETS.get(data, data)


def dealt(alpha: float | None) -> str:
    return "clients as given" if alpha is None else f"Dir({alpha:g})"


def worse_off(method: Runs, alone: Runs) -> float | None:
    """Share of the clients, over the seeds that both have, whose accuracy as served lies below training alone."""
    shares = []
    for seed, record in method.by_seed.items():
        if seed in alone.by_seed:
            here, there = (np.array(r.found["clients"]["served"], dtype=float) for r in (record, alone.by_seed[seed]))
            shares.append(float((here < there).mean()))
    return mean(shares) if shares else None


def points(value: float | None, sign: str = "+") -> Cell:
    """A difference in points."""
    return Cell("-") if value is None else Cell(f"{round(value, 2) + 0.0:{sign}.2f}", value=value)
