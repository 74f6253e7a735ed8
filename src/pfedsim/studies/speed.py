"""What the finished runs took, and what they would take with a plain PyTorch loop: speed is part of the story."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pfedsim.studies.cells import Record

SHAPE = "3x32x32, 10 classes, batch 32"  # of CIFAR-10, in bench.json


def story(table: Sequence[Record], benchmark: Path) -> list[str]:
    """The hours of the CIFAR-10 table's runs beside those of their training alone at the rate of a plain loop, where `pfedsim bench`
    measured it."""
    if not table:
        return []
    used, clock = (sum(r.made[kind] for r in table) / 3600 for kind in ("cpu_seconds", "seconds"))
    trained, cores = sum(samples_trained(r) for r in table), max(r.made["cores"] for r in table)
    text = (
        f"The {len(table)} runs of the CIFAR-10 table (Table 3) took {used:.1f} hours of one core, scoring included: {clock / cores:.1f} "
        f"hours by the clock with one run on each of {cores} cores and other work beside them. They trained on "
        f"{trained / 1e6:,.0f} million samples."
    )
    if not benchmark.is_file():
        return [text]
    rates = {way: figures["cpu_median"] for way, figures in json.loads(benchmark.read_text())["training"][SHAPE].items()}
    plain, native = rates["plain PyTorch loop"], rates["native backend"]
    return [
        f"{text} On one core of this kind of machine a plain PyTorch loop trains {plain:,.0f} samples a second, the native backend "
        f"{native:,.0f} (`pfedsim bench`, by processor time, median): with the plain loop the training alone would have taken "
        f"{trained / plain / 3600:.1f} hours of one core, {trained / plain / 3600 / cores:.1f} by the clock."
    ]


def samples_trained(record: Record) -> float:
    """Rounds x epochs x share of clients x train samples, and once the epochs of the second score."""
    words = record.cell.words
    train = sum(n // 2 for n in record.found["clients"]["samples"])
    return float((words["rounds"] * words["epochs"] * words["join"] + (words["score"]["finetune"] or 0)) * train)
