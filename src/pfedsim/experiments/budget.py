"""Tune the methods of a leaderboard within its budget, one record for each method and data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.store import RUNS, Store
from pfedsim.experiments.tune import Tuned, space_of, tuned
from pfedsim.runs.config import Config

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation
    from pfedsim.runs.execution import Watch

TRIALS = "trials"  # the store of trials until their method is tuned, in the folder of unfinished runs


def space_text(config: Config, method: str) -> dict[str, str]:
    """What tuning tries, as a record keeps it."""
    return {
        name: ",".join(map(str, values)) if isinstance(values, Sequence) else str(values)
        for name, values in space_of(config, method).items()
    }


def tune(
    cells: Sequence[Cell],
    store: Store,
    federation: Federation,
    seeds: Sequence[int],
    place: Mapping[str, Any],
    watch: Watch | None,
    allow_drift: bool = False,
) -> dict[str, str]:
    """Run the trials of these tuning cells side by side and keep a record of each. All are of one data set and differ
    in their methods and perhaps in a few settings. `place`: engine, workers and address. Why each that failed did."""
    trials = Store(store.folder / RUNS / TRIALS)
    failed: dict[str, str] = {}
    for group in _alike(cells):
        try:
            _tune(group, store, trials, federation, seeds, place, watch, allow_drift)
        except Error:  # of one method: the others need not suffer
            for cell in group:
                try:
                    _tune([cell], store, trials, federation, seeds, place, watch, allow_drift)
                except Error as error:
                    failed[cell.name] = str(error)
    return failed


def _alike(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells in groups that share all settings but the method."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        words = {k: v for k, v in cell.words.items() if k != "method"}
        groups.setdefault(Cell(words, "", cell.extra[:1]).digest, []).append(cell)
    return list(groups.values())


def _tune(
    cells: Sequence[Cell],
    store: Store,
    trials: Store,
    federation: Federation,
    seeds: Sequence[int],
    place: Mapping[str, Any],
    watch: Watch | None,
    allow_drift: bool,
) -> None:
    count = int(dict(cells[0].extra)["trials"])
    config = cells[0].config.model_copy(update=dict(place))
    by_method = {str(cell.words["method"]): cell for cell in cells}
    found = tuned(config, list(by_method), count, trials, federation, seeds, watch, allow_drift=allow_drift)
    for method, result in found.items():
        store.put(_record(by_method[method], result))
        for trial in result.trials:
            trials.path(trial.cell).unlink(missing_ok=True)
    _tidy(trials)


def _record(cell: Cell, result: Tuned) -> Record:
    """What was tried and chosen."""
    listed = [
        {
            "settings": dict(t.settings),
            "accuracy": t.validation,
            "round": t.round,
            "outcome": t.outcome,
        }
        for t in result.trials
    ]
    best = result.best
    records = [t.record for t in result.trials if t.record is not None]
    made = dict(records[0].made)
    for key in ("seconds", "cpu_seconds"):
        made[key] = round(sum(r.made[key] for r in records), 1)
    found = {"trials": listed, "chosen": dict(best.settings), "accuracy": best.validation}
    return Record(cell, cell.settings(), found, made)


def _tidy(trials: Store) -> None:
    """Delete the folders of the store of trials that are empty."""
    from pfedsim import durable

    trials.tidy()
    for folder in [*trials.folder.glob("*"), trials.folder, trials.folder.parent]:
        if folder.is_dir():
            durable.remove_empty(folder)
