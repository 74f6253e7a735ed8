"""`pfedsim compare`."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pfedsim.cli import MARKED, stoppable
from pfedsim.cli.folders import Fresh, Out, make_room
from pfedsim.cli.options import Drift, Json, Quiet, listed, numbers, specs, with_settings
from pfedsim.cli.progress import reading, say_data, screen
from pfedsim.cli.side_by_side import watching_several
from pfedsim.errors import Error
from pfedsim.experiments.folders import is_comparison
from pfedsim.methods import parse
from pfedsim.report.columns import COLUMNS, check_columns
from pfedsim.runs.config import Config
from pfedsim.runs.reader import slug

if TYPE_CHECKING:
    from pfedsim.experiments.compare import Comparison
    from pfedsim.runs.execution import Progress

Columns = Annotated[
    str,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help=f"print one table with only these columns, separated by commas: {', '.join(COLUMNS)}",
    ),
]


Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        metavar="NAMES",
        help="names separated by commas; paper (its twelve) and all stand for groups",
        rich_help_panel="Method and model",
    ),
]
Seeds = Annotated[
    str,
    typer.Option("--seeds", metavar="N,...", help="seeds: 42,43 or 42-44", rich_help_panel="Training"),
]
Tune = Annotated[
    int,
    typer.Option(
        "--tune",
        min=0,
        metavar="N",
        help="first choose every method's settings by N trials each, on validation parts: the settings as they are "
        "and others, spread over its learning rate and the options that it declares [default: 0, none]",
        show_default=False,
        rich_help_panel="Method and model",
    ),
]
Rerun = Annotated[
    str, typer.Option("--rerun", metavar="METHODS", help="delete the runs of these methods first")
]


@with_settings("method", "seed")
def compare(
    config: Config,
    methods: Methods = "local,fedavg,pfedsim",
    seeds: Seeds = "42",
    tune: Tune = 0,
    columns: Columns = "",
    rerun: Rerun = "",
    out: Out = None,
    fresh: Fresh = False,
    allow_drift: Drift = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run several methods on the same federation and compare them. Local-Only is always included."""
    named, asked_seeds = specs(methods), numbers(seeds)
    how = f" {tune} trials" * bool(tune)
    asked = sha256(f"{config.digest()} {named} {asked_seeds}{how}".encode()).hexdigest()
    place = out or Path("runs") / f"compare-{slug(config.data)}-{asked[:6]}"
    check_columns(listed(columns))
    if fresh:
        make_room(place, False, fresh)
    elif place.exists() and not is_comparison(place):
        raise Error(f"{place} is not a comparison's folder; give another --out")
    for spec in named:
        parse(spec, config.options)
    from pfedsim.experiments.compare import compare as run_all
    from pfedsim.runs.setup import federate

    console, silent = screen(), quiet or as_json
    with stoppable(lambda: "; run the same command to continue"):
        with reading(console, silent) as tell:
            federation = federate(config, tell=tell)
        say_data(console, config.data, federation, silent)
        with watching_several(console, silent) as watch:

            def heard(done: Progress) -> None:
                trial = done.micro is None and done.round != done.rounds  # or a run before its first score
                if console.is_terminal or done.note or not trial:
                    watch(done.method, done)

            result = run_all(
                config,
                named,
                asked_seeds,
                place,
                heard,
                federation,
                listed(rerun),
                allow_drift,
                tune,
            )
    _report(result, place, listed(columns), quiet, as_json)


def _report(result: Comparison, place: Path, columns: list[str], quiet: bool, as_json: bool) -> None:
    """Write and print the result; exit code 3 if a run had incidents."""
    from pfedsim.report.comparison import write

    console, files = screen(), write(result, place, columns)
    if as_json:
        print(json.dumps({m: {s: r.summary for s, r in by.items()} for m, by in result.runs.items()}))
    elif quiet:
        print(place)
    else:
        console.print()
        print_comparison(result, console, columns)
        console.print("tables and pictures: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)
    if any(run.incidents for by_seed in result.runs.values() for run in by_seed.values()):
        raise typer.Exit(MARKED)


def print_comparison(comparison: Comparison, console: Console, columns: list[str]) -> None:
    """Print the caption, the tables and the verdict."""
    from pfedsim.report.comparison import caption, tables, verdict
    from pfedsim.report.screen import terminal

    console.print(caption(comparison), highlight=False)
    for table in tables(comparison, columns):
        console.print(f"\n{table.title}", highlight=False)
        for part in terminal(table, console.width):
            console.print(part)
    console.print(verdict(comparison), highlight=False)
