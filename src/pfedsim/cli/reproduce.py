"""`pfedsim reproduce`: the paper's tables and figures, one command each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pfedsim.cli.options import assigned, listed, numbers
from pfedsim.errors import Error, nearest


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="which table or figure (--list names them)")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="name all studies")] = False,
    full: Annotated[bool, typer.Option("--full", help="the paper's whole scale")] = False,
    methods: Annotated[str | None, typer.Option("--methods", help="only these methods, separated by commas")] = None,
    data: Annotated[str | None, typer.Option("--data", help="only these data sets")] = None,
    alpha: Annotated[str | None, typer.Option("--alpha", help="only these concentrations of the Dirichlet partition")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="only these seeds")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any setting, over the study's own")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs, what is done and the time left; run nothing")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="runs side by side [default: one per core]")] = None,
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="where finished runs are kept and looked for")] = Path(
        "results"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", help="print nothing but what failed")] = False,
) -> None:
    """Run a table or figure of the paper: what is finished is kept at once and counts as done."""
    from pfedsim.studies.studies import STUDIES

    console = Console()
    if list_all or name is None:
        table = Table("name", "what it shows", "in the paper")
        for study in STUDIES.values():
            table.add_row(study.name, study.shows, study.place)
        console.print(table)
        return
    if name not in STUDIES:
        raise Error(f"there is no study {name!r}; {nearest(name, STUDIES)}")
    from pfedsim.studies.cells import Store
    from pfedsim.studies.protocol import Choice
    from pfedsim.studies.runner import carry_out, plan

    choice = Choice(
        full,
        listed(methods or ""),
        listed(data or ""),
        [_number(part) for part in listed(alpha or "")],
        numbers(seeds or ""),
        assigned({}, settings or []),
    )
    cells = STUDIES[name].cells(choice)
    store = Store(results)
    jobs = jobs or len(os.sched_getaffinity(0))
    now = plan(cells, store)
    if dry_run:
        for record in now.done:
            console.print(f"done     {record.cell.name}  {record.made['seconds']:.0f} s", highlight=False, soft_wrap=True)
        for cell in now.missing:
            console.print(f"missing  {cell.name}", highlight=False, soft_wrap=True)
    if not quiet:
        console.print(_summary(now, jobs), highlight=False, soft_wrap=True)
    if dry_run:
        return
    failed = carry_out(now.missing, store, jobs, lambda line: None if quiet else console.print(line, highlight=False, soft_wrap=True))
    for cell_name, why in failed.items():
        console.print(f"failed: {cell_name}: {why}", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Error(f"--alpha {text!r}: it should be a number above 0") from None


def _summary(plan: Any, jobs: int) -> str:
    text = f"{len(plan.done)} of {len(plan.done) + len(plan.missing)} runs are done"
    if not plan.missing:
        return text
    if plan.unknown == len(plan.missing):
        return f"{text}; how long the rest takes is not known before one is finished"
    some = f", without {plan.unknown} runs of which nothing like them is finished" if plan.unknown else ""
    return f"{text}; about {plan.seconds / jobs / 60:.0f} minutes left with {jobs} side by side{some}"
