"""Runs what is missing of a study: one cell per core, each kept as soon as it is finished, so that a killed study goes on where it was."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from multiprocessing.process import parent_process
from pathlib import Path
from statistics import mean
from typing import Any

from pfedsim.errors import Error
from pfedsim.studies.cells import Cell, Record, Store

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What of a study is done, what is missing, and the seconds that the rest takes on one core, by the times of finished cells."""

    done: list[Record]
    missing: list[Cell]
    seconds: float
    unknown: int
    """missing cells that nothing finished resembles"""


def plan(cells: Sequence[Cell], store: Store) -> Plan:
    """Looks what is there."""
    unique = list({cell.digest: cell for cell in cells}.values())
    found = {cell.digest: store.find(cell) for cell in unique}
    missing = [cell for cell in unique if found[cell.digest] is None]
    done = [record for record in found.values() if record is not None]
    guesses = [_guess(cell, done) for cell in missing]
    return Plan(done, missing, sum(g for g in guesses if g is not None), sum(g is None for g in guesses))


def _guess(cell: Cell, done: Sequence[Record]) -> float | None:
    """A cell takes as long as others of its method and data, scaled by rounds; else as others of its data."""

    def kin(record: Record, *words: str) -> bool:
        return record.cell.kind == cell.kind and all(_base(record.cell, w) == _base(cell, w) for w in words)

    for words in (("method", "data"), ("data",)):
        rates = [r.made["seconds"] / r.cell.words.get("rounds", 1) for r in done if kin(r, *words)]
        if rates:
            return float(mean(rates) * cell.words.get("rounds", 1))
    return None


def _base(cell: Cell, word: str) -> Any:
    value = cell.words.get(word)
    return value.partition("(")[0].partition(":")[0] if word == "method" and value else value


def carry_out(cells: Sequence[Cell], store: Store, jobs: int, tell: Tell) -> dict[str, str]:
    """Runs the cells, `jobs` at a time; returns why those failed that failed."""
    context = multiprocessing.get_context("spawn")
    waiting, total = list(cells), len(cells)
    running: dict[connection.Connection, tuple[Cell, SpawnProcess]] = {}
    failed: dict[str, str] = {}
    finished = 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, cell, store.folder), daemon=True)
                process.start()
                theirs.close()
                running[ours] = cell, process
            for pipe in connection.wait(list(running)):
                cell, process = running.pop(pipe)  # type: ignore[index,arg-type]
                try:
                    why = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    process.join()
                    why = f"its process ended with code {process.exitcode}"
                finished += 1
                if why:
                    failed[cell.name] = why
                record = None if why else store.find(cell)
                took = f"{record.made['seconds']:.0f} s" if record else f"FAILED: {why}"
                tell(f"{finished}/{total}  {cell.name}  {took}")
                process.join()
    finally:
        for _, process in running.values():
            process.terminate()
    return failed


def _work(pipe: connection.Connection, cell: Cell, folder: Path) -> None:
    """A child's life: one cell."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from pfedsim.studies import measure

        Store(folder).put(measure.carry_out(cell))
        pipe.send("")
    except Error as error:
        pipe.send(str(error))
    except Exception:
        pipe.send(" ".join(traceback.format_exc().strip().splitlines()[-1:]))


def _end_with_parent() -> None:
    """A killed study leaves nothing running."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
