"""Experiments: cells identified by their settings, run in parallel and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.experiments.cell import Cell as Cell
    from pfedsim.experiments.cell import Record as Record
    from pfedsim.experiments.cell import base_name as base_name
    from pfedsim.experiments.cluster import run_on_cluster as run_on_cluster
    from pfedsim.experiments.compare import Comparison as Comparison
    from pfedsim.experiments.distil import Clock as Clock
    from pfedsim.experiments.distil import run_cell as run_cell
    from pfedsim.experiments.packing import packed as packed
    from pfedsim.experiments.packing import unpacked as unpacked
    from pfedsim.experiments.runner import Plan as Plan
    from pfedsim.experiments.runner import missing_data as missing_data
    from pfedsim.experiments.runner import plan as plan
    from pfedsim.experiments.runner import run as run
    from pfedsim.experiments.store import Store as Store
    from pfedsim.experiments.store import read as read
    from pfedsim.experiments.sweep import Sweep as Sweep
    from pfedsim.experiments.trials import Trial as Trial
    from pfedsim.experiments.tune import Tuned as Tuned
    from pfedsim.experiments.tune import tuned as tuned
    from pfedsim.experiments.tune import tuning_seed as tuning_seed

__all__, __getattr__, __dir__ = public(
    __name__,
    {
        "pfedsim.experiments.cell": "Cell Record base_name",
        "pfedsim.experiments.cluster": "run_on_cluster",
        "pfedsim.experiments.compare": "Comparison",
        "pfedsim.experiments.distil": "Clock run_cell",
        "pfedsim.experiments.packing": "packed unpacked",
        "pfedsim.experiments.runner": "Plan missing_data plan run",
        "pfedsim.experiments.store": "Store read",
        "pfedsim.experiments.sweep": "Sweep",
        "pfedsim.experiments.trials": "Trial",
        "pfedsim.experiments.tune": "Tuned tuned tuning_seed",
    },
)
