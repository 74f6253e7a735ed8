"""The numbers of a leaderboard: what its table shows of each method on each data set, and the command of each cell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev
from typing import Any

import numpy as np

from pfedsim.experiments.board import ALONE, Place
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.leaderboard import Contender, Leaderboard
from pfedsim.methods import label, parse
from pfedsim.report.ranks import Ranking, ranking

MISSING = "missing"


@dataclass(frozen=True)
class Measure:
    """A number of a run. `words`: what it is; `higher`: whether more is better."""

    key: str
    title: str
    words: str
    higher: bool = True
    decimals: int = 2
    cost: bool = False


MEASURES = (
    Measure("served", "as served", "accuracy as served, %, mean over clients"),
    Measure("tuned", "after local epochs", "accuracy after local epochs, %, mean over clients"),
    Measure("served_all", "as served, all samples", "accuracy as served, %, over all test samples"),
    Measure(
        "tuned_all",
        "after local epochs, all samples",
        "accuracy after local epochs, %, over all test samples",
    ),
    Measure("worst", "worst tenth", "accuracy as served, %, mean of the worst tenth of the clients"),
    Measure(
        "worse",
        "worse off than alone",
        "clients whose accuracy as served is below training alone, %",
        False,
    ),
    Measure(
        "kilobytes", "kB a round", "kilobytes that a client receives and sends in a round", False, 1, True
    ),
    Measure("seconds", "seconds", "processor seconds of a run with its scores", False, 1, True),
)
BY_KEY = {measure.key: measure for measure in MEASURES}


@dataclass(frozen=True)
class Score:
    """A measure of one method on one data set, by seed."""

    by_seed: Mapping[int, float]
    decimals: int

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        return mean(self.values)

    def text(self) -> str:
        """mean (std, ddof 1), as in every table of pfedsim."""
        spread = f" ({stdev(self.values):.{self.decimals}f})" if len(self.values) > 1 else ""
        return f"{self.mean:.{self.decimals}f}{spread}"


@dataclass(frozen=True)
class Standings:
    """A leaderboard with all that its tables show."""

    leaderboard: Leaderboard

    @cached_property
    def by_place(self) -> dict[str, dict[str, Contender]]:
        """Data set -> name of the method -> what there is."""
        return {p.name: self.leaderboard.contenders(p) for p in self.leaderboard.board.set}

    @property
    def places(self) -> tuple[Place, ...]:
        return self.leaderboard.board.places

    @cached_property
    def measures(self) -> list[Measure]:
        """What the tables show: without the scores after local epochs if the board asks for none."""
        words = (self.leaderboard.board.words(place) for place in self.places)
        tuned = any(w.get("score", {}).get("finetune") != 0 for w in words)
        return [m for m in MEASURES if tuned or not m.key.startswith("tuned")]

    @cached_property
    def titles(self) -> dict[str, str]:
        """Name in the table -> the method as it is named in commands, in the board's order."""
        every = [m for place in self.places for m in self.leaderboard.methods(place)]
        return {label(parse(m)): m for m in dict.fromkeys(every)}

    def score(self, place: Place, title: str, key: str) -> Score | None:
        """A measure, of the seeds that are finished."""
        one = self.by_place[place.name].get(title)
        alone = self.by_place[place.name].get(ALONE)
        if one is None or (key == "worse" and title == ALONE):
            return None
        found = {
            seed: _value(record, alone.runs.get(seed) if alone else None, key)
            for seed, record in one.runs.items()
        }
        values = {seed: value for seed, value in found.items() if value is not None}
        return Score(values, BY_KEY[key].decimals) if values else None

    def best_round(self, place: Place, title: str) -> Score | None:
        """The highest accuracy of all scored rounds, in %: chosen on test, as some publish it, and only for comparison
        with numbers that were made so."""
        one = self.by_place[place.name].get(title)
        if one is None or not one.runs:
            return None
        return Score({seed: 100 * max(r.found["curve"]["micro"]) for seed, r in one.runs.items()}, 2)

    def ranking(self, key: str) -> Ranking | None:
        """The ranking by this measure, of methods of which every seed is finished."""
        sign = 1 if BY_KEY[key].higher else -1
        scores: dict[str, dict[str, float]] = {title: {} for title in self.titles}
        for place in self.places:
            for title, one in self.by_place[place.name].items():
                score = self.score(place, title, key)
                if one.finished and score is not None:
                    scores[title][place.title] = sign * round(score.mean, BY_KEY[key].decimals)
        return ranking({title: row for title, row in scores.items() if row})

    def counts(self) -> tuple[int, int]:
        """Finished runs of the table, and all."""
        every = [one for place in self.places for one in self.by_place[place.name].values()]
        return sum(len(one.runs) for one in every), sum(len(one.cells) for one in every)

    def records(self) -> list[Record]:
        """All finished cells of the board."""
        every = [one for by in self.by_place.values() for one in by.values()]
        return [r for one in every for r in [*([one.tuned] if one.tuned else []), *one.runs.values()]]


def _value(record: Record, alone: Record | None, key: str) -> float | None:
    """In %, kilobytes or seconds."""
    found = record.found
    if key == "kilobytes":
        return float(found["bytes_down_per_client_round"] + found["bytes_up_per_client_round"]) / 1000
    if key == "seconds":
        return float(record.made["cpu_seconds"])
    if key == "worse":
        return (
            None
            if alone is None
            else _worse_off(found["clients"]["served"], alone.found["clients"]["served"])
        )
    model, figure = {
        "served": ("served", "mean"),
        "tuned": ("finetuned", "mean"),
        "served_all": ("served", "micro"),
        "tuned_all": ("finetuned", "micro"),
        "worst": ("served", "worst_tenth"),
    }[key]
    value = (found[model] or {}).get(figure)
    return None if value is None else 100 * float(value)


def _worse_off(ours: Sequence[float | None], alone: Sequence[float | None]) -> float | None:
    """The share of clients below training alone, in %; clients that either could not score do not count."""
    pair = np.array([ours, alone], dtype=float)
    pair = pair[:, ~np.isnan(pair).any(0)]
    return 100 * float((pair[0] < pair[1]).mean()) if pair.size else None


def run_command(cell: Cell) -> str:
    """The command that runs a cell by itself: it gives the same models."""
    words = {k: v for k, v in cell.words.items() if k not in ("method", "seed")}
    first = ["--data", str(words.pop("data")), "--method", str(cell.words["method"])]
    return shlex.join(["pfedsim", "run", *first, *_options(words), "--seed", str(cell.words["seed"])])


def _options(words: Mapping[str, Any]) -> list[str]:
    found, tables = [], []
    for key, value in words.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, Mapping):
            tables += [part for k, v in _flat(value, key) for part in ("--set", f"{k}={_word(v)}")]
        elif isinstance(value, bool):
            found.append(flag if value else "--no-" + flag[2:])
        else:
            found += [flag, _word(value)]
    return [*found, *tables]


def _flat(table: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = []
    for key, value in table.items():
        inside = f"{name}.{key}"
        found += _flat(value, inside) if isinstance(value, Mapping) else [(inside, value)]
    return found


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def board_command(leaderboard: Leaderboard, one: Contender) -> str:
    """The command that runs what is missing of one method on one data set."""
    add = ["--add", one.method] if one.method in leaderboard.extra else ["--methods", one.method]
    return shlex.join(["pfedsim", "leaderboard", leaderboard.board.name, "--sets", one.place.name, *add])


def chosen_text(one: Contender) -> str:
    """What tuning chose, in one line."""
    if one.tuning is None:
        return "not tuned"
    if one.tuned is None:
        return MISSING
    return ", ".join(f"{k}={v}" for k, v in one.chosen.items()) or "as given"
