"""A leaderboard: the cells of a board, and what of them is finished.

Every method is first tuned on every data set, within the board's budget and on validation parts alone; the result is
one record of the kind "tuning". What it chose decides the words of the runs that are scored on test, one for each
seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from pfedsim.errors import Error
from pfedsim.experiments.board import Board, Place, expanded, merged
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.store import Store
from pfedsim.methods import label, parse
from pfedsim.plugin import source_digest
from pfedsim.runs import config as configs
from pfedsim.runs.reader import slug

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation
    from pfedsim.runs.execution import Progress

TUNING = "tuning"
AUTOGRAD = 6.0  # processor time of the torch backend over the native one's, for LeNet5 (docs/performance.md)
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

    def missing(self) -> list[Cell]:
        """What can be run now: the tuning, or after it the runs that are not finished."""
        if not self.ready:
            assert self.tuning is not None
            return [self.tuning]
        return [cell for seed, cell in self.cells.items() if seed not in self.runs]


@dataclass(frozen=True)
class Leaderboard:
    """A board with a store of its finished cells. `added`: methods of the user's own."""

    board: Board
    store: Store
    added: Sequence[str] = ()
    _known: dict[tuple[str, str], Contender] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def extra(self) -> list[str]:
        return expanded(tuple(self.added))

    def methods(self, place: Place) -> list[str]:
        """The methods of a place, the added ones last."""
        known = self.board.methods_at(place)
        return [*known, *(m for m in self.extra if m not in known)]

    def every_method(self) -> list[str]:
        """All methods of all places."""
        return list(dict.fromkeys(m for place in self.board.places for m in self.methods(place)))

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

    def cell(
        self, place: Place, method: str, seed: int, chosen: Mapping[str, Any], **more: Any
    ) -> Cell:
        """One run."""
        words = merged(self.board.words(place), more)
        for key, value in chosen.items():
            configs.assign(words, key, value)
        return Cell({**_copied(words), "method": method, "seed": seed}, "run", _code(method))

    def _tuning(self, place: Place, method: str) -> Cell | None:
        budget = self.board.tuning
        if budget is None:
            return None
        from pfedsim.experiments.budget import space

        words = {
            **self.board.words(place),
            "rounds": place.tuning_rounds,
            "validation": budget.validation,
            "score": {"every": 0, "finetune": 0},
            "method": method,
            "seed": budget.seed,
        }
        extra = (("trials", budget.trials), ("space", space(method)), *_code(method))
        return TuningCell(words, TUNING, extra)

    def seconds(self, cell: Cell, place: Place, method: str) -> float:
        """The processor seconds that a cell will take, judging by finished ones of this place: of the same method, or
        else of any. Without any, by what the board says of a round."""
        rounds = _rounds(cell)
        for by in (cell.words["method"], None):
            rates = [rate for name, rate in self._rates(place) if by is None or name == by]
            if rates:
                return mean(rates) * rounds
        return place.round_seconds * rounds * (AUTOGRAD if parse(method).autograd() else 1)

    def _rates(self, place: Place) -> list[tuple[str, float]]:
        """Method and processor seconds a round of every finished cell of a place."""
        found = []
        for method in self.methods(place):
            one = self.contender(place, method)
            records = [*one.runs.values(), *([one.tuned] if one.tuned else [])]
            found += [(method, r.made["cpu_seconds"] / _rounds(r.cell)) for r in records]
        return found


def _copied(words: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, dict) else v for k, v in words.items()}


def _rounds(cell: Cell) -> int:
    return int(cell.words["rounds"]) * int(dict(cell.extra).get("trials", 1))


def _code(method: str) -> tuple[tuple[str, Any], ...]:
    """What tells the versions of a user's own method apart."""
    name = method.partition("(")[0].strip()
    digest = source_digest(type(parse(method))) if ":" in name else None
    return () if digest is None else (("code", digest[:CODE]),)


def execute(store: Store, cell: Cell, watch: Callable[[Progress], None]) -> None:
    """Run one cell, or continue it where it was stopped, and keep it in the store."""
    from pfedsim.experiments.distil import Clock, run_cell
    from pfedsim.runs import manifest
    from pfedsim.runs.setup import federate

    folder = store.run_folder(cell)
    if cell.kind != TUNING:
        store.put(run_cell(cell, folder, watch))
        return
    from pfedsim.experiments.budget import tuned

    clock = Clock()
    found = tuned(cell, folder, federate(cell.config), watch)
    store.put(Record(cell, cell.settings(), found, {**manifest.made_with(cell.config), **clock.costs()}))


def work(store: Store, _: Federation | None = None) -> Callable[[Cell, Callable[[Progress], None]], None]:
    """What executes cells, here or on the node of a cluster, where each cell reads its own data."""
    return partial(execute, store)


def waves(
    leaderboard: Leaderboard, wanted: Callable[[Place, str], bool], seeds: Sequence[int] = ()
) -> Iterator[tuple[Place, list[Cell]]]:
    """What is missing, place by place: first the tunings, then, once those have been run, the runs whose settings
    they chose. `wanted`: which methods of which places; `seeds`: only these."""
    for place in leaderboard.board.places:
        methods = [m for m in leaderboard.methods(place) if wanted(place, m)]
        for _ in range(2 if leaderboard.board.tuning else 1):
            leaderboard.forget()
            missing = [cell for m in methods for cell in leaderboard.contender(place, m).missing()]
            missing = [c for c in missing if c.kind == TUNING or not seeds or c.words["seed"] in seeds]
            if missing:
                yield place, missing
