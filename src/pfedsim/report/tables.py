"""Runs as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from rich.text import Text

from pfedsim.experiments.compare import ALONE, COMMON, Comparison
from pfedsim.report.statistics import SEEDS_ENOUGH, paired_difference
from pfedsim.runs.reader import Run


def percent(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{100 * value:.2f}"


def mean_std(values: np.ndarray) -> str:
    """mean (std, ddof 1) in percent; one value alone has no spread."""
    if np.isnan(values).all():
        return "-"
    return percent(float(values.mean())) + (f" ({100 * values.std(ddof=1):.2f})" if len(values) > 1 else "")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@dataclass(frozen=True)
class Column:
    """A heading, a cell for each method, and the numbers that best and second best are told by."""

    group: str
    """the terminal shows a table for each group"""
    heading: str
    cells: list[str]
    ranks: list[float] | None = None


def columns(comparison: Comparison) -> list[Column]:
    """What a comparison shows, left to right."""
    methods = comparison.methods

    def accuracy(heading: str, *path: str, group: str = "accuracy") -> Column:
        values = [comparison.figures(m, *path) for m in methods]
        return Column(group, heading, [mean_std(v) for v in values], [float(v.mean()) for v in values])

    epochs = next(
        (
            r.summary["finetuned"]["epochs"]
            for by in comparison.runs.values()
            for r in by.values()
            if r.summary["finetuned"]
        ),
        0,
    )
    models = ["served"] + ["finetuned"] * (epochs > 0)
    worse = [float((comparison.client_gains(m) < 0).mean()) for m in methods]
    result = [
        accuracy("served:\nall samples", "served", "micro"),
        accuracy("served:\nclient mean", "served", "mean"),
    ]
    if epochs:
        result += [
            accuracy(f"+{epochs} epochs:\nall samples", "finetuned", "micro"),
            accuracy(f"+{epochs} epochs:\nclient mean", "finetuned", "mean"),
        ]
    down = [comparison.figures(m, "bytes_down_per_client_round").mean() for m in methods]
    up = [comparison.figures(m, "bytes_up_per_client_round").mean() for m in methods]
    return [
        *result,
        accuracy("served:\nworst tenth", "served", "worst_tenth", group="clients"),
        Column(
            "clients",
            "worse off\nthan alone",
            ["-" if m == ALONE else f"{100 * w:.0f}%" for m, w in zip(methods, worse, strict=True)],
        ),
        Column("clients", "received per\nclient, round", [size(d) for d in down]),
        Column("clients", "sent per\nclient, round", [size(u) for u in up]),
        *(
            _differences(comparison, reference, model)
            for model in models
            for reference in (ALONE, COMMON)
            if reference in methods
        ),
    ]


def _differences(comparison: Comparison, reference: str, model: str) -> Column:
    """Points above the reference method, the same kind of model on both sides, with the paired bootstrap's
    95% interval."""
    hits = {m: [run.hits(model) for run in by_seed.values()] for m, by_seed in comparison.runs.items()}
    cells = []
    for method in comparison.methods:
        if method == reference:
            cells.append("-")
            continue
        first, second = sorted(
            (method, reference)
        )  # the same pair in the other order is the exact negative
        d = paired_difference(hits[first], hits[second])
        mean, low, high = (d.mean, d.low, d.high) if first == method else (-d.mean, -d.high, -d.low)
        cells.append(f"{_points(mean, '+')} [{_points(low)}, {_points(high)}]")
    return Column(
        f"difference, {model}", f"{'served' if model == 'served' else 'tuned'}: minus\n{reference}", cells
    )


def _points(value: float, sign: str = "") -> str:
    """A difference in points, without a minus before zero."""
    return f"{round(100 * value, 1) + 0.0:{sign}.1f}"


def places(column: Column) -> list[int]:
    """0 for best, 1 for second, else 2; by the numbers as printed to two decimals."""
    if column.ranks is None:
        return [2] * len(column.cells)
    shown = [round(100 * r, 2) if not np.isnan(r) else -1.0 for r in column.ranks]
    order = sorted(set(shown), reverse=True)
    return [min(order.index(value), 2) if value >= 0 else 2 for value in shown]


def comparison_tables(comparison: Comparison) -> list[Table]:
    """For the terminal, each within 80 columns: best bold, second underlined."""
    shown = columns(comparison)
    groups = dict.fromkeys(column.group for column in shown)
    return [_table(comparison.methods, [c for c in shown if c.group == group]) for group in groups]


def _table(methods: Sequence[str], shown: Sequence[Column]) -> Table:
    table = Table()
    table.add_column("method", no_wrap=True)
    for column in shown:
        table.add_column(column.heading, justify="right", no_wrap=True)
    marks = [places(column) for column in shown]
    styles = ("bold", "underline", "")
    for row, method in enumerate(methods):
        table.add_row(
            method, *(Text(c.cells[row], style=styles[m[row]]) for c, m in zip(shown, marks, strict=True))
        )
    return table


def caption(comparison: Comparison) -> str:
    """What was compared."""
    first = next(iter(next(iter(comparison.runs.values())).values()))
    seeds = ", ".join(map(str, comparison.seeds))
    spread = "mean (std over seeds)" if len(comparison.seeds) > 1 else "one seed"
    summary = first.summary
    resampled = "seeds" if len(comparison.seeds) >= SEEDS_ENOUGH else "clients and test samples"
    return (
        f"{summary['data']}, {summary['clients']} clients, {summary['rounds']} rounds, seed {seeds}: "
        f"accuracy in %, {spread}; "
        f"differences in points with 95% intervals of a paired bootstrap over {resampled}"
    )


def verdict(comparison: Comparison) -> str:
    """One honest sentence: who serves best, by how much over training alone, and what local epochs leave of
    it."""
    served = {m: float(comparison.figures(m, "served", "micro").mean()) for m in comparison.methods}
    others = {m: v for m, v in served.items() if m != ALONE}
    if not others:
        return "Only Local-Only was run: nothing is compared."
    best = max(others, key=lambda m: others[m])
    gap = 100 * (served[best] - served[ALONE])
    worse = 100 * float((comparison.client_gains(best) < 0).mean())
    hits = {m: [run.hits() for run in comparison.runs[m].values()] for m in (best, ALONE)}
    sure = paired_difference(hits[best], hits[ALONE])
    text = (
        f"As served, {best} is best of the joined methods and {abs(gap):.1f} points {'above' if gap >= 0 else 'below'} "
        "training alone "
        f"(95% interval {_points(sure.low, '+')} to {_points(sure.high, '+')}), with {worse:.0f}% of the "
        "clients worse off than alone"
    )
    after = {m: float(comparison.figures(m, "finetuned", "micro").mean()) for m in served}
    if not np.isnan(list(after.values())).any():
        top = max(after, key=lambda m: after[m])
        lead = 100 * (after[top] - after[best])
        low = min(others, key=lambda m: others[m])
        before, left = 100 * (others[best] - others[low]), 100 * (after[best] - after[low])
        text += f"; after the same local epochs {top} is best"
        text += f" ({lead:.1f} points above {best})" if top != best else ""
        if low != best:
            text += f", and the {before:.1f} points between {best} and {low} become {left:.1f}"
    return text + "."


FIGURES = {
    "micro": "accuracy, all samples",
    "mean": "accuracy, client mean",
    "worst_tenth": "accuracy, worst tenth",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}


def run_table(runs: Sequence[Run]) -> Table:
    """One run: every figure, as served and after local epochs. Several: a line each."""
    table = Table()
    if len(runs) == 1:
        summary = runs[0].summary
        after = summary["finetuned"] or {}
        name = f"{summary['method']}, {summary['data']}, {summary['rounds']} rounds, seed {summary['seed']}"
        shown = {"served": summary["served"]} | ({f"+{after['epochs']} epochs": after} if after else {})
        unseen = summary.get("unseen", {})
        for model in ("served", "finetuned"):
            if model in unseen:
                epochs = unseen[model]["epochs"]
                shown[f"{unseen['clients']} unseen:\n{f'+{epochs} epochs' if epochs else 'served'}"] = (
                    unseen[model]
                )
        for heading in (f"{name}: in %", *shown):
            table.add_column(heading, justify="left" if heading.endswith("in %") else "right")
        for figure, words in FIGURES.items():
            table.add_row(words, *(percent(s.get(figure)) for s in shown.values()))
        return table
    for heading in (
        "run",
        "method",
        "served:\nall samples",
        "served:\nclient mean",
        "tuned:\nall samples",
        "tuned:\nclient mean",
    ):
        table.add_column(
            heading, justify="left" if heading in ("run", "method") else "right", overflow="fold"
        )
    for run in runs:
        served, after = run.summary["served"], run.summary["finetuned"] or {}
        cells = (served["micro"], served["mean"], after.get("micro"), after.get("mean"))
        table.add_row(run.path.name, run.summary["method"], *(percent(c) for c in cells))
    return table
