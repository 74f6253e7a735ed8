"""Format numbers, and show finished runs as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from pfedsim.report.document import Table, entries
from pfedsim.runs.manifest import flat
from pfedsim.runs.reader import Run


def percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def mean_std(values: Iterable[float], sign: str = "") -> str:
    """Mean (std, ddof 1) to two decimals. A single value has no std; no value, or NaN, gives a dash."""
    found = [float(v) for v in values]
    if not found or any(math.isnan(v) for v in found):
        return "-"
    spread = f" ({stdev(found):.2f})" if len(found) > 1 else ""
    return f"{round(mean(found), 2) + 0.0:{sign}.2f}{spread}"


def size(count: float) -> str:
    """A number of bytes in readable units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


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
    """All scores of one run, as served and after local epochs, or one row for each of several runs."""
    return _figures(runs[0]) if len(runs) == 1 else _side_by_side(runs)


def _figures(run: Run) -> Table:
    summary = run.summary
    after, unseen = summary["finetuned"] or {}, summary.get("unseen", {})
    shown = {"served": summary["served"]} | ({_tuned(after): after} if after else {})
    for model in ("served", "finetuned"):
        if model in unseen:
            words = _tuned(unseen[model]) if unseen[model]["epochs"] else "served"
            shown[f"{unseen['clients']} unseen: {words}"] = unseen[model]
    rounds = counted(summary["rounds"], "round")
    if run.round != summary["rounds"]:
        rounds += f" (round {run.round}, chosen by validation)"
    title = f"{summary['method']}, {summary['data']}, {rounds}, seed {summary['seed']}: in %"
    if run.incidents:
        title += f"; incidents: {run.incidents}"
    rows = [
        entries(words, *(percent(scores.get(figure)) for scores in shown.values()))
        for figure, words in FIGURES.items()
    ]
    return Table("run", title, ["", *shown], rows)


def _tuned(scores: Mapping[str, Any]) -> str:
    return f"fine-tuned, {counted(scores['epochs'], 'epoch')}"


def _side_by_side(runs: Sequence[Run]) -> Table:
    differ = differences(runs)
    head = ["run", "method", *(["settings that differ"] if any(differ) else [])]
    scores = [
        f"{model}: {over}" for model in ("served", "fine-tuned") for over in ("all samples", "client mean")
    ]
    last = ["incidents"] if any(run.incidents for run in runs) else []
    rows = []
    for run, folder, what in zip(runs, _folders(runs), differ, strict=True):
        served, after = run.summary["served"], run.summary["finetuned"] or {}
        values = (served["micro"], served["mean"], after.get("micro"), after.get("mean"))
        first = [folder, run.summary["method"], *([what] if any(differ) else [])]
        rows.append(entries(*first, *map(percent, values), *([run.incidents or "-"] if last else [])))
    return Table("runs", "Runs, in %", [*head, *scores, *last], rows, names=len(head))


def counted(count: int, noun: str) -> str:
    """'1 round', '2 rounds'."""
    return f"{count} {noun}{'s' * (count != 1)}"


def differences(runs: Sequence[Run]) -> list[str]:
    """For each run, the settings in which it differs from the others, such as `lr=0.1`, except the method and its
    options."""
    settings = [
        {
            name: value
            for name, value in flat(run.config.plain())
            if name != "method" and name.partition(".")[0] not in ("digests", *run.config.options)
        }
        for run in runs
    ]
    names = dict.fromkeys(name for one in settings for name in one)
    vary = [name for name in names if len({str(one.get(name)) for one in settings}) > 1]
    return [", ".join(f"{name}={one[name]}" for name in vary if name in one) for one in settings]


def names(runs: Sequence[Run]) -> dict[str, Run]:
    """Give each run a unique name: its method, if needed with the settings in which it differs, or its folder."""
    methods = [run.summary["method"] for run in runs]
    if len(set(methods)) == len(runs):
        return dict(zip(methods, runs, strict=True))
    labels = [f"{m}, {d}" if d else m for m, d in zip(methods, differences(runs), strict=True)]
    if len(set(labels)) < len(runs):
        labels = [f"{m} ({folder})" for m, folder in zip(methods, _folders(runs), strict=True)]
    return dict(zip(labels, runs, strict=True))


def _folders(runs: Sequence[Run]) -> list[str]:
    """The name of each run's folder, or its full path if two have the same name."""
    names = [run.path.name for run in runs]
    return names if len(set(names)) == len(runs) else [str(run.path) for run in runs]
