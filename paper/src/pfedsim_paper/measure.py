"""Executes one cell of a study: a run, distilled, or one of the measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pfedsim
from pfedsim import Federation
from pfedsim.experiments import Cell, Clock, Record, Store, run_cell
from pfedsim.runs import Progress, federate


def execute(store: Store, cell: Cell, watch: Callable[[Progress], None] | None = None) -> None:
    """Runs the cell, or continues it where it was stopped, and keeps it in the store."""
    if cell.kind == "run":
        federation = varied(federate(cell.config), dict(cell.extra))
        store.put(run_cell(cell, store.run_folder(cell), watch, federation))
    else:
        store.put(_measurement(cell))


def work(store: Store, _: Federation | None = None) -> Callable[[Cell, Callable[[Progress], None]], None]:
    """What executes cells, here or on the node of a cluster, where each cell reads its own data."""
    return partial(execute, store)


def varied(federation: Federation, extra: dict[str, Any]) -> Federation:
    """Applies what a cell varies beyond the settings: `pixels = "0..255"` normalises by the constants for
    0..1, as the author's code of the paper's time does."""
    if extra.get("pixels") != "0..255":
        return federation
    data = federation.data
    mean, std = (tuple(value / 255 for value in values) for values in (data.mean, data.std))
    return replace(federation, data=replace(data, mean=mean, std=std))


def _measurement(cell: Cell) -> Record:
    from pfedsim_paper.measurements import MEASUREMENTS

    clock = Clock()
    found, made = MEASUREMENTS[cell.kind](cell.config.model_copy(update={"workers": 1}), dict(cell.extra))
    versions = {"versions": {"pfedsim": pfedsim.__version__}}
    return Record(cell, cell.settings(), found, {**versions, **made, **clock.costs()})
