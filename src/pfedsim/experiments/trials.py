"""Trials: runs that differ in a few settings and are judged by their accuracy on the validation parts. Finished ones
are reused, stopped ones continue, and hopeless ones can be pruned at a fixed round."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.data.federation import Federation
from pfedsim.errors import Diverged, Error
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.distil import Clock, run_cell, validation_curve
from pfedsim.experiments.runner import run as run_side_by_side
from pfedsim.experiments.store import Store
from pfedsim.runs import manifest, names
from pfedsim.runs.config import BEST, Config
from pfedsim.runs.execution import Progress, Watch
from pfedsim.runs.news import complete_records

if TYPE_CHECKING:
    from pfedsim.experiments.runner import Work

RUNG = "rung"  # the kind of a cell that is a run up to a round
FINISHED, PRUNED, DIVERGED = "finished", "pruned", "diverged"


@dataclass(frozen=True)
class Trial:
    """One run among others."""

    number: int
    """from 1, in the order in which the settings were drawn up"""
    settings: Mapping[str, Any]
    """what distinguishes it, by dotted name: {"lr": 0.01, "pfedsim.rho": 0.3}; empty: nothing is changed"""
    cell: Cell
    outcome: str
    """finished, pruned or diverged"""
    validation: float | None
    """accuracy on the validation parts after `round`; None if it diverged"""
    round: int | None
    """the round whose models are reported; of a pruned trial the one after which it was pruned"""
    record: Record | None = None
    """what the run found, its test scores included; None unless it finished"""
    why: str = ""
    """why it diverged"""

    @property
    def config(self) -> Config:
        """The configuration of this run, with nothing left open."""
        return self.cell.config

    @property
    def name(self) -> str:
        return described(self.settings)


def described(settings: Mapping[str, Any]) -> str:
    """The settings in one line."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as given"


def best_of(trials: Sequence[Trial]) -> Trial:
    """The finished trial with the highest accuracy on the validation parts; the earliest of equal ones."""
    finished = [t for t in trials if t.outcome == FINISHED and t.validation is not None]
    if finished:
        return max(finished, key=lambda t: t.validation or 0.0)
    diverged = [t.why for t in trials if t.outcome == DIVERGED]
    if diverged:
        raise Error(f"every trial diverged, the first so: {diverged[0]}")
    raise Error("no client holds back a sample, so no trial can be judged: raise validation")


@dataclass(frozen=True)
class Workshop:
    """Where trials run and what they leave. `config`: its engine, address, workers and device."""

    store: Store
    federation: Federation
    config: Config
    watch: Watch | None = None
    allow_drift: bool = False
    names: dict[str, str] = field(default_factory=dict)
    """what the progress of a cell is shown under, by digest"""

    def finish(self, cells: Sequence[Cell]) -> None:
        """Run those of these cells that are not finished: one per core, or on the cluster of the configuration."""
        missing = [c for c in {c.digest: c for c in cells}.values() if self.store.find(c) is None]
        if not missing:
            return
        config, make = self.config, partial(work_in, self.store.folder.resolve(), self._place())
        if config.engine == "ray":
            from pfedsim.experiments.cluster import run_on_cluster

            how: dict[str, Any] = {"address": config.address, "jobs": config.workers}
            ended = run_on_cluster(
                missing, make, self._tell, self.federation, allow_drift=self.allow_drift, **how
            )
        else:
            cores = config.workers or len(os.sched_getaffinity(0))
            jobs = cores if config.device == "cpu" else 1
            ended = run_side_by_side(missing, make(self.federation), jobs, self._tell)
        with closing(ended):
            for cell, failure in ended:
                if failure is not None:
                    raise failure
                if self.store.find(cell) is None:
                    raise Error(
                        f"{self.store.path(cell)} was written on another machine and is not here: choose a folder "
                        "on a path that all nodes share"
                    )

    def _place(self) -> dict[str, Any]:
        """What every trial takes over from the place; each runs in one process of its own."""
        of_place = {name: getattr(self.config, name) for name in ("device", "data_dir", "time_limit")}
        alone = (
            {"engine": "serial", "time_limit": None} if self.config.engine == "ray" else {"engine": None}
        )
        return {**of_place, **alone, "address": None, "state": False}

    def _tell(self, cell: Cell, done: Progress) -> None:
        """Pass on a run's progress under its trial's name, without the test scores: nobody sees one before the
        choice is made."""
        if self.watch is None:
            return
        name, last = self.names.get(Cell(cell.words).digest), dict(cell.extra).get("round")
        if name and last:
            name, done = f"{name} (up to round {last})", replace(done, rounds=last)
        method = name if name and done.method else done.method
        self.watch(replace(done, method=method, micro=None, mean=None))


def work_in(folder: Path, place: Mapping[str, Any], federation: Federation | None) -> Work:
    """What executes the cells of the store in this folder, here or on a node of a cluster."""
    return partial(_execute, Store(folder), place, federation)


class _Paused(Exception):
    """The run has reached its rung; its folder is that of a stopped run."""


def _execute(
    store: Store, place: Mapping[str, Any], federation: Federation | None, cell: Cell, watch: Watch
) -> None:
    """Run a cell to its end or to its rung, and keep what it found in the store."""
    clock, run = Clock(), Cell(cell.words)
    folder, last = store.run_folder(run), dict(cell.extra).get("round")

    def tell(done: Progress) -> None:
        watch(done)
        if last is not None and not done.note and done.round >= last:
            raise _Paused

    found: dict[str, Any] = {}
    try:
        record = run_cell(run, folder, tell, federation, **place)
        if cell.kind != RUNG:
            store.put(record)
            return
    except _Paused:
        pass
    except Diverged as error:
        found = {"diverged": str(error)}
    curve = validation_curve(complete_records(folder / "metrics.jsonl"))
    made = {**manifest.stored(folder).get("made_with", {}), **clock.costs()}
    store.put(Record(cell, cell.settings(), {**found, "validation": curve}, made))


def rung_of(config: Config, prune: float) -> int:
    """The first scored round at or after this share of the rounds, where trials are pruned."""
    rounds, every = config.rounds, config.score.every
    assert rounds is not None
    if not 0 < prune < 1:
        raise Error(
            f"prune = {prune}: it should be a share of the rounds between 0 and 1, or 0 to prune nothing"
        )
    rung = max(1, ceil(ceil(prune * rounds - 1e-9) / every)) * every if every else rounds
    if rung >= rounds:
        raise Error(
            f"prune = {prune}: no round between {prune:.0%} of the {rounds} rounds and the last is scored; lower "
            "score.every, or set prune = 0"
        )
    return rung


def run_trials(
    groups: Sequence[Sequence[tuple[Mapping[str, Any], Cell]]],
    shop: Workshop,
    prune: float = 0.0,
    before: Sequence[Trial] = (),
) -> list[list[Trial]]:
    """Run all trials, given by settings and cell, in groups that compete. With `prune`, every trial runs up to that
    share of its rounds; those of the worse half of its group end there. All depends on scores alone, so neither the
    order in which runs finish nor an interruption changes what is pruned. `before`: trials that a single group
    competes with as well."""
    if not prune:
        shop.finish([cell for group in groups for _, cell in group])
        return [_numbered(group, shop.store, set(), prune, before) for group in groups]
    rungs = [_rung(cell, prune) for group in groups for _, cell in group]
    shop.finish([rung for rung in rungs if shop.store.find(Cell(rung.words)) is None])
    kept: list[set[str]] = [_kept(group, shop.store, prune, before) for group in groups]
    shop.finish([c for group, keep in zip(groups, kept, strict=True) for _, c in group if c.digest in keep])
    made = []
    for group, keep in zip(groups, kept, strict=True):
        pruned = {cell.digest for _, cell in group} - keep
        for _, cell in group:
            if cell.digest in pruned and (folder := shop.store.run_folder(cell)).is_dir():
                names.remove(folder)
        made.append(_numbered(group, shop.store, pruned, prune, before))
    return made


def _rung(cell: Cell, prune: float) -> Cell:
    """The cell of the same run up to its rung."""
    return Cell(cell.words, RUNG, (("round", rung_of(cell.config, prune)),))


def _kept(
    group: Sequence[tuple[Mapping[str, Any], Cell]], store: Store, prune: float, before: Sequence[Trial]
) -> set[str]:
    """Those that go on after their rung: the better half of all, with ties; never one that diverged."""
    scores = {cell.digest: _at_rung(cell, store, prune) for _, cell in group}
    seen = [*scores.values(), *(_at_rung(t.cell, store, prune) for t in before)]
    ordered = sorted((s for s in seen if s is not None), reverse=True)
    if not ordered:
        return set()
    least = ordered[min(len(ordered), ceil(len(seen) / 2)) - 1]
    return {digest for digest, score in scores.items() if score is not None and score >= least}


def _at_rung(cell: Cell, store: Store, prune: float) -> float | None:
    """The validation accuracy of the models that a run would report at its rung; None if it diverged before."""
    rung = _rung(cell, prune)
    record, last = store.find(rung) or store.find(cell), int(rung.extra[0][1])
    assert record is not None
    if "diverged" in record.found and max(record.found["validation"]["round"], default=0) < last:
        return None
    return _reported(record, cell.config, last)[1]


def _reported(record: Record, config: Config, last: int) -> tuple[int | None, float | None]:
    """The round up to `last` whose models a run would report, and its validation accuracy."""
    curve = record.found["validation"]
    known = [
        (r, v) for r, v in zip(curve["round"], curve["micro"], strict=True) if r <= last and v is not None
    ]
    if not known:
        return None, None
    if (chosen := record.found.get("chosen")) is not None:
        return chosen["round"], dict(known).get(chosen["round"])
    if config.stop is not None and config.stop.round == BEST:
        return max(known, key=lambda point: (point[1], -point[0]))
    return known[-1]


def _numbered(
    group: Sequence[tuple[Mapping[str, Any], Cell]],
    store: Store,
    pruned: set[str],
    prune: float,
    before: Sequence[Trial],
) -> list[Trial]:
    """The trials of a group, from the store."""
    found = []
    for number, (settings, cell) in enumerate(group, len(before) + 1):
        about = (number, dict(settings), cell)
        if cell.digest in pruned and (score := _at_rung(cell, store, prune)) is not None:
            found.append(Trial(*about, PRUNED, score, int(_rung(cell, prune).extra[0][1])))
            continue
        record = store.find(cell) or store.find(_rung(cell, prune))
        assert record is not None
        if (why := record.found.get("diverged")) is not None:
            found.append(Trial(*about, DIVERGED, None, None, why=why))
        else:
            round, score = _reported(record, cell.config, cell.config.rounds or 0)
            found.append(Trial(*about, FINISHED, score, round, record))
    return found
