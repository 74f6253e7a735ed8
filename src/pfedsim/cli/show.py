"""`pfedsim show` and `pfedsim doctor`: show and check finished runs and comparisons."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pfedsim.cli.compare import Columns, print_comparison
from pfedsim.cli.options import listed
from pfedsim.cli.progress import screen
from pfedsim.errors import Error
from pfedsim.experiments.folders import runs_in
from pfedsim.experiments.sweep_folder import is_sweep
from pfedsim.report.columns import check_columns
from pfedsim.runs.reader import Run


def show(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of finished runs, or of a comparison")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="folder for the pictures (default: figures/ in the run's folder; for several runs, a new folder "
            "in runs/)",
        ),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="one self-contained page, report.html, instead of pictures")
    ] = False,
    columns: Columns = "",
) -> None:
    """Show a table of finished runs; draw curves, similarities and per-client accuracies."""
    console = screen()
    check_columns(listed(columns))
    for place in runs:
        if is_sweep(place) and any(place.iterdir()):
            raise Error(
                f"{place} is a sweep: table.md and figures/ show it, and best.toml is its best trial"
            )
    if len(runs) == 1 and runs_in(runs[0]):
        files = _comparison(runs[0], out, html, listed(columns), console)
    elif columns:
        raise Error("--columns selects columns of a comparison: give one folder written by pfedsim compare")
    else:
        files = _runs([path for place in runs for path in runs_in(place) or [place]], out, html, console)
    for file in files:
        console.print(str(file), highlight=False, soft_wrap=True)


def _comparison(
    folder: Path, out: Path | None, html: bool, columns: list[str], console: Console
) -> list[Path]:
    from pfedsim.experiments.compare import load
    from pfedsim.report.comparison import draw, write_page

    comparison = load(folder)
    print_comparison(comparison, console, columns)
    shown = [run for by_seed in comparison.runs.values() for run in by_seed.values()]
    say_marks(console, shown)
    for path in sorted(set(runs_in(folder)) - {run.path for run in shown}):
        console.print(
            f"{path} is left out: it, or another method with its seed, is not finished",
            highlight=False,
            soft_wrap=True,
        )
    if html:
        return [write_page(comparison, out or folder, columns)]
    return draw(comparison, out or folder / "figures")


def _runs(paths: list[Path], out: Path | None, html: bool, console: Console) -> list[Path]:
    from pfedsim.report import pictures, run_page
    from pfedsim.report.tables import names

    loaded = [Run(path) for path in paths]
    print_runs(loaded, console)
    if html:
        return [run_page.write(loaded, out or _place(paths))]
    place = out or (paths[0] / "figures" if len(paths) == 1 else _place(paths))
    return pictures.save(pictures.of_runs(names(loaded)), place)


def _place(paths: list[Path]) -> Path:
    """The folder for the report: that of the run, or a new one for several runs."""
    which = sha256("\n".join(str(path.resolve()) for path in paths).encode()).hexdigest()
    return paths[0] if len(paths) == 1 else Path("runs") / f"show-{which[:6]}"


def print_runs(runs: list[Run], console: Console) -> None:
    """Print all results of one run, or a row for each of several, and how they are marked."""
    from pfedsim.report.screen import terminal
    from pfedsim.report.tables import run_table

    table = run_table(runs)
    console.print(table.title, highlight=False)
    for part in terminal(table, console.width):
        console.print(part)
    say_marks(console, runs)


def say_marks(console: Console, runs: list[Run]) -> None:
    """Print which runs were resumed with other code, software or hardware, and which had incidents."""
    for run in runs:
        if run.incidents:
            said = f"{run.path} had incidents that its settings do not ask for: {run.incidents}; see events.jsonl"
            console.print(said, highlight=False, soft_wrap=True)
        if drift := run.summary.get("drift"):
            console.print(
                f"{run.path} was resumed with other code, software or hardware: {'; '.join(drift)}",
                highlight=False,
                soft_wrap=True,
            )


def doctor(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of runs, finished or not, or of comparisons"),
    ],
) -> None:
    """Check every file in a run's folder against its sha256; exit code 1 if something is wrong."""
    from pfedsim.runs.doctor import examine

    console, wrong = screen(), 0
    for run in [path for place in runs for path in runs_in(place) or [place]]:
        found = examine(run)
        for sentence in found.wrong:
            console.print(f"WRONG  {sentence}", highlight=False, markup=False, soft_wrap=True)
        verdict = (
            f"{len(found.wrong)} {'thing is' if len(found.wrong) == 1 else 'things are'} wrong"
            if found.wrong
            else "nothing is wrong"
        )
        console.print(
            f"{found.state or run}; {found.checked} files checked, {verdict}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        wrong += len(found.wrong)
    raise typer.Exit(1 if wrong else 0)
