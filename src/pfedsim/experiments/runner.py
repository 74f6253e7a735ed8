"""Run cells in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess, parent_process
from statistics import mean
from typing import TYPE_CHECKING, Any

from pfedsim.data import catalogue
from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell, Record, base_name
from pfedsim.experiments.store import Store

if TYPE_CHECKING:
    from pfedsim.runs.execution import Progress

    Watch = Callable[[Cell, Progress], None]
    Work = Callable[[Cell, Callable[[Progress], None]], None]


@dataclass(frozen=True)
class Plan:
    """Finished and missing cells, and the estimated seconds on one core for the missing ones, judging by similar
    finished ones."""

    done: list[Record]
    missing: list[Cell]
    seconds: float
    unknown: int
    """missing cells without a similar one"""


def plan(cells: Sequence[Cell], store: Store) -> Plan:
    """Look up the cells in the store. Duplicates count once."""
    unique = list({cell.digest: cell for cell in cells}.values())
    found = {cell.digest: store.find(cell) for cell in unique}
    missing = [cell for cell in unique if found[cell.digest] is None]
    done = [record for record in found.values() if record is not None]
    known = store.all() if missing else []
    guesses = [_guess(cell, known) for cell in missing]
    return Plan(done, missing, sum(g for g in guesses if g is not None), sum(g is None for g in guesses))


def _guess(cell: Cell, done: Sequence[Record]) -> float | None:
    """Estimate a cell's seconds from others with its method, data and backend, scaled by rounds; failing that, from
    others with its data and backend."""

    def similar(record: Record, *words: str) -> bool:
        return record.cell.kind == cell.kind and all(_base(record.cell, w) == _base(cell, w) for w in words)

    for words in (("method", "data", "backend"), ("data", "backend")):
        rates = [r.made["cpu_seconds"] / r.cell.words.get("rounds", 1) for r in done if similar(r, *words)]
        if rates:
            return float(mean(rates) * cell.words.get("rounds", 1))
    return None


def _base(cell: Cell, word: str) -> Any:
    value = cell.words.get(word)
    return base_name(value) if word == "method" and value else value


def missing_data(data: str) -> str:
    """An error message if a known data set is missing, else "". A user's data set is checked by its reader."""
    known, folder = catalogue.KNOWN.get(data), catalogue.data_dir()
    if known is None or known.place(folder) is not None:
        return ""
    return (
        f"no {data} in {folder.resolve()}: get it with `pfedsim data get {data}`, or set PFEDSIM_DATA to "
        "its folder"
    )


@dataclass
class _Process:
    """A process that runs cells one after another."""

    process: BaseProcess
    pipe: connection.Connection
    cell: Cell | None = None


def run(
    cells: Sequence[Cell], work: Work, jobs: int, watch: Watch
) -> Generator[tuple[Cell, Exception | None], None, None]:
    """Call `work(cell, watch)` for every cell, `jobs` at a time, in forked processes. Yields each cell when it ends,
    with the exception if it failed; `watch` receives the progress of every cell. Closing the iterator stops the
    cells that still run."""
    waiting = list(cells)
    processes = [_start(work) for _ in range(min(jobs, len(waiting)))]
    try:
        while waiting or any(p.cell for p in processes):
            for process in processes:
                if process.cell is None and waiting:
                    process.cell = waiting.pop(0)
                    process.pipe.send(process.cell)
            ready = connection.wait([p.pipe for p in processes if p.cell])
            for k, process in enumerate(processes):
                if process.pipe not in ready or process.cell is None:
                    continue
                cell = process.cell
                try:
                    kind, content = process.pipe.recv()
                except (EOFError, ConnectionResetError):
                    process.process.join()
                    code = process.process.exitcode
                    kind, content = "end", Error(f"its process ended with code {code}")
                    processes[k] = _start(work)
                if kind == "progress":
                    watch(cell, content)
                else:
                    process.cell = None
                    yield cell, content
    finally:
        for process in processes:
            process.process.terminate()
        for process in processes:
            process.process.join()


def _start(work: Work) -> _Process:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work))
    process.start()
    theirs.close()
    return _Process(process, ours)


def _serve(pipe: connection.Connection, work: Work) -> None:
    """Receive cells, and send their progress and result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        cell = pipe.recv()
        failure: Exception | None = None
        try:
            work(cell, lambda progress: pipe.send(("progress", progress)))
        except (Error, OSError) as error:  # an error of the user or the machine, not a bug
            error.add_note(traceback.format_exc())  # pickling loses the cause
            failure = error
        except Exception:
            failure = RuntimeError(traceback.format_exc().strip())
        pipe.send(("end", failure))


def _end_with_parent() -> None:
    """Exit when the parent is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
