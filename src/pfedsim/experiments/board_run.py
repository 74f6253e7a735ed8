"""Run what is missing of a leaderboard: data set by data set, first the tuning, then the runs that it decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pfedsim.experiments.budget import tune
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.cluster import run_on_cluster
from pfedsim.experiments.distil import run_cell
from pfedsim.experiments.leaderboard import Leaderboard, Wanted
from pfedsim.experiments.runner import missing_data
from pfedsim.experiments.runner import run as run_side_by_side
from pfedsim.experiments.store import Store
from pfedsim.runs import config as configs
from pfedsim.runs.setup import federate

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation
    from pfedsim.experiments.board import Place
    from pfedsim.runs.execution import Progress

    Watch = Callable[[str, Progress], None]


@dataclass(frozen=True)
class Where:
    """Where cells run: `jobs` side by side on this machine, or on a Ray cluster (None: one per core)."""

    jobs: int | None
    engine: str | None = None
    address: str | None = None
    allow_drift: bool = False

    def settings(self) -> dict[str, Any]:
        """The same as settings of a run."""
        return {"workers": self.jobs, "engine": self.engine, "address": self.address}


@dataclass
class Listener:
    """Who is told what happens while a board runs: `watch` gets the progress of a cell under its name, `said` a line
    for each part that has ended. `failed`: why each cell that failed did."""

    watch: Watch
    said: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict)


def run_missing(table: Leaderboard, wanted: Wanted, where: Where, tell: Listener) -> None:
    """Run all that is wanted and not finished."""
    for place in table.board.set:
        methods = [m for p, m in wanted.of(table) if p is place]
        asked = [one for m in methods if wanted.missing(one := table.contender(place, m))]
        if not asked:
            continue
        if why := missing_data(str(table.board.words(place)["data"])):
            tell.failed |= {cell.name: why for one in asked for cell in wanted.missing(one)}
            continue
        federation = federate(configs.check(table.board.words(place)))
        _tune(
            table,
            place,
            [one.tuning for one in asked if not one.ready and one.tuning],
            federation,
            where,
            tell,
        )
        cells = [
            cell
            for one in asked
            if (now := table.contender(place, one.method)).ready
            for cell in wanted.missing(now)
        ]
        _run(table, place, cells, federation, where, tell)
        table.forget()
    table.store.tidy()


def _tune(
    table: Leaderboard,
    place: Place,
    cells: list[Cell],
    federation: Federation,
    where: Where,
    tell: Listener,
) -> None:
    if not cells:
        return
    tell.said(f"{place.name}: tuning {', '.join(str(cell.words['method']) for cell in cells)}")
    failed = tune(
        cells,
        table.store,
        federation,
        table.board.seeds,
        where.settings(),
        lambda done: tell.watch(f"{place.name}, {done.method}", done),
        where.allow_drift,
    )
    tell.failed |= failed
    for name, why in failed.items():
        tell.said(f"{name} FAILED: {why}")
    table.forget()


def _run(
    table: Leaderboard,
    place: Place,
    cells: list[Cell],
    federation: Federation,
    where: Where,
    tell: Listener,
) -> None:
    """The runs that are scored."""

    def watch(cell: Cell, progress: Progress) -> None:
        tell.watch(cell.name, progress)

    if where.engine == "ray":
        how: dict[str, Any] = {
            "address": where.address,
            "jobs": where.jobs,
            "allow_drift": where.allow_drift,
        }
        ended = run_on_cluster(cells, partial(work, table.store), watch, federation, **how)
    else:
        ended = run_side_by_side(cells, work(table.store, federation), where.jobs or 1, watch)
    for count, (cell, failure) in enumerate(ended, 1):
        record = None if failure else table.store.find(cell)
        if record is None:
            tell.failed[cell.name] = str(
                failure or "its result was written on another machine"
            ).splitlines()[-1]
        tell.said(
            f"{place.name} {count}/{len(cells)}  {cell.name}  {_took(record, tell.failed.get(cell.name))}"
        )


def _took(record: Record | None, why: str | None) -> str:
    return f"{record.made['seconds']:.0f} s" if record else f"FAILED: {why}"


def work(store: Store, federation: Federation | None) -> Callable[..., None]:
    """What executes runs, here or on the node of a cluster."""
    return partial(_execute, store, federation)


def _execute(
    store: Store, federation: Federation | None, cell: Cell, watch: Callable[[Progress], None]
) -> None:
    store.put(run_cell(cell, store.run_folder(cell), watch, federation))
