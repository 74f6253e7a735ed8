"""A comparison as tables, one sentence and pictures, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from pfedsim import durable, escape
from pfedsim.errors import Error
from pfedsim.experiments.compare import ALONE, COMMON, Comparison
from pfedsim.experiments.tune import LR, Tuning
from pfedsim.report import pictures
from pfedsim.report.columns import check_columns
from pfedsim.report.document import (
    Document,
    Entry,
    Figure,
    Section,
    Table,
    entries,
    html,
    html_table,
    markdown_table,
    ranked,
)
from pfedsim.report.latex import latex
from pfedsim.report.screen import terminal
from pfedsim.report.statistics import Difference
from pfedsim.report.tables import counted, mean_std, size

ACCURACY, CLIENTS, SETTINGS = "Accuracy, %", "Clients", "Settings, with the accuracy on validation parts, %"
SERVED, TUNED = "Difference as served, points", "Difference, fine-tuned, points"


@dataclass(frozen=True)
class Column:
    """A column: its name for `--columns`, its table, its heading, and an entry for each method."""

    name: str
    table: str
    heading: str
    entries: list[Entry]


def columns(comparison: Comparison) -> list[Column]:
    """All columns of a comparison, from left to right."""
    methods, epochs = comparison.methods, comparison.epochs

    def accuracy(name: str, heading: str, *path: str, table: str = ACCURACY) -> Column:
        values = [100 * comparison.figures(m, *path) for m in methods]
        means = [None if np.isnan(v).any() else float(v.mean()) for v in values]
        return Column(name, table, heading, ranked(means, [mean_std(v) for v in values]))

    found = [
        accuracy("served", "served: all samples", "served", "micro"),
        accuracy("served-mean", "served: client mean", "served", "mean"),
    ]
    if epochs:
        found += [
            accuracy("tuned", "fine-tuned: all samples", "finetuned", "micro"),
            accuracy("tuned-mean", "fine-tuned: client mean", "finetuned", "mean"),
        ]
    found += [
        accuracy("worst-tenth", "served: worst tenth", "served", "worst_tenth", table=CLIENTS),
        Column("worse-off", CLIENTS, "worse off than alone", [_worse_off(comparison, m) for m in methods]),
    ]
    for name, way in (("received", "down"), ("sent", "up")):
        means = [float(comparison.figures(m, f"bytes_{way}_per_client_round").mean()) for m in methods]
        found.append(
            Column(name, CLIENTS, f"{name} per client, round", [Entry(size(v), value=v) for v in means])
        )
    for model in ["served", *(["finetuned"] if epochs else [])]:
        for reference, name in ((ALONE, "minus-local"), (COMMON, "minus-fedavg")):
            if reference in methods:
                found.append(_difference(comparison, reference, model, name))
    return found


def _worse_off(comparison: Comparison, method: str) -> Entry:
    if method == ALONE:
        return Entry("-")
    share = 100 * float((comparison.client_gains(method) < 0).mean())
    return Entry(f"{share:.0f}%", value=share)


def _difference(comparison: Comparison, reference: str, model: str, name: str) -> Column:
    """The difference to the reference method in points, with its 95% interval."""
    shown = []
    for method in comparison.methods:
        if method == reference:
            shown.append(Entry("-"))
            continue
        d = comparison.difference(method, reference, model)
        shown.append(Entry(f"{points(d.mean, '+')} {interval(d)}", value=100 * d.mean))
    word, table = ("served", SERVED) if model == "served" else ("fine-tuned", TUNED)
    return Column(
        name if model == "served" else f"tuned-{name}", table, f"{word}: minus {reference}", shown
    )


def points(value: float, sign: str = "") -> str:
    """A difference in points; never a negative zero."""
    return f"{round(100 * value, 1) + 0.0:{sign}.1f}"


def interval(difference: Difference) -> str:
    return f"[{points(difference.low)}, {points(difference.high)}]"


def tables(comparison: Comparison, chosen: Sequence[str] = ()) -> list[Table]:
    """One table for each subject; with `chosen`, one table of only these columns."""
    shown = columns(comparison)
    if not chosen:
        made = [
            _table(comparison, title, [c for c in shown if c.table == title])
            for title in dict.fromkeys(c.table for c in shown)
        ]
        return [*made, *([_settings(comparison.tuning, comparison.methods)] if comparison.tuning else [])]
    check_columns(chosen)
    by_name = {column.name: column for column in shown}
    for name in chosen:
        if name not in by_name:
            raise Error(f"--columns {name}: these runs have no such scores or methods")
    return [_table(comparison, "Comparison", [by_name[name] for name in chosen])]


def _settings(tuning: Tuning, methods: Sequence[str]) -> Table:
    """Whether each method's settings were tuned, and which were chosen."""
    rows = []
    for method in methods:
        found = tuning.methods.get(method)
        if found is None:  # a run that was put into the folder later
            rows.append(entries(method, *("default", *"----")))
            continue
        scores = [
            f"{100 * v:.2f}" if v is not None else "-" for v in (found["validation"], found["as_given"])
        ]
        chosen = ", ".join(f"{_own(name)}={value}" for name, value in found["chosen"].items())
        what = "tuned" if chosen else "default"
        rows.append(entries(method, what, len(found["trials"]), chosen or "as given", *scores))
    head = ["method", "settings", "trials", "chosen", "validation", "default"]
    return Table("settings", SETTINGS, head, rows)


def _own(name: str) -> str:
    """A setting's name beside its method, whose name an option does without, unless it would pass for the run's."""
    option = name.rpartition(".")[2]
    return name if option == LR else option


def _table(comparison: Comparison, title: str, shown: Sequence[Column]) -> Table:
    names = entries(*comparison.methods)
    rows = list(zip(names, *(c.entries for c in shown), strict=True))
    return Table(title.partition(",")[0].lower(), title, ["method", *(c.heading for c in shown)], rows)


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per method, with the number behind every column."""
    shown = columns(comparison)
    return [
        {"method": method, **{c.name: c.entries[k].value for c in shown}}
        for k, method in enumerate(comparison.methods)
    ]


def caption(comparison: Comparison) -> str:
    """A caption that says what was compared."""
    summary = next(iter(next(iter(comparison.runs.values())).values())).summary
    seeds = f"seed{'s' * (len(comparison.seeds) > 1)} {', '.join(map(str, comparison.seeds))}"
    tuned = f"fine-tuned: after {counted(comparison.epochs, 'local epoch')}; " if comparison.epochs else ""
    spread = "mean (std over seeds)" if len(comparison.seeds) > 1 else "one seed"
    if comparison.tuning:
        tuned += f"settings of each method: the best of {comparison.tuning.trials} trials by validation; "
    covers = {d.over for m in comparison.methods if m != ALONE for d in [comparison.difference(m, ALONE)]}
    return (
        f"{summary['data']}, {counted(summary['clients'], 'client')}, {counted(summary['rounds'], 'round')}, {seeds}: "
        f"accuracy in %, {spread}; {tuned}"
        f"differences in points with 95% intervals over {' or '.join(sorted(covers)) or 'test samples'}"
    )


def verdict(comparison: Comparison) -> str:
    """The result in words: the best method as served, its lead over training alone, and what remains after
    local epochs."""
    served = {m: float(comparison.figures(m, "served", "micro").mean()) for m in comparison.methods}
    others = {m: v for m, v in served.items() if m != ALONE}
    if not others:
        return "Only Local-Only was run: nothing is compared." + _incidents(comparison)
    best = max(others, key=lambda m: others[m])
    gain = comparison.difference(best, ALONE)
    if np.isnan(gain.mean):
        return f"No client was scored both with {best} and alone: nothing is compared." + _incidents(
            comparison
        )
    worse = _worse_off(comparison, best).text
    text = (
        f"As served, {best} is the best federated method and {points(abs(gain.mean))} points "
        f"{'above' if gain.mean >= 0 else 'below'} training alone (95% interval {interval(gain)}), with {worse} of "
        "the clients worse off than alone."
    )
    after = {m: float(comparison.figures(m, "finetuned", "micro").mean()) for m in served}
    if not np.isnan(list(after.values())).any():
        text += _after_local_epochs(others, after, best)
    return text + _incidents(comparison)


def _incidents(comparison: Comparison) -> str:
    """Which runs had incidents, so that nobody reads their numbers as those of an undisturbed run."""
    marked = [
        f"{method}, seed {seed} ({run.incidents})"
        for method, by_seed in comparison.runs.items()
        for seed, run in by_seed.items()
        if run.incidents
    ]
    return f" Incidents, which events.jsonl names: {'; '.join(marked)}." if marked else ""


def _after_local_epochs(others: dict[str, float], after: dict[str, float], best: str) -> str:
    """What remains of the lead after the same local epochs for all methods."""
    top, low = max(after, key=lambda m: after[m]), min(others, key=lambda m: others[m])
    before, left = 100 * (others[best] - others[low]), 100 * (after[best] - after[low])
    text = ""
    if low != best:
        text = f" It leads {low} by {before:.1f} points as served, and "
        then = (
            f"{'leads' if left > 0 else 'trails'} it by {abs(left):.1f}" if round(left, 1) else "equals it"
        )
        text += f"{then} after the same local epochs."
    if top != low or low == best:
        above = f", {100 * (after[top] - after[best]):.1f} points above {best}" if top != best else ""
        text += f" After {'these' if text else 'the same local'} epochs {top} is best{above}."
    return text


def document(comparison: Comparison, chosen: Sequence[str] = ()) -> Document:
    """Tables, the sentence and pictures. Accuracies by client and similarities are those of the first seed."""
    words: list[str | Table] = [caption(comparison), *tables(comparison, chosen), verdict(comparison)]
    sections = [Section("Methods compared", words), Section("Pictures", _pictures(comparison))]
    return Document("comparison", f"Comparison: {caption(comparison).partition(':')[0]}", sections)


def _pictures(comparison: Comparison) -> list[Figure]:
    seed = comparison.seeds[0]
    by_seed = {name: list(by.values()) for name, by in comparison.runs.items()}
    accuracies = {name: values[0].tolist() for name, values in comparison.accuracies.items()}
    first = {f"{name}, seed {seed}": by[seed] for name, by in comparison.runs.items()}
    return [
        pictures.curves(by_seed),
        pictures.clients(
            accuracies, f"Each client's accuracy, as served, seed {seed}", _client_names(comparison)
        ),
        *pictures.similarities(first),
    ]


def _client_names(comparison: Comparison) -> list[str] | None:
    """The names of the clients, if the data name them and all runs have the same clients."""
    runs = [run for by_seed in comparison.runs.values() for run in by_seed.values()]
    if any("partition.json" not in run.files for run in runs):
        return None
    found = [run.client_names() for run in runs]
    return found[0] if all(names == found[0] for names in found) else None


def long_csv(comparison: Comparison) -> str:
    """One line per method, seed, model and score."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["method", "seed", "model", "figure", "value"])
    for method, by_seed in comparison.runs.items():
        for seed, run in by_seed.items():
            for model in ("served", "finetuned"):
                for figure, value in (run.summary[model] or {}).items():
                    table.writerow([escape.cell(method), seed, model, figure, value])
    return file.getvalue()


def client_csv(comparison: Comparison) -> str:
    """One line per method, seed and client: its accuracy, and its gain over the same client with Local-Only and
    FedAvg. Clients that have names are named."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    references = [m for m in (ALONE, COMMON) if m in comparison.runs]
    names = _client_names(comparison)
    named = [] if names is None else ["name"]
    table.writerow(
        ["method", "seed", "client", *named, "accuracy", *(f"gain over {m}" for m in references)]
    )
    for method, accuracies in comparison.accuracies.items():
        gains = [comparison.client_gains(method, reference) for reference in references]
        for k, seed in enumerate(comparison.seeds):
            for client, accuracy in enumerate(accuracies[k]):
                values = (float(accuracy), *(float(g[k, client]) for g in gains))
                who = [] if names is None else [escape.cell(names[client])]
                table.writerow([escape.cell(method), seed, client, *who, *values])
    return file.getvalue()


def write(comparison: Comparison, folder: Path, chosen: Sequence[str] = ()) -> list[Path]:
    """Write table.md, table.tex, table.csv, gains.csv, and the pictures as PNG in figures/."""
    durable.make_folder(folder)
    shown = tables(comparison, chosen)
    said = [escape.markdown(text(comparison)) for text in (caption, verdict)]
    words = [said[0], *map(markdown_table, shown), said[1]]
    contents = {
        "table.md": "\n\n".join(words) + "\n",
        "table.tex": latex(shown, caption(comparison)),
        "table.csv": long_csv(comparison),
        "gains.csv": client_csv(comparison),
    }
    for name, content in contents.items():
        durable.write(folder / name, content.encode())
    return [*(folder / name for name in contents), *draw(comparison, folder / "figures")]


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Save the pictures as PNG."""
    return pictures.save(_pictures(comparison), folder)


def write_page(comparison: Comparison, folder: Path, chosen: Sequence[str] = ()) -> Path:
    """Write the comparison as one self-contained page, report.html."""
    durable.make_folder(folder)
    path = folder / "report.html"
    durable.write(path, html(document(comparison, chosen)).encode())
    return path


def text(comparison: Comparison, width: int = 100) -> str:
    """The caption, the tables and the verdict as plain text, for `print`."""
    shown = io.StringIO()
    console = Console(file=shown, width=width, markup=False, emoji=False, force_terminal=False)
    console.print(caption(comparison), highlight=False)
    for table in tables(comparison):
        console.print(f"\n{table.title}", *terminal(table, width), sep="\n", highlight=False)
    console.print(verdict(comparison), highlight=False)
    return shown.getvalue().rstrip()


def notebook(comparison: Comparison) -> str:
    """The tables and the sentence as HTML, for notebooks."""
    return "".join(map(html_table, tables(comparison))) + f"<p>{escape.html(verdict(comparison))}</p>"
