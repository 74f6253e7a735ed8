"""Run a cell and reduce its run to what tables and curves need."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.data.federation import Federation
from pfedsim.durable import Busy
from pfedsim.errors import Diverged, Error
from pfedsim.experiments.cell import Cell, Record
from pfedsim.experiments.packing import packed
from pfedsim.runs import manifest, names
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import Watch
from pfedsim.runs.news import complete_records
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate

DECIMALS = 5


class Clock:
    """Measures wall-clock and processor time since it was created."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), _cpu()

    def costs(self, earlier: float = 0.0) -> dict[str, Any]:
        """The times for a record; `earlier`: seconds spent before the run was resumed."""
        return {
            "seconds": round(time.perf_counter() - self._began[0] + earlier, 1),
            "cpu_seconds": round(_cpu() - self._began[1] + earlier, 1),
            "cores": os.cpu_count(),
        }


def run_cell(
    cell: Cell,
    folder: Path,
    watch: Watch | None = None,
    federation: Federation | None = None,
    **place: Any,
) -> Record:
    """Run the cell in `folder`, or resume the stopped run there. The run uses one process, because cells run in
    parallel; the number of workers does not change the result. `place`: settings of this machine, such as device."""
    clock = Clock()
    config = cell.config.model_copy(update={"workers": 1, **place})
    federation = federation or federate(config)
    earlier = sum(line.get("seconds", 0) for line in complete_records(folder / names.TIMINGS))
    try:
        run = execute(config, folder, federation, watch, resume=folder.exists())
    except (Busy, Diverged):
        raise
    except Error:
        if not earlier:
            raise
        names.remove(folder)  # made with other software, or damaged: start over
        earlier = 0.0
        run = execute(config, folder, federation, watch)
    made = manifest.stored(folder)["made_with"]
    return Record(cell, run.config.plain(), distil(run, federation), {**made, **clock.costs(earlier)})


def distil(run: Run, federation: Federation) -> dict[str, Any]:
    """A run in a few kilobytes: scores, curve, each client's accuracy, similarities, bytes and digests."""
    summary, records, counts = run.summary, run.metrics(), federation.label_counts()
    losses = {m["round"]: m["train_loss"] for m in records if "train_loss" in m}
    served = [m for m in records if m.get("model") == "served" and m["split"] == "test"]
    found: dict[str, Any] = {
        name: {k: _short(v) for k, v in summary[name].items()} if summary[name] else None
        for name in ("served", "finetuned")
    }
    found["curve"] = {
        "round": [m["round"] for m in served],
        "micro": [_short(m["micro"]) for m in served],
        "mean": [_short(m["mean"]) for m in served],
        "train_loss": [_short(losses.get(m["round"])) for m in served],
    }
    found["clients"] = {
        "samples": [int(n) for n in counts.sum(1)],
        "labels": [int(n) for n in (counts > 0).sum(1)],
        **{
            name: [_short(v) for v in run.client_values(model=name)]
            for name in ("served", "finetuned")
            if summary[name]
        },
    }
    if run.config.validation:
        found["validation"] = validation_curve(records)
    if "chosen" in summary:
        found["chosen"] = summary["chosen"]
    if (domain := federation.data.domain) is not None:
        found["clients"]["domain"] = [str(domain[s.train[0]]) for s in federation.partition.clients]
    pairs = run.similarity()
    if pairs is not None and pairs.ids:
        found["similarity"] = packed(pairs, summary["clients"])
    if "incidents" in summary:
        found["incidents"] = summary["incidents"]
    digests = ("config_digest", "models_digest")
    for name in ("bytes_down_per_client_round", "bytes_up_per_client_round", *digests):
        found[name] = summary[name]
    return found


def validation_curve(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The accuracies of the served models on the validation parts, by scored round, from the records of
    metrics.jsonl."""
    scored = {m["round"]: m for m in records if m.get("model") == "served" and m["split"] == "validation"}
    values = {k: [_known(m[k]) for m in scored.values()] for k in ("micro", "mean")}
    return {"round": list(scored), **values}


def _known(value: float | None) -> float | None:
    """The number, not rounded, because it decides; None for NaN."""
    return value if value is not None and np.isfinite(value) else None


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, DECIMALS) if np.isfinite(value) else None


def _cpu() -> float:
    """Processor seconds of this process and of the children it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(r.ru_utime + r.ru_stime for r in used)
