"""Runs what is missing of a study: one cell per core, each kept as soon as it is finished, so that a killed
study goes on where it was."""

from __future__ import annotations

import multiprocessing
import os
import signal
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

from pfedsim.data import catalogue
from pfedsim.errors import Error
from pfedsim_paper.cells import Cell, Record, Store, read
from pfedsim_paper.protocol import base_name

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What of a study is done, what is missing, and the seconds that the rest takes on one core, by
    processor time of finished ones."""

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
    known = [read(path) for path in sorted(store.folder.rglob("*.json"))] if missing else []  # of any study
    guesses = [_guess(cell, known) for cell in missing]
    return Plan(done, missing, sum(g for g in guesses if g is not None), sum(g is None for g in guesses))


def _guess(cell: Cell, done: Sequence[Record]) -> float | None:
    """A cell takes as long as others of its method, data and backend, scaled by rounds; else as others of
    its data and backend."""

    def kin(record: Record, *words: str) -> bool:
        return record.cell.kind == cell.kind and all(_base(record.cell, w) == _base(cell, w) for w in words)

    for words in (("method", "data", "backend"), ("data", "backend")):
        rates = [r.made["cpu_seconds"] / r.cell.words.get("rounds", 1) for r in done if kin(r, *words)]
        if rates:
            return float(mean(rates) * cell.words.get("rounds", 1))
    return None


def _base(cell: Cell, word: str) -> Any:
    value = cell.words.get(word)
    return base_name(value) if word == "method" and value else value


@dataclass
class _Worker:
    """A process that runs one cell after another."""

    process: SpawnProcess
    pipe: connection.Connection
    cell: Cell | None = None


def carry_out(cells: Sequence[Cell], store: Store, jobs: int, tell: Tell) -> dict[str, str]:
    """Runs the cells, `jobs` at a time; returns why those failed that failed."""
    absent = {data: why for data in {c.words["data"] for c in cells} if (why := not_at_hand(data))}
    failed = {cell.name: absent[cell.words["data"]] for cell in cells if cell.words["data"] in absent}
    for data, why in absent.items():
        tell(f"runs of {data} left out: {sum(c.words['data'] == data for c in cells)}; {why}")
    waiting = [cell for cell in cells if cell.words["data"] not in absent]
    workers = [_started(store.folder) for _ in range(min(jobs, len(waiting)))]
    finished, total = 0, len(waiting)
    try:
        while waiting or any(w.cell for w in workers):
            for worker in workers:
                if worker.cell is None and waiting:
                    worker.cell = waiting.pop(0)
                    worker.pipe.send(worker.cell)
            ready = connection.wait([w.pipe for w in workers if w.cell])
            for k, worker in enumerate(workers):
                if worker.pipe not in ready or worker.cell is None:
                    continue
                cell, worker.cell = worker.cell, None
                try:
                    why = str(worker.pipe.recv())
                except (EOFError, ConnectionResetError):
                    worker.process.join()
                    why = f"its process ended with code {worker.process.exitcode}"
                    workers[k] = _started(store.folder)
                finished += 1
                if why:
                    failed[cell.name] = why
                record = None if why else store.find(cell)
                tell(
                    f"{finished}/{total}  {cell.name}  "
                    + (f"{record.made['seconds']:.0f} s" if record else f"FAILED: {why}")
                )
    finally:
        for worker in workers:
            worker.process.terminate()
    return failed


def _started(folder: Path) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, folder), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _work(pipe: connection.Connection, folder: Path) -> None:
    """A worker's life: a cell in; out, why it could not be run, or nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from pfedsim_paper import measure

    while True:
        cell = pipe.recv()
        try:
            Store(folder).put(measure.carry_out(cell))
            pipe.send("")
        except Error as error:
            pipe.send(str(error))
        except Exception:
            pipe.send(traceback.format_exc().strip().splitlines()[-1])


def not_at_hand(data: str) -> str:
    """Why a set cannot be read here, or nothing; a set of the user's own is looked for by its reader."""
    known, folder = catalogue.KNOWN.get(data), catalogue.data_dir()
    if known is None or known.place(folder) is not None:
        return ""
    return (
        f"no {data} in {folder.resolve()}: get it with `pfedsim data get "
        f"{data}`, or name its folder with PFEDSIM_DATA"
    )


def _end_with_parent() -> None:
    """A killed study leaves nothing running."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
