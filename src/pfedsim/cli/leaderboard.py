"""`pfedsim leaderboard`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pfedsim.cli import MARKED, stoppable
from pfedsim.cli.options import Address, Drift, EngineName, check_engine, listed, numbers
from pfedsim.cli.progress import duration, screen
from pfedsim.cli.side_by_side import watching_several
from pfedsim.errors import Error, nearest
from pfedsim.experiments import boards
from pfedsim.runs.reader import slug

if TYPE_CHECKING:
    from pfedsim.experiments.board import Place
    from pfedsim.experiments.board_run import Where
    from pfedsim.experiments.leaderboard import Leaderboard, Wanted

RESULTS = Path("leaderboard")
KINDS = "leaderboard.html, .md, .csv, .json and figures/"


def leaderboard(
    board: Annotated[
        str, typer.Argument(metavar="BOARD", help=f"{', '.join(boards.NAMES)}, or your own .toml file")
    ] = "quick",
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="METHOD",
            help="a method of your own, as file.py:Class, or any other; runs it alone, tuned like the others",
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", metavar="NAMES", help="run only these methods, separated by commas")
    ] = "",
    sets: Annotated[
        str, typer.Option("--sets", metavar="NAMES", help="run only these data sets of the board")
    ] = "",
    seeds: Annotated[
        str,
        typer.Option("--seeds", metavar="N,...", help="run only these seeds of the board: 42,43 or 42-44"),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="list what is finished and how long the rest takes; run nothing"),
    ] = False,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="run nothing; write the page from what is finished")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, metavar="N", help="cells side by side (default: one per core)"),
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="where finished cells are kept and looked for")
    ] = RESULTS,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="where the page goes (default: runs/leaderboard-BOARD)"),
    ] = None,
    engine: EngineName = None,
    address: Address = None,
    allow_drift: Drift = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the place of the page")] = False,
) -> None:
    """Compare methods on several data sets, tuned with equal budgets, on one page. Finished cells are kept and count
    as done; a stopped command continues where it was."""
    check_engine(engine, address)
    if dry_run and only_report:
        raise Error("--dry-run lists what would be run and --only-report runs nothing: give one of them")
    from pfedsim.experiments.board import load
    from pfedsim.experiments.leaderboard import Leaderboard
    from pfedsim.experiments.store import Store

    table = Leaderboard(load(board), Store(results), tuple(add or ()))
    wanted = _wanted(table, listed(methods), listed(sets), numbers(seeds) if seeds else [])
    console = screen()
    console.quiet = quiet
    if engine != "ray":
        jobs = 1 if engine == "serial" else jobs or len(os.sched_getaffinity(0))
    lines = _listing(table, wanted) if dry_run else []
    for line in [*lines, *_damaged(table), _summary(table, wanted, jobs)]:
        console.print(line, highlight=False, soft_wrap=True)
    if dry_run:
        return
    place = out or Path("runs") / f"leaderboard-{slug(Path(board).stem)}"
    _make(results, "--results")
    _make(place, "--out")
    failed: dict[str, str] = {}
    if not only_report:
        from pfedsim.experiments.board_run import Where

        where = Where(jobs, engine, address, allow_drift)
        with stoppable(lambda: "; finished cells are kept, and the same command continues the others"):
            failed = _run(table, wanted, where, console)
    _report(table, place, console)
    for why in dict.fromkeys(failed.values()):
        names = [name for name, reason in failed.items() if reason == why]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(f"not run: {names[0]}{more}: {why}", highlight=False, soft_wrap=True)
    if failed or table.store.damaged:  # a damaged cell that was run again is whole
        raise typer.Exit(1)
    several = (table.contender(at, method) for at, method in wanted.of(table))
    if any(record.found.get("incidents") for one in several for record in one.runs.values()):
        raise typer.Exit(MARKED)


def _wanted(table: Leaderboard, methods: list[str], sets: list[str], seeds: list[int]) -> Wanted:
    """Which part of the board is run: with --add alone, only the added methods."""
    from pfedsim.experiments.board import expanded
    from pfedsim.experiments.leaderboard import Wanted

    board = table.board
    for name in sets:
        board.place(name)
    named = expanded(tuple(methods))
    for name in named:
        if name not in table.every_method():
            hint = nearest(name, table.every_method())
            raise Error(
                f"--methods {name}: the board {board.name} does not have it; {hint}; --add adds a method"
            )
    if unknown := [seed for seed in seeds if seed not in board.seeds]:
        known = ", ".join(map(str, board.seeds))
        raise Error(f"--seeds {unknown[0]}: the board {board.name} has the seeds {known}")
    return Wanted([*named, *table.extra], sets, seeds)


def _listing(table: Leaderboard, wanted: Wanted) -> list[str]:
    """A line for each method on each data set."""
    lines = []
    for place, method in wanted.of(table):
        one = table.contender(place, method)
        missing = len(wanted.missing(one))
        seeds = f"{len(one.runs)} of {len(one.cells)} seeds"
        tuned = "" if one.tuning is None else ", tuned" if one.tuned else ", not tuned"
        left = f", {duration(_seconds(table, wanted, place, method))} left" if missing else ""
        lines.append(
            f"{'missing' if missing else 'done   '}  {place.name}  {one.title}  {seeds}{tuned}{left}"
        )
    return lines


def _seconds(table: Leaderboard, wanted: Wanted, place: Place, method: str) -> float:
    """The processor seconds that the rest of a method takes on a data set."""
    one = table.contender(place, method)
    cells = wanted.missing(one)
    tuning = [one.tuning] if cells and one.tuning is not None and one.tuned is None else []
    return sum(table.seconds(cell, place, method) for cell in [*tuning, *cells])


def _summary(table: Leaderboard, wanted: Wanted, jobs: int | None) -> str:
    """What is finished, and how long the rest will take."""
    several = wanted.of(table)
    asked = [table.contender(place, method) for place, method in several]
    left = sum(len(wanted.missing(one)) for one in asked)
    every = sum(len(wanted.seeds or one.cells) for one in asked)
    said = f"{every - left} of {every} runs are finished"
    said += f" and kept in {table.store.folder}" if every > left else ""
    if not left:
        return said
    seconds = sum(_seconds(table, wanted, place, method) for place, method in several)
    together = f", {duration(seconds / jobs)} (h:mm:ss) with {jobs} side by side" if jobs else ""
    return f"{said}; the rest takes about {seconds / 3600:.1f} core hours{together}"


def _run(table: Leaderboard, wanted: Wanted, where: Where, console: Console) -> dict[str, str]:
    """Run what is missing; why each cell that failed did."""
    from pfedsim.experiments.board_run import Listener, run_missing

    def said(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with watching_several(console, lines=False) as watch:
        tell = Listener(watch, said)
        run_missing(table, wanted, where, tell)
    return tell.failed


def _report(table: Leaderboard, place: Path, console: Console) -> None:
    """Write the page, and print the table of the first measure."""
    from pfedsim.report.leaderboard import short_table, write
    from pfedsim.report.screen import terminal
    from pfedsim.report.standings import Standings

    standings = Standings(table)
    shown = short_table(standings)
    console.print(f"\n{shown.title}", highlight=False)
    for part in terminal(shown, console.width):
        console.print(part)
    write(standings, place)
    if console.quiet:
        print(place)
    console.print(f"written to {place}: {KINDS}", highlight=False, soft_wrap=True)


def _damaged(table: Leaderboard) -> list[str]:
    """What is wrong with damaged files of finished cells."""
    for place in table.board.set:
        table.contenders(place)
    return [f"{why}; its cell counts as missing" for why in table.store.damaged.values()]


def _make(folder: Path, option: str) -> None:
    """Before anything is run, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"{option} {folder} is no folder and cannot be made one: {error.strerror}") from None
