"""A leaderboard: the cells of a board, and what of them is finished.

Every method is first tuned on every data set, within the board's budget and on validation parts alone; the result is
one record of the kind "tuning". What it chose decides the words of the runs that are scored on test, one for each
seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean
from typing import Any

from pfedsim.errors import Error
from pfedsim.experiments.board import Board, Place, expanded, merged
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.store import Store
from pfedsim.methods import label, parse
from pfedsim.plugin import source_digest
from pfedsim.runs import config as configs

TUNING = "tuning"
AUTOGRAD = (
    6.0  # processor time of the torch backend over the native one's, for LeNet5 (docs/performance.md)
)
CODE = 12  # characters of the digest of a user's own code


@dataclass(frozen=True)
class TuningCell(Cell):
    """All trials of one method on one data set."""

    @property
    def name(self) -> str:
        """As that of a run, with the number of trials."""
        run = Cell(self.words).name
        folder, _, what = run.partition("/")
        return f"{folder}/{what[: -len(Cell(self.words).digest[:8])]}tuned-{self.digest[:8]}"


@dataclass(frozen=True)
class Contender:
    """One method on one data set: its tuning and its runs, finished or not."""

    place: Place
    method: str
    title: str
    tuning: Cell | None
    tuned: Record | None
    cells: Mapping[int, Cell]
    """by seed; with the settings as they are while the method is not tuned"""
    runs: Mapping[int, Record]

    @property
    def ready(self) -> bool:
        """Whether the words of its runs are known."""
        return self.tuning is None or self.tuned is not None

    @property
    def finished(self) -> bool:
        return len(self.runs) == len(self.cells)

    @property
    def chosen(self) -> dict[str, Any]:
        """What tuning chose."""
        return dict(self.tuned.found["chosen"]) if self.tuned else {}


@dataclass(frozen=True)
class Leaderboard:
    """A board with a store of its finished cells. `added`: methods of the user's own."""

    board: Board
    store: Store
    added: Sequence[str] = ()
    _known: dict[tuple[str, str], Contender] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for place in self.board.set:
            seen: dict[str, str] = {}
            for method in self.methods(place):
                other = seen.setdefault(label(parse(method)), method)
                if other != method:
                    title = label(parse(method))
                    raise Error(
                        f"{other} and {method} have the same name in the table, {title}; give one another `title`"
                    )

    @cached_property
    def extra(self) -> list[str]:
        return expanded(tuple(self.added))

    def methods(self, place: Place) -> list[str]:
        """The methods of a place, the added ones last."""
        known = self.board.methods_at(place)
        return known if place.varies else [*known, *(m for m in self.extra if m not in known)]

    def every_method(self) -> list[str]:
        """All methods of all places."""
        return list(dict.fromkeys(m for place in self.board.set for m in self.methods(place)))

    def contender(self, place: Place, method: str) -> Contender:
        """What there is of this method here."""
        if (place.name, method) not in self._known:
            self._known[place.name, method] = self._look(place, method)
        return self._known[place.name, method]

    def forget(self) -> None:
        """Look at the store again."""
        self._known.clear()

    def _look(self, place: Place, method: str) -> Contender:
        tuning = self._tuning(place, method)
        tuned = self.store.find(tuning) if tuning else None
        chosen = tuned.found["chosen"] if tuned else {}
        cells = {seed: self.cell(place, method, seed, chosen) for seed in self.board.seeds}
        ready = tuning is None or tuned is not None
        runs = {seed: r for seed, cell in cells.items() if ready and (r := self.store.find(cell))}
        return Contender(place, method, label(parse(method)), tuning, tuned, cells, runs)

    def contenders(self, place: Place) -> dict[str, Contender]:
        """By the name in the table."""
        found = [self.contender(place, method) for method in self.methods(place)]
        return {one.title: one for one in found}

    def cell(self, place: Place, method: str, seed: int, chosen: Mapping[str, Any], **more: Any) -> Cell:
        """One run."""
        words = _copied(merged(self.board.words(place, method), more))
        for key, value in chosen.items():
            configs.assign(words, key, value)
        return Cell({**words, "method": method, "seed": seed}, "run", _code(method))

    def _tuning(self, place: Place, method: str) -> Cell | None:
        budget = self.board.tuning
        if budget is None:
            return None
        from pfedsim.experiments.budget import space_text
        from pfedsim.experiments.tune import tuning_seed

        words = self.board.words(place, method)
        # a choice of the round compares scored rounds
        every = words.get("score", {}).get("every") if "stop" in words else 0
        words = {
            **words,
            "rounds": place.tuning_rounds,
            "validation": budget.validation,
            "score": {"every": every, "finetune": 0},
            "method": method,
            "seed": tuning_seed(self.board.seeds),
        }
        extra = (("trials", budget.trials), ("space", space_text(configs.check(words), method)))
        return TuningCell(_copied(words), TUNING, (*extra, *_code(method)))

    def seconds(self, cell: Cell, place: Place, method: str) -> float:
        """The processor seconds that a cell will take, judging by finished ones of this place: of the same method, or
        else of any. Without any, by what the board says of a round."""
        rounds, known = _rounds(cell), self._rates(place)
        if mine := [rate for name, rate in known if name == method]:
            return mean(mine) * rounds
        native = [rate for name, rate in known if not parse(name).autograd()]
        rate = mean(native) if native else place.round_seconds
        return rate * rounds * (AUTOGRAD if parse(method).autograd() else 1)

    def _rates(self, place: Place) -> list[tuple[str, float]]:
        """Method and processor seconds a round of every finished cell of a place."""
        found = []
        for method in self.methods(place):
            one = self.contender(place, method)
            records = [*one.runs.values(), *([one.tuned] if one.tuned else [])]
            found += [(method, r.made["cpu_seconds"] / _rounds(r.cell)) for r in records]
        return found


@dataclass(frozen=True)
class Wanted:
    """Which part of a board is run; where it names nothing, all."""

    methods: Sequence[str] = ()
    sets: Sequence[str] = ()
    seeds: Sequence[int] = ()

    def of(self, table: Leaderboard) -> list[tuple[Place, str]]:
        """Data sets and methods, in the board's order."""
        return [
            (place, method)
            for place in table.board.set
            if not self.sets or place.name in self.sets
            for method in table.methods(place)
            if not self.methods or method in self.methods
        ]

    def missing(self, one: Contender) -> list[Cell]:
        """The runs of a contender that are wanted and not finished."""
        return [
            cell
            for seed, cell in one.cells.items()
            if seed not in one.runs and (not self.seeds or seed in self.seeds)
        ]


def _copied(words: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, dict) else v for k, v in words.items()}


def _rounds(cell: Cell) -> int:
    return int(cell.words["rounds"]) * int(dict(cell.extra).get("trials", 1))


def _code(method: str) -> tuple[tuple[str, Any], ...]:
    """What tells the versions of a user's own method apart."""
    name = method.partition("(")[0].strip()
    digest = source_digest(type(parse(method))) if ":" in name else None
    return () if digest is None else (("code", digest[:CODE]),)
