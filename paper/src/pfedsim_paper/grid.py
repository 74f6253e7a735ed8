"""Runs of a study by what tells them apart, and the cells that tables make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from pfedsim.experiments import Record, Store
from pfedsim.methods import METHODS, label, parse
from pfedsim.report import Entry, mean_std
from pfedsim_paper import paper
from pfedsim_paper.protocol import Choice, alphas, base, cell

Keys = tuple[str, ...]
"""where a record has a figure"""
MICRO: Keys = ("served", "micro")
CLIENTS: Keys = ("served", "mean")
TUNED: Keys = ("finetuned", "micro")
TUNED_CLIENTS: Keys = ("finetuned", "mean")


@dataclass(frozen=True)
class Runs:
    """The finished runs of one method on one federation, by seed."""

    by_seed: Mapping[int, Record]

    def figures(self, keys: Keys = MICRO) -> dict[int, float]:
        """In %, by seed."""
        values = {}
        for seed, record in self.by_seed.items():
            value: Any = record.found
            for key in keys:
                value = (value or {}).get(key)
            if value is not None:
                values[seed] = 100 * value
        return values

    def mean(self, keys: Keys = MICRO) -> float | None:
        values = self.figures(keys).values()
        return mean(values) if values else None

    def text(self, keys: Keys = MICRO) -> str:
        """mean (std, ddof 1) in %."""
        return mean_std(self.figures(keys).values())

    def minus(self, other: Runs, keys: Keys = MICRO) -> list[float]:
        """Points above another's, seed by seed, of the seeds that both have."""
        mine, theirs = self.figures(keys), other.figures(keys)
        return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]

    def common(self, other: Runs) -> Runs:
        """Those of its seeds that another has too."""
        return Runs({seed: record for seed, record in self.by_seed.items() if seed in other.by_seed})

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
    """What is there of the seeds and settings chosen."""
    found = {
        seed: store.find(cell(data, method, alpha, seed, choice.settings, full=choice.full, **more))
        for seed in choice.seeds
    }
    return Runs({seed: record for seed, record in found.items() if record is not None})


def table_of(store: Store, choice: Choice, data: str, alpha: float | None) -> dict[str, Runs]:
    """Method -> its runs."""
    return {method: runs(store, choice, data, method, alpha) for method in choice.methods}


def by_alpha(store: Store, choice: Choice, data: str) -> dict[float | None, dict[str, Runs]]:
    """Partition -> method -> its runs, of the partitions of which anything is there."""
    found = {alpha: table_of(store, choice, data, alpha) for alpha in alphas(data, choice)}
    return {alpha: by for alpha, by in found.items() if any(r.by_seed for r in by.values())}


def tested(record: Record) -> np.ndarray:
    """How many samples each client is tested on."""
    samples = np.array(record.found["clients"]["samples"])
    train = (samples * (1 - record.cell.words["test"]) + 1e-9).astype(int)
    counts: np.ndarray = samples - np.clip(train, 1, np.maximum(samples - 1, 1))
    return counts


def scale(record: Record) -> str:
    """How large a run was, in a sentence."""
    words, sizes = record.cell.words, record.found["clients"]["samples"]
    more = words["score"]["finetune"]
    second = (
        f" The score after local epochs adds {more} more{'' if more == words['epochs'] else ' (fewer, to save time)'}."
        if more
        else ""
    )
    return (
        f"{sum(sizes):,} samples on {len(sizes)} clients, {words['join']:.0%} of them in each of "
        f"{words['rounds']} rounds, "
        f"{words['epochs']} local epochs, batch {words['batch']}, {words['model']}.{second}"
    )


def title(method: str) -> str:
    """As tables call it."""
    return METHODS[method].title if method in METHODS else label(parse(method))


def set_name(data: str) -> str:
    return paper.SETS.get(data, data)


def dealt(alpha: float | None, data: str = "") -> str:
    """How a set's clients came by their samples; a set that is not dealt by alpha is to be named."""
    if alpha is not None:
        return f"Dir({alpha:g})"
    return "clients within domains" if data and base(data)["partition"] == "domain" else "clients as given"


def worse_off(method: Runs, alone: Runs) -> float | None:
    """Share of the clients, over the seeds that both have, whose accuracy as served lies below training
    alone."""
    shares = []
    for seed, record in method.by_seed.items():
        if seed in alone.by_seed:
            here, there = (
                np.array(r.found["clients"]["served"], dtype=float) for r in (record, alone.by_seed[seed])
            )
            shares.append(float((here < there).mean()))
    return mean(shares) if shares else None


def decimal(value: float | None) -> Entry:
    """A correlation, a distance or the like."""
    return Entry("-") if value is None else Entry(f"{value:.3f}", value=value)


def points(value: float | None, sign: str = "+") -> Entry:
    """A difference in points."""
    return Entry("-") if value is None else Entry(f"{round(value, 2) + 0.0:{sign}.2f}", value=value)
