"""Carries out one cell: a run through the ordinary machinery, boiled down to a few kilobytes, or one of the
measurements."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from typing import Any

import numpy as np

import pfedsim
from pfedsim.data.federation import Federation
from pfedsim.runs.execute import execute
from pfedsim.runs.manifest import stored
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate
from pfedsim_paper.cells import Cell, Record
from pfedsim_paper.packing import packed

DECIMALS = 5


def carry_out(cell: Cell) -> Record:
    """The finished cell."""
    clock, used = time.perf_counter(), _cpu()
    settings, found, made = _run(cell) if cell.kind == "run" else _measurement(cell)
    took = {
        "seconds": round(time.perf_counter() - clock, 1),
        "cpu_seconds": round(_cpu() - used, 1),
        "cores": os.cpu_count(),
    }
    return Record(cell, settings, found, {**made, **took})


def _run(cell: Cell) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config = cell.config.model_copy(
        update={"workers": 1}
    )  # one run per core; any number of workers has the same bits
    federation = varied(federate(config), dict(cell.extra))
    run = execute(config, federation=federation)
    counts = federation.label_counts()
    domain = federation.data.domain
    found = boiled_down(run, [int(n) for n in counts.sum(1)], [int(n) for n in (counts > 0).sum(1)])
    if domain is not None:
        found["clients"]["domain"] = [str(domain[s.train[0]]) for s in federation.partition.clients]
    return run.config.plain(), found, stored(run.path)["made_with"]


def varied(federation: Federation, extra: dict[str, Any]) -> Federation:
    """What a cell varies that is no setting: `pixels = "0..255"`, normalised by the constants for 0..1, as
    the author's code of the paper's time does."""
    if extra.get("pixels") != "0..255":
        return federation
    data = federation.data
    mean, std = (tuple(value / 255 for value in values) for values in (data.mean, data.std))
    return replace(federation, data=replace(data, mean=mean, std=std))


def _measurement(cell: Cell) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    from pfedsim_paper.measurements import MEASUREMENTS

    found, made = MEASUREMENTS[cell.kind](cell.config.model_copy(update={"workers": 1}), dict(cell.extra))
    return cell.settings(), found, {"versions": {"pfedsim": pfedsim.__version__}, **made}


def boiled_down(run: Run, sizes: list[int], labels: list[int]) -> dict[str, Any]:
    """What tables, curves and the page need of a run."""
    summary = run.summary
    records = run.metrics()
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
        "samples": sizes,
        "labels": labels,
        **{
            name: [_short(v) for v in run.client_values(model=name)]
            for name in ("served", "finetuned")
            if summary[name]
        },
    }
    pairs = run.similarity()
    if pairs is not None and pairs.ids:
        found["similarity"] = packed(pairs, summary["clients"])
    for name in (
        "bytes_down_per_client_round",
        "bytes_up_per_client_round",
        "config_digest",
        "models_digest",
    ):
        found[name] = summary[name]
    return found


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, DECIMALS) if np.isfinite(value) else None


def _cpu() -> float:
    """Seconds of processor time of this process and of those it has waited for."""
    return sum(
        r.ru_utime + r.ru_stime
        for r in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
