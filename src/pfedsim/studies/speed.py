"""What the finished runs took, and what they would take with a plain PyTorch loop: speed is part of the story."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pfedsim.studies.cells import Record

SHAPE = "3x32x32, 10 classes, batch 32"  # of CIFAR-10, in bench.json


def story(records: Sequence[Record], benchmark: Path) -> list[str]:
    """The CIFAR-10 runs' hours beside those of their training alone at the rate of a plain loop, where `pfedsim bench` measured it."""
    some = [r for r in records if r.cell.kind == "run" and r.cell.words["data"] == "cifar10"]
    if not some:
        return []
    hours, trained = sum(r.made["cpu_seconds"] for r in some) / 3600, sum(samples_trained(r) for r in some)
    cores = max(r.made["cores"] for r in some)
    text = (
        f"The {len(some)} CIFAR-10 runs took {hours:.1f} hours of one core, {hours / cores:.1f} of all {cores}, scoring included; "
        f"they trained on {trained / 1e6:,.0f} million samples."
    )
    if not benchmark.is_file():
        return [text]
    rates = {way: figures["cpu_median"] for way, figures in json.loads(benchmark.read_text())["training"][SHAPE].items()}
    plain, native = rates["plain PyTorch loop"], rates["native backend"]
    return [
        f"{text} On one core of this machine a plain PyTorch loop trains {plain:,.0f} samples a second, the native backend {native:,.0f} "
        f"(`pfedsim bench`, by processor time, median): with the plain loop the training alone would have taken "
        f"{trained / plain / 3600:.1f} hours of one core."
    ]


def samples_trained(record: Record) -> float:
    """Rounds x epochs x share of clients x train samples, and once the epochs of the second score."""
    words = record.cell.words
    train = sum(n // 2 for n in record.found["clients"]["samples"])
    return float((words["rounds"] * words["epochs"] * words["join"] + (words["score"]["finetune"] or 0)) * train)
