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
    from collections.abc import Callable, Sequence

    from pfedsim.experiments.board import Place
    from pfedsim.experiments.cell import Cell
    from pfedsim.experiments.leaderboard import Leaderboard
    from pfedsim.runs.execution import Progress

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
        str, typer.Option("--seeds", metavar="N,...", help="run only these seeds of the board: 42,43 or 42-44")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list what is finished and how long the rest takes; run nothing")
    ] = False,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="run nothing; write the page from what is finished")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, metavar="N", help="cells side by side (default: one per core)")
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
    wanted = _wanted(table, listed(methods), listed(sets))
    chosen = numbers(seeds) if seeds else []
    if unknown := [seed for seed in chosen if seed not in table.board.seeds]:
        known = ", ".join(map(str, table.board.seeds))
        raise Error(f"--seeds {unknown[0]}: the board {table.board.name} has the seeds {known}")
    console = screen()
    console.quiet = quiet
    here = 1 if engine == "serial" else len(os.sched_getaffinity(0))
    cells_at_once = jobs or here
    if dry_run:
        for line in _listing(table, wanted):
            console.print(line, highlight=False, soft_wrap=True)
    _say_damaged(table.store, console)
    console.print(_summary(table, wanted, cells_at_once, chosen), highlight=False, soft_wrap=True)
    if dry_run:
        return
    place = out or Path("runs") / f"leaderboard-{slug(Path(board).stem)}"
    _make(results, "--results")
    _make(place, "--out")
    failed: dict[str, str] = {}
    if not only_report:
        cluster = (address, jobs, allow_drift) if engine == "ray" else None
        with stoppable(lambda: "; finished cells are kept, and the same command continues the others"):
            failed = _run(table, wanted, chosen, cells_at_once, console, cluster)
    _report(table, place, console)
    for why in dict.fromkeys(failed.values()):
        names = [name for name, reason in failed.items() if reason == why]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(f"not run: {names[0]}{more}: {why}", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)
    if any(r.found.get("incidents") for p in table.board.places for r in _records(table, p)):
        raise typer.Exit(MARKED)


def _wanted(table: Leaderboard, methods: list[str], sets: list[str]) -> Callable[[Place, str], bool]:
    """Which methods of which places are run: with --add alone, only the added ones."""
    from pfedsim.experiments.board import expanded

    for name in sets:
        table.board.place(name)
    named = expanded(tuple(methods))
    for name in named:
        if name not in table.every_method():
            raise Error(
                f"--methods {name}: the board {table.board.name} does not have it; "
                f"{nearest(name, table.every_method())}; --add adds a method"
            )
    runs = {*named, *table.extra} if named or table.extra else set(table.every_method())
    return lambda place, method: method in runs and (not sets or place.name in sets)


def _listing(table: Leaderboard, wanted: Callable[[Place, str], bool]) -> list[str]:
    """A line for each method on each data set."""
    lines = []
    for place in table.board.places:
        for method in [m for m in table.methods(place) if wanted(place, m)]:
            one = table.contender(place, method)
            done = f"{len(one.runs)} of {len(one.cells)} seeds"
            tuned = "" if one.tuning is None else ", tuned" if one.tuned else ", not tuned"
            state = "done   " if one.finished else "missing"
            lines.append(f"{state}  {place.name}  {one.title}  {done}{tuned}")
    return lines


def _summary(
    table: Leaderboard, wanted: Callable[[Place, str], bool], jobs: int, seeds: Sequence[int]
) -> str:
    """What is finished, and how long the rest will take."""
    done = every = 0
    seconds = 0.0
    for place in table.board.places:
        for method in [m for m in table.methods(place) if wanted(place, m)]:
            one = table.contender(place, method)
            cells = [cell for seed, cell in one.cells.items() if not seeds or seed in seeds]
            missing = [cell for cell in cells if cell.words["seed"] not in one.runs]
            done, every = done + len(cells) - len(missing), every + len(cells)
            tuning = [one.tuning] if one.tuning is not None and one.tuned is None and missing else []
            seconds += sum(table.seconds(cell, place, method) for cell in [*tuning, *missing])
    said = f"{done} of {every} runs are finished" + (f" and kept in {table.store.folder}" if done else "")
    if done == every:
        return said
    return (
        f"{said}; the rest takes about {seconds / 3600:.1f} core hours, {duration(seconds / jobs)} (h:mm:ss) with {jobs} "
        "side by side"
    )


def _run(
    table: Leaderboard,
    wanted: Callable[[Place, str], bool],
    seeds: Sequence[int],
    jobs: int,
    console: Console,
    cluster: tuple[str | None, int | None, bool] | None,
) -> dict[str, str]:
    """Run what is missing, place by place; why each cell that failed did."""
    from functools import partial

    import pfedsim.runs.execute  # noqa: F401 (before the processes fork, so that they need not import torch)
    from pfedsim.experiments import leaderboard, missing_data, run, run_on_cluster

    failed: dict[str, str] = {}
    with watching_several(console, lines=False) as watch:

        def tell(cell: Cell, progress: Progress) -> None:
            watch(cell.name, progress)

        for place, cells in leaderboard.waves(table, wanted, seeds):
            if why := missing_data(str(table.board.words(place)["data"])):
                failed |= {cell.name: why for cell in cells}
                continue
            cells = [cell for cell in cells if cell.name not in failed]
            if cluster is not None:
                address, several, drift = cluster
                work = partial(leaderboard.work, table.store)
                ended = run_on_cluster(cells, work, tell, address=address, jobs=several, allow_drift=drift)
            else:
                ended = run(cells, leaderboard.work(table.store), jobs, tell)
            for count, (cell, failure) in enumerate(ended, 1):
                record = None if failure else table.store.find(cell)
                if record is None:
                    failed[cell.name] = str(failure or "it was written on another machine").splitlines()[-1]
                took = f"{record.made['seconds']:.0f} s" if record else f"FAILED: {failed[cell.name]}"
                line = f"{place.name} {count}/{len(cells)}  {cell.name}  {took}"
                console.print(line, highlight=False, soft_wrap=True)
    table.store.tidy()
    table.forget()
    return failed


def _records(table: Leaderboard, place: Place) -> list[object]:
    return [r for one in table.contenders(place).values() for r in one.runs.values()]


def _report(table: Leaderboard, place: Path, console: Console) -> None:
    """Write the page, and print the table of the first measure."""
    from pfedsim.report.leaderboard import standing_tables, write
    from pfedsim.report.screen import terminal
    from pfedsim.report.standings import Standings

    standings = Standings(table)
    shown = standing_tables(standings)[0]
    console.print(f"\n{shown.title}", highlight=False)
    for part in terminal(shown, console.width):
        console.print(part)
    write(standings, place)
    if console.quiet:
        print(place)
    console.print(f"written to {place}: {KINDS}", highlight=False, soft_wrap=True)


def _say_damaged(store: object, console: Console) -> None:
    for why in getattr(store, "damaged", {}).values():
        console.print(f"{why}; its cell counts as missing", highlight=False, soft_wrap=True)


def _make(folder: Path, option: str) -> None:
    """Before anything is run, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"{option} {folder} is no folder and cannot be made one: {error.strerror}") from None
