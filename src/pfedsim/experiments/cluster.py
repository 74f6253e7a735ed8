"""Run cells on a Ray cluster: whole runs, one per core. Their folders must lie on a path that all nodes share."""

from __future__ import annotations

import os
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pfedsim.core.engine import TRIES
from pfedsim.data.federation import Federation
from pfedsim.engines.actors import Actors, Came
from pfedsim.engines.pool import LOOKS
from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell
from pfedsim.runs import manifest
from pfedsim.runs.cluster import Arrays, Shipped, differences, shipped
from pfedsim.runs.config import Config

if TYPE_CHECKING:
    from pfedsim.experiments.runner import Watch, Work
    from pfedsim.runs.execution import Progress

    Make = Callable[[Federation | None], Work]

ALONE = {"engine": "serial", "workers": 1, "address": None}  # the settings of a run that has one core


@dataclass(frozen=True, eq=False)
class Opening:
    """From this value a node makes itself ready for cells. `folder`: the driver's working directory, from which
    relative paths count."""

    make: Make
    federation: Shipped | None
    folder: str
    made_with: Sequence[tuple[Config, Mapping[str, Any]]]
    """what the node must share with the driver, for each method and network among the cells"""
    allow_drift: bool

    def open(self, arrays: Arrays | None) -> tuple[Cells | None, list[str]]:
        if not Path(self.folder).is_dir():
            raise Error(
                f"it has no folder {self.folder}: runs on a cluster need a path that all nodes share"
            )
        os.chdir(self.folder)
        torch.set_num_threads(1)
        every = [differences(config, facts, self.allow_drift) for config, facts in self.made_with]
        notes = list(dict.fromkeys(note for notes in every for note in notes))
        if self.federation is None:
            return Cells(self.make(None)), notes
        federation, more = self.federation.open(arrays, self.allow_drift)
        return (None if federation is None else Cells(self.make(federation))), notes + more


class Cells:
    """The guest of an actor: runs one cell after another, and says how far the current one is."""

    def __init__(self, work: Work):
        self._work = work
        self._news: deque[Progress] = deque()

    def do(self, cell: Cell) -> tuple[Exception | None, list[Progress]]:
        failure: Exception | None = None
        try:
            self._work(cell, self._news.append)
        except (Error, OSError) as error:  # an error of the user or the machine, not a bug
            error.add_note(traceback.format_exc())  # a cause does not travel
            failure = error
        except Exception:
            failure = RuntimeError(traceback.format_exc().strip())
        return failure, self.look()

    def look(self) -> list[Progress]:
        """What has happened since the last look."""
        return [self._news.popleft() for _ in range(len(self._news))]


def run_on_cluster(
    cells: Sequence[Cell],
    make: Make,
    watch: Watch,
    federation: Federation | None = None,
    *,
    address: str | None = None,
    jobs: int | None = None,
    allow_drift: bool = False,
) -> Generator[tuple[Cell, Exception | None], None, None]:
    """As `runner.run`, on a cluster: `make(federation)` gives a node its `work`; `jobs` None: one per core. A
    cell whose actor dies continues on another from its last checkpoint."""
    if not cells:
        return
    ours, arrays = shipped(federation) if federation is not None else (None, ())
    opening = Opening(make, ours, str(Path.cwd()), _facts(cells), allow_drift)
    actors = Actors(opening, arrays, address, jobs)
    _tell(watch, cells[0], [actors.notice] if actors.notice else [])
    told = 0
    waiting = deque(cells)
    left, deaths = len(cells), Counter[str]()
    try:
        while left:
            actors.start(left)  # on nodes that have joined since, too
            for actor in actors.idle():
                if waiting and not actor.calls:
                    cell = waiting.popleft()
                    actors.call(actor, cell, cell)
            for came in actors.arrived(LOOKS):
                if _again(came, deaths):
                    waiting.append(came.what)
                    continue
                left -= 1
                failure, news = came.answer or (Error(f"its worker died {TRIES} times"), [])
                for progress in news:
                    watch(came.what, progress)
                yield came.what, failure
            _tell(watch, cells[0], actors.notes[told:])
            told = len(actors.notes)
            busy = actors.busy()
            for actor, said in zip(busy, actors.look(busy), strict=True):
                for progress in said or []:
                    watch(actor.calls[0].what, progress)
    finally:
        actors.close()


def _facts(cells: Sequence[Cell]) -> list[tuple[Config, Mapping[str, Any]]]:
    """What the nodes must share with this machine, once for each method, network, backend and device."""
    configs = {(c.method, c.model, c.backend, c.device): c for c in (cell.config for cell in cells)}
    # an open backend may become the native one, so its kernels count
    facts = [
        c.model_copy(update={"backend": "native"} if c.backend == "auto" else {}) for c in configs.values()
    ]
    return [(config, manifest.made_with(config)) for config in facts]


def _tell(watch: Watch, cell: Cell, notes: Sequence[str]) -> None:
    from pfedsim.runs.execution import Progress

    for note in notes:
        watch(cell, Progress("", 0, 0, float("nan"), None, None, note))


def _again(came: Came, deaths: Counter[str]) -> bool:
    """Whether the cell of an actor that died is run again; not if it died too often without its node."""
    if came.lost and not came.node_died:
        deaths[came.what.digest] += 1
    return came.lost and deaths[came.what.digest] < TRIES
