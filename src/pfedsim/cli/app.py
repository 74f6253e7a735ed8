"""The commands of `pfedsim`."""

from __future__ import annotations

import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pfedsim.cli import MARKED, data, sites, stoppable
from pfedsim.cli.compare import compare
from pfedsim.cli.folders import Fresh, Out, make_room
from pfedsim.cli.imports import import_
from pfedsim.cli.leaderboard import leaderboard
from pfedsim.cli.models import export, predict
from pfedsim.cli.options import (
    PLACE,
    Address,
    Drift,
    EngineName,
    Grouped,
    Json,
    Quiet,
    check_engine,
    with_settings,
)
from pfedsim.cli.progress import reading, say_code, say_data, screen, watching
from pfedsim.cli.show import doctor, print_runs, show
from pfedsim.cli.sweep import sweep
from pfedsim.errors import Error
from pfedsim.methods import OTHERS, TWELVE
from pfedsim.runs.config import Config
from pfedsim.runs.reader import Run, is_run_folder, load_config, slug
from pfedsim.track import check as check_tracker

app = typer.Typer(
    name="pfedsim",
    help="Personalised federated learning: a model for every client, better than it could train alone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(data.app, name="data")
app.add_typer(sites.app, name="sites")

Resume = Annotated[bool, typer.Option("--resume", help="continue a stopped run in that folder")]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    if version:
        from pfedsim import __version__

        print(f"pfedsim {__version__}")
        raise typer.Exit


@app.command(cls=Grouped)
@with_settings()
def run(
    config: Config,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend",
            metavar="RUN",
            help="continue a finished run up to --rounds in total, in a new folder",
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    fresh: Fresh = False,
    allow_drift: Drift = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one method on a federation and write the results to a folder."""
    if extend is not None:
        _extend(extend, config, out, resume, fresh, quiet, as_json, allow_drift)
        return
    place = out or _place(config)
    if out is None and not fresh and place.is_dir() and is_run_folder(place):  # as compare does
        resume = True
        if not (quiet or as_json):
            finished = (place / "summary.json").is_file()
            what = (
                "already holds this run" if finished else "holds this run, which was stopped: it continues"
            )
            screen().print(f"{place} {what}; --fresh starts over", highlight=False, soft_wrap=True)
    resume = make_room(place, resume, fresh)
    _execute(config, place, quiet, as_json, resume=resume, allow_drift=allow_drift)


def _place(config: Config) -> Path:
    """The default folder of a run."""
    from pfedsim.methods import label

    name = (
        f"{slug(config.data)}-{slug(label(config.method_made()))}-seed{config.seed}-{config.digest()[:6]}"
    )
    return Path("runs") / name


def _extend(
    finished: Path,
    asked: Config,
    out: Path | None,
    resume: bool,
    fresh: bool,
    quiet: bool,
    as_json: bool,
    drift: bool,
) -> None:
    """Continue a finished run. `asked` gives the total number of rounds, the workers and the folders."""
    from pfedsim.runs.extend import begin, extended, refuse_overlap

    if asked.rounds is None:
        raise Error("--extend needs --rounds, the total number of rounds")
    before = Run(finished)
    say_code(before.config, finished)
    where = {name: getattr(asked, name) for name in PLACE}
    config, notice = extended(before, asked.rounds, {**where, "state": asked.state}, drift)
    place = out or _place(config)
    refuse_overlap(before, place)
    if not _holds(place, config, fresh) and not make_room(place, resume, fresh):
        begin(before, config, place)
    if notice and not (quiet or as_json):
        screen().print(notice, highlight=False)
    _execute(None, place, quiet, as_json, resume=True, allow_drift=drift, **where)


def _holds(place: Path, config: Config, fresh: bool) -> bool:
    """Whether the folder already holds this very run, stopped or finished, and the user does not start over."""
    return (
        not fresh
        and place.is_dir()
        and is_run_folder(place)
        and load_config(place).digest() == config.digest()
    )


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run that was stopped")],
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="folder of the data sets, if it has moved"),
    ] = None,
    engine: EngineName = None,
    address: Address = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, metavar="N", help="worker processes (default: all cores)"),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", min=0.001, metavar="X", help="as in pfedsim run"),
    ] = None,
    track: Annotated[
        str | None,
        typer.Option("--track", metavar="TRACKER", help="as in pfedsim run; earlier rounds are logged too"),
    ] = None,
    allow_drift: Drift = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Resume a run that was stopped or killed. The result is byte-identical to an uninterrupted run."""
    say_code(load_config(folder), folder)  # which fails before the slow import of torch
    if track is not None:
        check_tracker(track)
    check_engine(engine, address)
    place = {"workers": workers, "time_limit": time_limit, "data_dir": data_dir, "track": track}
    place |= {"engine": engine, "address": address}
    _execute(None, folder, quiet, as_json, resume=True, allow_drift=allow_drift, **place)


def _execute(config: Config | None, place: Path, quiet: bool, as_json: bool, **how: Any) -> None:
    from pfedsim.runs.execute import execute
    from pfedsim.runs.setup import federate

    console, finished = screen(), (place / "summary.json").is_file()
    with stoppable(
        lambda: f"; continue with: pfedsim resume {place}" if (place / "config.toml").is_file() else ""
    ):
        federation = None
        if config is not None and not how.get("resume"):  # a resumed run has its own partition
            with reading(console, quiet or as_json) as tell:
                federation = federate(config, tell=tell)
            say_data(console, config.data, federation, quiet or as_json)
        with watching(console, quiet or as_json) as watch:
            result = execute(config, place, federation, watch, **how)
    if as_json:
        print(json.dumps({**result.summary, "folder": str(place)}))
    elif quiet:
        print(place)
    else:
        print_runs([result], console)
        console.print(
            f"written to {place}{'' if finished else _state_said(result)}; pictures: pfedsim show {place}",
            highlight=False,
            soft_wrap=True,
        )
    if result.incidents:
        raise typer.Exit(MARKED)


def _state_said(run: Run) -> str:
    """The size of the final state, if it was kept."""
    from pfedsim.report.tables import size

    if not run.has_state:
        return ""
    return f" (its final state takes {size(run.state_bytes)}; --no-state leaves it out)"


app.command(cls=Grouped)(compare)
app.command(cls=Grouped)(sweep)
app.command()(leaderboard)
app.command("import")(import_)
app.command()(show)
app.command()(export)
app.command()(predict)


@app.command()
def watch(run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run")]) -> None:
    """Follow a run in progress until it ends."""
    from pfedsim.cli.watch import follow

    follow(run, screen())


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="one method: its options, what it sends and keeps, pitfalls in other code"),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="all methods in full, as Markdown")] = False,
) -> None:
    """List the methods, or describe one in full."""
    console = screen()
    if markdown:
        from pfedsim.report.methods import page

        print(page(), end="")
    elif name is None:
        for title, group in (("the paper's twelve (--methods paper)", TWELVE), ("others", OTHERS)):
            table = Table("name", "method", "what it does", title=title, title_justify="left")
            for key, kind in group.items():
                table.add_row(key, kind.title, " ".join((kind.__doc__ or "").split()))
            console.print(table)
    else:
        from pfedsim.methods import parse

        kind = type(parse(name))
        from rich.markdown import Markdown

        from pfedsim.report.methods import describe

        console.print(Markdown(describe(kind)))


@app.command()
def model(
    name: Annotated[
        str,
        typer.Argument(help="lenet5, cnn4, mobilenetv2, resnet20, mlp, cnn1d, or your own file.py:Class"),
    ],
    shape: Annotated[
        str,
        typer.Option(
            "--shape", metavar="C,H,W", help="shape of a sample (default: that of a suitable data set)"
        ),
    ] = "",
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, metavar="N", help="number of classes")
    ] = None,
    head: Annotated[
        str, typer.Option("--head", help="name of the network's classifier attribute")
    ] = "classifier",
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, metavar="N", help="also print the native backend's work space"),
    ] = None,
) -> None:
    """Print a network's architecture: layers, output shapes and parameters."""
    from pfedsim import models

    models.check_name(name)
    try:
        sides = tuple(int(side) for side in shape.split(",")) if shape else None
    except ValueError:
        raise Error(f"--shape {shape!r}: give integers separated by commas, as in 3,32,32") from None
    if sides is not None and min(sides) < 1:
        raise Error(f"--shape {shape!r}: every number should be at least 1")
    from pfedsim.report.models import described, work_space

    table, total = described(name, sides, classes, head)
    console = screen()
    console.print(table)
    console.print(total, highlight=False)
    if batch is not None:
        console.print(work_space(name, sides, classes, head, batch), highlight=False)


@app.command()
def check(
    method: Annotated[str, typer.Argument(help="a method's name, or your own as file.py:Class")],
) -> None:
    """Run the conformance checks on a method; exit code 1 if one fails."""
    from pfedsim.methods import parse

    made = parse(method)
    import warnings

    from pfedsim.dev import conformance
    from pfedsim.errors import Notice

    console = screen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        results = conformance.check(made)
    for name in (result.name for result in results if not result.why):
        console.print(f"passed  {name}", highlight=False)
    failed = [result for result in results if result.why]
    causes: dict[str, list[conformance.Result]] = {}
    for result in failed:
        causes.setdefault(_cause(result.why), []).append(result)
    for same in causes.values():
        said = f"FAILED  {', '.join(result.name for result in same)}: {same[0].why}"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(results) - len(failed)} of {len(results)} checks passed", highlight=False)
    raise typer.Exit(1 if failed else 0)


def _cause(why: str) -> str:
    """The reason of a failed check, without the federation, client and round in which it occurred."""
    return re.sub(r"^[a-z ]+: (?:AssertionError: )?|client \d+ in round \d+", "", why)


app.command()(doctor)


@app.command()
def bench(
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=1, help="repetitions of each measurement, interleaved")
    ] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="rounds of the complete run")] = 20,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="write bench.json, bench.md and bench.png there"),
    ] = None,
) -> None:
    """Measure how fast this machine trains, scores and runs rounds."""
    from pfedsim.dev.bench import bench as measure
    from pfedsim.report.bench import write

    console = screen()
    report = measure(repetitions, rounds, lambda line: console.print(line, highlight=False, soft_wrap=True))
    if out is not None:
        for path in write(report, out):
            console.print(str(path), highlight=False, soft_wrap=True)


def _plugins() -> None:
    """Register the commands of other distributions, such as pfedsim-paper's `reproduce`."""
    for found in sorted(entry_points(group="pfedsim.commands"), key=lambda point: point.name):
        app.command(name=found.name)(found.load())


_plugins()
