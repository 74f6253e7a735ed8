"""`pfedsim reproduce`: the paper's tables and figures, one command each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from pfedsim.cli import (
    MARKED,
    Address,
    Drift,
    EngineName,
    assigned,
    check_engine,
    listed,
    numbers,
    stoppable,
    watching_several,
)
from pfedsim.errors import Error, nearest

if TYPE_CHECKING:
    from pfedsim.experiments import Cell, Plan, Store
    from pfedsim.report import Document
    from pfedsim.runs import Progress
    from pfedsim_paper.protocol import Choice
    from pfedsim_paper.studies import Study

NAMES = (
    "accuracy",
    "rho",
    "overhead",
    "domainnet",
    "workflow",
    "cka",
    "similarity",
    "metrics",
    "distribution",
    "datasets",
    "shortcomings",
    "heterogeneity",
    "privacy",
    "questions",
    "gaps",
    "claims",
)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="which table or figure (--list names them)")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="name all studies")] = False,
    full: Annotated[bool, typer.Option("--full", help="the paper's whole scale")] = False,
    methods: Annotated[str, typer.Option("--methods", help="only these methods, separated by commas")] = "",
    data: Annotated[str, typer.Option("--data", help="only these data sets")] = "",
    alpha: Annotated[
        str, typer.Option("--alpha", help="only these concentrations of the Dirichlet partition")
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", help="only these seeds")] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="any setting, over the study's own"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the runs, what is done and the time left; run nothing")
    ] = False,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="run nothing; report what is finished")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="runs side by side (default: one per core)")
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="where finished runs are kept and looked for")
    ] = Path("paper/results"),
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="where the report goes (default: reproduced/NAME)"),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print all studies as one page, from what is finished")
    ] = False,
    engine: EngineName = None,
    address: Address = None,
    allow_drift: Drift = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but the report's place")] = False,
) -> None:
    """Run a table, figure or claim of the paper and set it beside the paper's; finished runs are kept and
    count as done."""
    check_engine(engine, address)
    if not list_all and not markdown and name is not None and name not in NAMES:
        raise Error(f"there is no study {name!r}; {nearest(name, NAMES)}")
    for option, text in (("--methods", methods), ("--data", data), ("--alpha", alpha), ("--seeds", seeds)):
        if text and not listed(text):
            raise Error(f"{option} {text!r} names nothing")
    wanted = (
        full,
        listed(methods),
        listed(data),
        [_number(part) for part in listed(alpha)],
        numbers(seeds),
        _settings(settings or []),
    )
    if markdown and (name or any(wanted)):
        raise Error("--markdown prints all that is finished: it takes --results and nothing else")
    if markdown:
        _markdown(results)
        return
    if name is None and not list_all and any(wanted):
        raise Error(f"name a study: {', '.join(NAMES)}")
    if list_all or name is None:
        _list()
        return
    from pfedsim.experiments import Store, plan
    from pfedsim_paper.protocol import Choice
    from pfedsim_paper.studies import STUDIES

    console = Console(quiet=quiet)
    study, store, choice = STUDIES[name], Store(results), Choice(*wanted)
    study.check(choice)
    if study.alone and (jobs or 1) > 1:
        raise Error(f"--jobs {jobs}: {name} is measured by the clock, one run at a time")
    if study.alone and engine == "ray":
        raise Error(f"--engine ray: {name} is measured by the clock, on this machine alone")
    cluster = Cluster(address, jobs, allow_drift) if engine == "ray" else None
    here = (
        1 if engine in ("serial", "ray") else len(os.sched_getaffinity(0))
    )  # of a cluster: unknown as yet
    jobs = 1 if study.alone else jobs or here
    now = plan(study.plan(choice), store)
    for line in [
        *_damaged(store),
        *(_listing(now) if dry_run else []),
        summary(now, jobs, results),
        *_more_seeds(study, choice, store),
    ]:
        console.print(line, highlight=False, soft_wrap=True)
    if dry_run:
        return
    place = out or Path("reproduced") / name
    if only_report and now.missing and not now.done:
        raise Error(f"nothing of {name} is finished in {results}: there is nothing to report")
    _make(results, "--results")
    _make(place, "--out")
    failed = {} if only_report else _run(study, now, store, jobs, console, cluster)
    if not failed or len(failed) < len(now.missing) or now.done:
        _report(study.report(store, choice), place, console)
    _say_failed(failed)
    marked = [record for record in store.records(study.plan(choice)) if record.found.get("incidents")]
    for record in marked:
        counts = ", ".join(f"{count} {kind}" for kind, count in record.found["incidents"].items())
        console.print(f"{store.path(record.cell)} had incidents: {counts}", highlight=False, soft_wrap=True)
    if failed or store.damaged:  # a damaged cell that was run again is whole
        raise typer.Exit(1)
    if marked:
        raise typer.Exit(MARKED)


def _markdown(results: Path) -> None:
    from pfedsim.experiments import Store
    from pfedsim_paper.results import page

    store = Store(results)
    print(page(store), end="")
    for line in _damaged(store):
        print(line, file=sys.stderr)
    if store.damaged:
        raise typer.Exit(1)


def _damaged(store: Store) -> list[str]:
    """What is wrong with damaged files of finished cells."""
    return [f"{why}; its cell counts as missing" for why in store.damaged.values()]


def _list() -> None:
    from pfedsim_paper.studies import STUDIES

    table = Table("name", "what it shows", "in the paper")
    for study in STUDIES.values():
        table.add_row(study.name, study.shows, study.place)
    Console().print(table)


def _report(document: Document, place: Path, console: Console) -> None:
    """Written in every form, and its tables shown."""
    from pfedsim.report import write

    _print(document, console)
    if document.figures():
        count = len(document.figures())
        console.print(f"drawing {count} picture{'s' * (count != 1)}")
    write(document, place)
    if console.quiet:
        print(place)
    kinds = f"{document.name}.html, .md, .tex, .csv, .json" + (
        ", and figures/" if document.figures() else ""
    )
    console.print(f"written to {place}: {kinds}", highlight=False, soft_wrap=True)


def _run(
    study: Study, now: Plan, store: Store, jobs: int, console: Console, cluster: Cluster | None
) -> dict[str, str]:
    """Runs what is missing; returns why each cell that failed did."""
    from pfedsim_paper.overhead import BUSY

    load = os.getloadavg()[0]
    if study.alone and now.missing and load > BUSY:
        console.print(
            f"the machine is busy (load {load:.1f}): seconds will be too long; run this study alone",
            highlight=False,
        )
    with stoppable(lambda: "; finished runs are kept, and the same command continues the others"):
        return run_missing(now.missing, store, jobs, console, cluster)


class Cluster(NamedTuple):
    """The Ray cluster that runs cells, `jobs` at a time (None: one per core)."""

    address: str | None
    jobs: int | None
    allow_drift: bool


def run_missing(
    cells: Sequence[Cell], store: Store, jobs: int, console: Console, cluster: Cluster | None = None
) -> dict[str, str]:
    """Runs these cells, `jobs` at a time or on a cluster, and says how each ended; returns why those that failed
    did."""
    from pfedsim.experiments import missing_data, run, run_on_cluster
    from pfedsim_paper import measure

    absent = {data: why for data in {c.words["data"] for c in cells} if (why := missing_data(data))}
    failed = {cell.name: absent[cell.words["data"]] for cell in cells if cell.words["data"] in absent}
    for data, why in absent.items():
        left_out = sum(c.words["data"] == data for c in cells)
        console.print(f"runs of {data} left out: {left_out}; {why}", highlight=False, soft_wrap=True)
    ready = [cell for cell in cells if cell.words["data"] not in absent]
    with watching_several(console, lines=False) as watch:

        def tell(cell: Cell, progress: Progress) -> None:
            watch(cell.name, progress)

        if cluster is not None:
            ended = run_on_cluster(ready, partial(measure.work, store), tell, **cluster._asdict())
        else:
            ended = run(ready, measure.work(store), jobs, tell)
        for count, (cell, failure) in enumerate(ended, 1):
            if failure is not None:
                failed[cell.name] = str(failure).splitlines()[-1]
            record = None if failure else store.find(cell)
            if failure is None and record is None:
                failed[cell.name] = (
                    "it was written on another machine: --results needs a path that all share"
                )
            took = f"{record.made['seconds']:.0f} s" if record else f"FAILED: {failed[cell.name]}"
            console.print(f"{count}/{len(ready)}  {cell.name}  {took}", highlight=False, soft_wrap=True)
    store.tidy()
    return failed


def _make(folder: Path, option: str) -> None:
    """Before anything is run, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"{option} {folder} is no folder and cannot be made one: {error.strerror}") from None


def _more_seeds(study: Study, choice: Choice, store: Store) -> list[str]:
    """Seeds that are finished and were not asked for: a table of one seed alone may surprise."""
    from pfedsim_paper.protocol import SEEDS

    if choice.seeds or "seeds" not in study.takes:
        return []
    shown = sorted({cell.words["seed"] for cell in study.plan(choice)})
    more = [
        seed
        for seed in SEEDS
        if seed not in shown and store.records(study.plan(replace(choice, seeds=(seed,))))
    ]
    return (
        [
            f"finished too, for some: seeds {', '.join(map(str, more))} (--seeds {','.join(map(str, [*shown, *more]))})"
        ]
        if more
        else []
    )


def _print(document: Document, console: Console) -> None:
    """The report's tables."""
    from pfedsim.report import terminal

    for part in [t for t in document.tables() if not t.for_papers]:
        console.print(part.title, highlight=False, markup=False)
        for shown in terminal(part, console.width):
            console.print(shown)
        for note in part.notes:
            console.print(note, highlight=False, markup=False)


def _say_failed(failed: dict[str, str]) -> None:
    """What could not be run, a line for each reason."""
    for why in dict.fromkeys(failed.values()):
        cells = [cell for cell, reason in failed.items() if reason == why]
        which = cells[0] if len(cells) == 1 else f"{cells[0]} and {len(cells) - 1} more"
        Console().print(f"not run: {which}: {why}", highlight=False, soft_wrap=True, markup=False)


def _settings(assignments: list[str]) -> dict[str, Any]:
    """What --set says; what a study's tables go by has options of its own."""
    found = assigned({}, assignments)
    for word, option in (
        ("method", "--methods"),
        ("data", "--data"),
        ("alpha", "--alpha"),
        ("seed", "--seeds"),
    ):
        if word in found:
            raise Error(f"--set {word}={found[word]}: a study's {word} is chosen with {option}")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Error(f"--alpha {text!r}: it should be numbers above 0, separated by commas") from None


def _listing(now: Plan) -> list[str]:
    from pfedsim.experiments import missing_data
    from pfedsim_paper.protocol import switched

    done = [
        f"done     {record.cell.name}  {record.made['seconds']:.0f} s  {switched(record.cell)}"
        for record in now.done
    ]
    missing = [f"missing  {cell.name}  {switched(cell)}" for cell in now.missing]
    absent = [
        why
        for data in dict.fromkeys(cell.words["data"] for cell in now.missing)
        if (why := missing_data(data))
    ]
    return [line.rstrip() for line in [*done, *missing, *absent]]


def summary(now: Plan, jobs: int, results: Path) -> str:
    """What is done, and how long the rest will take."""
    cells = len(now.done) + len(now.missing)
    if not cells:
        return "nothing to run: this is made from other studies' runs, or from counts alone"
    text = f"{len(now.done)} of {cells} runs are done" + (f" and kept in {results}" if now.done else "")
    if not now.missing:
        return text
    if now.unknown == len(now.missing):
        return f"{text}; how long the rest takes is known when one like it is finished"
    some = f", without {now.unknown} of which nothing like them is finished" if now.unknown else ""
    return f"{text}; about {now.seconds / jobs / 60:.0f} minutes left with {jobs} side by side{some}"
