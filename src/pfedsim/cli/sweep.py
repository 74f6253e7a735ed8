"""`pfedsim sweep`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pfedsim.cli import MARKED, stoppable
from pfedsim.cli.folders import Fresh, Out, make_room
from pfedsim.cli.options import SWEEP, Drift, Json, Quiet, with_settings
from pfedsim.cli.progress import reading, say_data, screen
from pfedsim.cli.side_by_side import watching_several
from pfedsim.errors import Error
from pfedsim.experiments.space import parse_over
from pfedsim.experiments.sweep_folder import is_sweep
from pfedsim.experiments.vary import OPTUNA, space_over
from pfedsim.runs.config import Config
from pfedsim.runs.reader import slug

if TYPE_CHECKING:
    from pfedsim.experiments.sweep import Sweep
    from pfedsim.runs.execution import Progress

Over = Annotated[
    list[str],
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="a setting to vary, by any name that --set takes: lr=0.003,0.01,0.03, or for --trials also a range, "
        "lr=0.001..0.1:log; may be given several times [every combination is run]",
        rich_help_panel=SWEEP,
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        min=1,
        metavar="N",
        help="run so many combinations in place of all [the first of many are those of few]",
        rich_help_panel=SWEEP,
    ),
]
Sampler = Annotated[
    str,
    typer.Option(
        "--sampler",
        metavar="NAME",
        help="random, or optuna (pip install 'pfedsim[optuna]'), which learns from earlier trials [default: random]",
        show_default=False,
        rich_help_panel=SWEEP,
    ),
]
Prune = Annotated[
    float | None,
    typer.Option(
        "--prune",
        min=0,
        max=1,
        metavar="X",
        help="share of the rounds after which the worse half of the trials ends; 0: all finish [default: 0.25, or 0 "
        "where no round is scored there]",
        rich_help_panel=SWEEP,
    ),
]


@with_settings("track", "state")
def sweep(
    config: Config,
    over: Over,
    trials: Trials = None,
    sampler: Sampler = "random",
    prune: Prune = None,
    out: Out = None,
    fresh: Fresh = False,
    allow_drift: Drift = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one method with several settings and choose the best on validation parts, never on test parts. The same
    command continues a stopped sweep and reuses finished trials; best.toml in its folder is the best one, to run."""
    space = parse_over(over)
    space_over(config, space, trials, sampler)  # before any data is read
    place = out or _place(config)
    if fresh:
        make_room(place, False, fresh)
    elif place.exists() and not is_sweep(place):
        raise Error(f"{place} is not a sweep's folder; give another --out")
    if sampler == OPTUNA:
        from pfedsim.experiments.suggest import check_optuna

        check_optuna()
    from pfedsim.experiments.sweep import sweep as run_all
    from pfedsim.runs.setup import federate

    console, silent = screen(), quiet or as_json
    with stoppable(lambda: "; run the same command to continue"):
        with reading(console, silent) as tell:
            federation = federate(config, tell=tell)
        say_data(console, config.data, federation, silent)
        with watching_several(console, silent) as watch:

            def heard(done: Progress) -> None:
                if (
                    console.is_terminal or done.note or done.round == done.rounds
                ):  # one line for each elsewhere
                    watch(done.method, done)

            how: dict[str, Any] = {"trials": trials, "sampler": sampler, "prune": prune}
            how |= {"watch": heard, "allow_drift": allow_drift}
            result = run_all(config, space, place, federation, **how)
    _report(result, place, console, quiet, as_json)


def _place(config: Config) -> Path:
    """The default folder: the same for all sweeps from these settings, so that they share trials."""
    return Path("runs") / f"sweep-{slug(Path(config.data).stem)}-{config.digest()[:6]}"


def _report(result: Sweep, place: Path, console: Console, quiet: bool, as_json: bool) -> None:
    """Write and print the result; exit code 3 if a run had incidents."""
    from pfedsim.report.sweep import show, write

    files = write(result, place)
    if as_json:
        best = {"settings": dict(result.best.settings), "validation": result.best.validation}
        print(json.dumps({"best": best, "trials": result.table(), "folder": str(place)}))
    elif quiet:
        print(place)
    else:
        console.print()
        show(result, console)
        console.print(f"run it again: pfedsim run {place / 'best.toml'}", highlight=False, soft_wrap=True)
        console.print("written: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)
    if any(t.record is not None and t.record.found.get("incidents") for t in result.trials):
        raise typer.Exit(MARKED)
