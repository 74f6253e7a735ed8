"""Runs on the nodes of a Ray cluster: what travels there, and what must be the same there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.core.job import Worker
from pfedsim.data.cache import ARRAYS
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import ClientData, Federation
from pfedsim.data.partition import Partition
from pfedsim.data.task import Task
from pfedsim.engines.actors import Actors
from pfedsim.engines.pool import LIMIT
from pfedsim.engines.ray import Clients, Ray
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.config import Config
from pfedsim.runs.setup import Plan, plan
from pfedsim.runs.worker import anchored

if TYPE_CHECKING:
    from pfedsim.core.engine import Engine
    from pfedsim.data.tables.recipe import Recipe

OF_THE_DRIVER = ("engine", "address", "workers", "time_limit", "track")
Arrays = Sequence[np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Shipped:
    """A federation without its samples. `mapped`: the folder of decoded samples, which a node maps if it has it
    too; otherwise the driver's arrays come through the object store."""

    task: Task
    partition: Partition
    asked: Mapping[str, Any]
    in_memory: bool
    mapped: str | None
    recipe: Recipe | None = None

    def open(self, arrays: Arrays | None, allow_drift: bool) -> tuple[Federation | None, list[str]]:
        """The federation, held to its digest, and how the node's samples differ; None: it needs the arrays."""
        found = arrays or self._mapped()
        if found is None:
            return None, []
        x, y, client, domain = found
        assert x is not None
        assert y is not None
        task = self.task
        facts = task.classes, task.mean, task.std, client, domain, task.defaults, task.columns
        data = DataSet(task.name, x, y, *facts)
        if data.digest == task.digest:
            data = replace(data, recipe=self.recipe)
            return Federation(data, self.partition, self.asked, self.in_memory), []
        other = [f"data: {task.digest[:12]} -> {data.digest[:12]}"]
        refuse_drift(other, allow_drift and arrays is None)
        return None, other

    def _mapped(self) -> Arrays | None:
        """The decoded samples on this node; None where they are not."""
        if self.mapped is None:
            return None
        files = [Path(self.mapped) / f"{name}.npy" for name in ARRAYS]
        try:
            return [np.load(p, mmap_mode="c", allow_pickle=False) if p.is_file() else None for p in files]
        except (OSError, ValueError):
            return None


def shipped(federation: Federation) -> tuple[Shipped, Arrays]:
    """The federation as it travels, and its arrays."""
    data = federation.data
    file = getattr(data.x, "filename", None) if isinstance(data.x, np.memmap) else None
    in_cache = file is not None and Path(file).name == f"{ARRAYS[0]}.npy"
    mapped = str(Path(file).resolve().parent) if in_cache and file is not None else None
    arrays = [None if a is None else np.asarray(a) for a in (getattr(data, name) for name in ARRAYS)]
    facts = federation.partition, federation.asked, federation.in_memory, mapped, data.recipe
    return Shipped(data.task, *facts), arrays


@dataclass(frozen=True, eq=False)
class Opening:
    """From this value a node opens a run's workers. `made_with`: what the node must share with the driver."""

    config: Config
    federation: Shipped
    made_with: Mapping[str, Any]
    allow_drift: bool

    def open(self, arrays: Arrays | None) -> tuple[Clients | None, list[str]]:
        """The worker, and how this node differs; no worker if it needs the driver's arrays."""
        notes = differences(self.config, self.made_with, self.allow_drift)
        federation, more = self.federation.open(arrays, self.allow_drift)
        if federation is None:
            return None, notes + more
        planned = plan(self.config, federation.data.task, federation.clients, federation.unseen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the object store is not writable; nobody writes
            samples = ClientData(federation)
        return Clients(planned.worker(samples, simulated=True)), notes + more


def differences(config: Config, made_with: Mapping[str, Any], allowed: bool) -> list[str]:
    """How this node differs from the machine that says what it is `made_with`."""
    differs = manifest.drift(made_with, manifest.made_with(config))
    refuse_drift(differs, allowed)
    return differs


def refuse_drift(differs: Sequence[str], allowed: bool) -> None:
    """Refuses this node if it would compute something else."""
    if differs and not allowed:
        raise Error(
            f"its data, software or hardware are not those of the driver ({'; '.join(differs)}), so the results "
            "may differ; --allow-drift uses it anyway"
        )


def on_ray(planned: Plan, worker: Worker, federation: Federation, allow_drift: bool) -> tuple[Engine, str]:
    """The engine, not yet connected, and what a user of its address should know, or nothing."""
    config = planned.config
    there = anchored(config).model_copy(update=dict.fromkeys(OF_THE_DRIVER))
    ours, arrays = shipped(federation)
    opening = Opening(there, ours, manifest.made_with(there), allow_drift)
    actors = Actors(opening, arrays, config.address, config.workers)
    return Ray(actors, worker.samples.size, config.time_limit or LIMIT), actors.notice
