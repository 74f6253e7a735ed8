"""A comparison as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from pfedsim.experiments.compare import ALONE, COMMON, Comparison
from pfedsim.report.latex import escaped, packages
from pfedsim.report.tables import Column, caption, columns, places


def markdown(comparison: Comparison) -> str:
    """Best bold, second underlined."""
    shown = columns(comparison)
    head = ["method", *(c.heading.replace("\n", " ") for c in shown)]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" + "---:|" * len(shown)]
    marks = (lambda cell: f"**{cell}**", lambda cell: f"<u>{cell}</u>", str)
    rows += [
        "| " + " | ".join([method, *cells]) + " |"
        for method, cells in _marked(comparison.methods, shown, marks)
    ]
    return f"{caption(comparison)}\n\n" + "\n".join(rows) + "\n"


def latex(comparison: Comparison) -> str:
    """A booktabs table as the paper prints it."""
    shown = columns(comparison)
    head = " & ".join(["Method", *(escaped(c.heading.replace("\n", " ")) for c in shown)])
    marks = (
        lambda cell: rf"\textbf{{{escaped(cell)}}}",
        lambda cell: rf"\underline{{{escaped(cell)}}}",
        escaped,
    )
    rows = [
        rf"{escaped(method)} & {' & '.join(cells)} \\"
        for method, cells in _marked(comparison.methods, shown, marks)
    ]
    body = "\n".join(rows)
    return packages(["booktabs"]) + (
        f"% {caption(comparison)}\n\\begin{{tabular}}{{l{'r' * len(shown)}}}\n\\toprule\n{head} "
        f"\\\\\n\\midrule\n{body}\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def long_csv(comparison: Comparison) -> str:
    """One line per method, seed and figure: numbers, not cells."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["method", "seed", "model", "figure", "value"])
    for method, by_seed in comparison.runs.items():
        for seed, run in by_seed.items():
            for model in ("served", "finetuned"):
                for figure, value in (run.summary[model] or {}).items():
                    table.writerow([method, seed, model, figure, value])
    return file.getvalue()


def client_csv(comparison: Comparison) -> str:
    """One line per method, seed and client: its accuracy, and its gain over the same client alone and with
    the common model."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    references = [m for m in (ALONE, COMMON) if m in comparison.runs]
    table.writerow(["method", "seed", "client", "accuracy", *(f"gain over {m}" for m in references)])
    for method, by_seed in comparison.runs.items():
        gains = [comparison.client_gains(method, reference) for reference in references]
        for k, (seed, run) in enumerate(by_seed.items()):
            for client, accuracy in enumerate(run.client_values()):
                table.writerow([method, seed, client, accuracy, *(g[k, client] for g in gains)])
    return file.getvalue()


def write_all(comparison: Comparison, folder: Path) -> list[Path]:
    """table.md, table.tex, table.csv, gains.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    writers = {"table.md": markdown, "table.tex": latex, "table.csv": long_csv, "gains.csv": client_csv}
    for name, write in writers.items():
        (folder / name).write_text(write(comparison))
    return [folder / name for name in writers]


def _marked(
    methods: Sequence[str], shown: Sequence[Column], marks: Sequence[Callable[[str], str]]
) -> list[tuple[str, list[str]]]:
    ranks = [places(column) for column in shown]
    return [
        (method, [marks[r[k]](c.cells[k]) for c, r in zip(shown, ranks, strict=True)])
        for k, method in enumerate(methods)
    ]
