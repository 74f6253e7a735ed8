"""What the finished runs took, and what they would take with a plain PyTorch loop: speed is part of the
story."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pfedsim.experiments import Record
from pfedsim_paper.grid import tested

SHAPE = "3x32x32, 10 classes, batch 32"  # of CIFAR-10, in bench.json


def story(table: Sequence[Record], benchmark: Path) -> list[str]:
    """The hours of the CIFAR-10 table's runs beside those of their training alone at the rate of a plain
    loop, where `pfedsim bench` measured it. By processor time, and by the clock, which ran while other work
    did."""
    if not table:
        return []
    used, trained = sum(r.made["cpu_seconds"] for r in table) / 3600, sum(samples_trained(r) for r in table)
    cores = max(r.made["cores"] for r in table)
    clock = sum(r.made["seconds"] for r in table) / cores / 3600
    text = (
        f"The {len(table)} runs of the CIFAR-10 table (Table 3) took {used:.1f} hours of processor time, "
        "scoring included. Their wall-clock durations "
        f"add up to {clock * cores:.1f} hours next to other work, {clock:.1f} "
        f"on each of {cores} cores "
        f"({used / cores:.1f} if those are free). They trained on {trained / 1e6:,.0f} million samples."
    )
    if not benchmark.is_file():
        return [text]
    report = json.loads(benchmark.read_text(encoding="utf-8"))
    rates = {way: figures["cpu_median"] for way, figures in report["training"][SHAPE].items()}
    plain, native = rates["plain PyTorch loop"], rates["native backend"]
    hours = trained / plain / 3600
    return [
        f"{text} On one core a plain PyTorch loop trains {plain:,.0f} samples a second, the native "
        f"backend {native:,.0f}, "
        f"{native / plain:.1f} times as many (`pfedsim bench`, by processor time, median, kernels "
        f"{report['machine']['kernels']}): with "
        f"the plain loop, training alone would have taken {hours:.1f} hours of processor time, {hours / cores:.1f} "
        "of wall-clock time on "
        f"{cores} free cores."
    ]


def samples_trained(record: Record) -> float:
    """Rounds x epochs x share of clients x train samples that are not held out, and once the epochs of the
    second score."""
    words, held_out = record.cell.words, record.cell.config.method_made().validation
    train = (sum(record.found["clients"]["samples"]) - int(tested(record).sum())) * (1 - held_out)
    return float(
        (words["rounds"] * words["epochs"] * words["join"] + (words["score"]["finetune"] or 0)) * train
    )
