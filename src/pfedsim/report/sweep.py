"""A sweep as one table, one sentence and one picture, and its best trial as a configuration."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from pfedsim import durable, escape
from pfedsim.experiments.space import Range
from pfedsim.experiments.sweep import Sweep
from pfedsim.experiments.sweep_folder import BEST_FILE
from pfedsim.experiments.trials import DIVERGED, FINISHED, PRUNED, Trial, described
from pfedsim.report.document import Figure, Table, entries, html_table, markdown_table, ranked
from pfedsim.report.pictures import save
from pfedsim.report.screen import terminal
from pfedsim.report.tables import counted

ON_SCREEN = 20  # rows that are printed; the files have all


def best_first(sweep: Sweep) -> list[Trial]:
    """The trials by accuracy: finished ones, then pruned ones, then those that diverged."""
    order = (FINISHED, PRUNED, DIVERGED)
    return sorted(sweep.trials, key=lambda t: (order.index(t.outcome), -(t.validation or 0.0), t.number))


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One row per trial, best first. No row has a test score."""
    return [
        {
            "trial": t.number,
            **{name: t.settings.get(name) for name in sweep.over},
            "validation": None if t.validation is None else 100 * t.validation,
            "round": t.round,
            "outcome": t.outcome,
        }
        for t in best_first(sweep)
    ]


def table(sweep: Sweep, most: int | None = None) -> Table:
    """The table, or its first rows."""
    found = best_first(sweep)
    finished = [
        None if t.outcome != FINISHED or t.validation is None else 100 * t.validation for t in found
    ]
    scores = ranked(finished, [_percent(t.validation) for t in found])
    shown = [
        (
            *entries(t.number, *(t.settings.get(name) for name in sweep.over)),
            score,
            *entries("-" if t.round is None else t.round, t.outcome),
        )
        for t, score in zip(found, scores, strict=True)
    ][:most]
    notes = [f"trial {t.number} diverged: {t.why}" for t in found if t.outcome == DIVERGED][:3]
    head = ["trial", *sweep.over, "validation, %", "round", "outcome"]
    return Table("sweep", "Trials, best first", head, shown, notes=notes)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def caption(sweep: Sweep) -> str:
    """What was swept, and what the accuracies are of."""
    config, best = sweep.best.config, sweep.best
    assert best.record is not None
    if sweep.prune:
        when = f"; the worse half is pruned after {sweep.prune:.0%} of the rounds"
    else:
        when = ""
    return (
        f"{Path(config.data).name}, {counted(config.clients or 0, 'client')}, {counted(config.rounds or 0, 'round')}, "
        f"seed {config.seed}, {counted(len(sweep.trials), 'trial')} over {' and '.join(sweep.over)}: accuracy on the "
        f"validation parts ({config.validation:.0%} of each client's train part), all samples{when}"
    )


def verdict(sweep: Sweep) -> str:
    """The best trial in words, with its test accuracy, which chose nothing."""
    best = sweep.best
    assert best.record is not None
    counts = {what: sum(t.outcome == what for t in sweep.trials) for what in (PRUNED, DIVERGED)}
    others = ", ".join(f"{counted(n, 'trial')} {what}" for what, n in counts.items() if n)
    test = best.record.found["served"]["micro"]
    edges = [name for name in sweep.over if _at_edge(sweep, name)]
    beyond = f" It lies at the edge of {' and '.join(edges)}: values beyond may do better." if edges else ""
    return (
        f"Best: {described(best.settings)} with {_percent(best.validation)}% after round {best.round}"
        f"{f' ({others})' if others else ''}. On the test parts, by which nothing was chosen, it has "
        f"{_percent(test)}%.{beyond}"
    )


def _at_edge(sweep: Sweep, name: str) -> bool:
    """Whether the best trial has the lowest or highest of the numbers that were listed."""
    listed = sweep.over[name]
    if isinstance(listed, Range) or len(listed) < 3 or not all(type(v) in (int, float) for v in listed):
        return False
    return sweep.best.settings[name] in (min(listed), max(listed))


def picture(sweep: Sweep) -> Figure:
    from pfedsim.report.sweep_figure import draw

    return Figure("sweep", "Accuracy on the validation parts", lambda path, width: draw(sweep, path, width))


def best_toml(sweep: Sweep) -> str:
    """The best trial as a configuration that `pfedsim run` takes."""
    best = sweep.best
    assert best.record is not None
    head = (
        f"# the best of {counted(len(sweep.trials), 'trial')} by validation: {escape.visible(best.name)}\n"
    )
    return head + tomli_w.dumps(best.record.settings)


def table_csv(sweep: Sweep) -> str:
    file = io.StringIO()
    found = rows(sweep)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(found[0])
    writer.writerows([escape.cell(value) for value in row.values()] for row in found)
    return file.getvalue()


def write(sweep: Sweep, folder: Path) -> list[Path]:
    """Write table.md, table.csv, best.toml and figures/sweep.png."""
    durable.make_folder(folder)
    words = [escape.markdown(caption(sweep)), markdown_table(table(sweep)), escape.markdown(verdict(sweep))]
    contents = {
        "table.md": "\n\n".join(words) + "\n",
        "table.csv": table_csv(sweep),
        BEST_FILE: best_toml(sweep),
    }
    for name, content in contents.items():
        durable.write(folder / name, content.encode())
    return [*(folder / name for name in contents), *save([picture(sweep)], folder / "figures")]


def show(sweep: Sweep, console: Console, most: int | None = ON_SCREEN) -> None:
    """Print caption, table and verdict."""
    console.print(caption(sweep), highlight=False)
    shown = table(sweep, most)
    for part in terminal(shown, console.width):
        console.print(part)
    for note in shown.notes:
        console.print(note, highlight=False)
    if len(shown.rows) < len(sweep.trials):
        console.print(
            f"and {len(sweep.trials) - len(shown.rows)} more, which the files list", highlight=False
        )
    console.print(verdict(sweep), highlight=False)


def text(sweep: Sweep, width: int = 100) -> str:
    """Caption, table and verdict as plain text, for `print`."""
    shown = io.StringIO()
    show(sweep, Console(file=shown, width=width, markup=False, emoji=False, force_terminal=False), None)
    return shown.getvalue().rstrip()


def notebook(sweep: Sweep) -> str:
    """The table and the sentence as HTML, for notebooks."""
    return html_table(table(sweep)) + f"<p>{escape.html(verdict(sweep))}</p>"
