"""Small sweeps: a table of numbers, a network of a few hundred entries, and each trial run alone as a reference."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import small

from pfedsim.data.federation import Federation
from pfedsim.experiments.sweep import Sweep, sweep
from pfedsim.runs.config import assign, check
from pfedsim.runs.execute import execute
from pfedsim.runs.reader import Run

FEDERATION = small.table((30, 20, 40, 25), test=12)
WORDS: dict[str, Any] = {
    "method": "fedavg",
    "model": "small:Net",
    "rounds": 4,
    "join": 1.0,
    "epochs": 1,
    "batch": 8,
    "lr": 0.05,
    "backend": "torch",
    "workers": 1,
    "validation": 0.4,
    "score": {"every": 1, "finetune": 0},
}
OVER = {"lr": [0.003, 0.05, 0.3], "momentum": [0.0, 0.9]}


def swept(
    out: Path | None = None,
    over: Any = OVER,
    federation: Federation = FEDERATION,
    how: dict[str, Any] | None = None,
    **words: Any,
) -> Sweep:
    return sweep(check({**WORDS, **words}), over, out, federation, **(how or {}))


def alone(settings: Mapping[str, Any], federation: Federation = FEDERATION, **words: Any) -> Run:
    """One trial by itself."""
    values = deepcopy({**WORDS, **words})
    for name, value in settings.items():
        assign(values, name, value)
    return execute(check(values), None, federation)


def validation(run: Run, last: int | None = None) -> float:
    """The validation accuracy after this round, or of the reported models, as the run's files have it."""
    return float(run.scored("validation")[last or run.round]["micro"])
