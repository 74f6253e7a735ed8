"""The measurements that are not a run, by the kind of their cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pfedsim.runs import Config
from pfedsim_paper import cka, datasets, likeness, overhead, privacy, workflow

Measured = tuple[dict[str, Any], dict[str, Any]]  # what was found, and with what
MEASUREMENTS: dict[str, Callable[[Config, dict[str, Any]], Measured]] = {
    "cka": cka.measure,
    "counts": datasets.measure,
    "likeness": likeness.measure,
    "overhead": overhead.measure,
    "privacy": privacy.measure,
    "workflow": workflow.measure,
}
