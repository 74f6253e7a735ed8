"""Clients of a wave side by side, one per worker process, the longest job first. The bits are those of the
serial engine: a job runs on one thread and draws by address, so that it does not matter where or when it
runs."""

from __future__ import annotations

import ctypes
import io
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from pfedsim.core.engine import TRIES, Absent, Done, HeldMemories, died, failed, received, timed_out
from pfedsim.core.job import Work, Worker
from pfedsim.core.method import Memory
from pfedsim.core.tasks import perform
from pfedsim.engines.shelf import LARGE, Borrower, Handed, Lender, Place, Shelf, Stock
from pfedsim.errors import Error

PR_SET_PDEATHSIG = 1  # prctl's number for it
LIMIT = 3600.0  # seconds that one job may take unless the user says otherwise
OVERDUE = "its work took more than {:g} seconds; its worker was killed and replaced"
LOOKS = 1.0  # seconds between two looks at the clock


@dataclass
class _Process:
    number: int
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    shelves: tuple[Shelf, Shelf]  # of its answers
    busy: int | None = None  # which of the works it has
    spent: float = 0.0  # seconds on that work, without those in which this process was stopped too


class Pool:
    """Worker processes that fork from this one and so share its data without copying. A job that takes more than
    `limit` seconds ends with its worker. Use as a context, or `close` it."""

    def __init__(self, worker: Worker, workers: int, limit: float = LIMIT):
        if workers < 1:
            raise Error(f"workers = {workers}: at least one is needed")
        self._worker, self._count, self.limit = worker, workers, limit
        self._workers: list[_Process] = []
        self._lender, self._stock = Lender(), Stock()
        self.memories = HeldMemories()
        self.events: list[dict[str, Any]] = []

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        """Results as they come. A worker that dies is named in `events` and its client runs again; after two
        deaths, beyond the limit of a job or after the deadline, the client is Absent."""
        end = None if deadline is None else time.monotonic() + deadline
        while len(self._workers) < min(self._count, len(works)):
            self._workers.append(self._start(len(self._workers)))
        waiting = sorted(range(len(works)), key=lambda k: -self._worker.samples.size(works[k].client))
        missing = dict.fromkeys(waiting, 0)  # which works have no result yet -> how often their worker died
        packed: dict[
            int, _Packed[Place]
        ] = {}  # those under way, and one at hand for the next that comes free

        def pack(k: int) -> bytes:
            if k not in packed:
                job = task, works[k], self.memories.of(works[k].client)
                packed[k] = _packed(job, self._lender.lend)
            return packed[k].text()

        def hand_out() -> None:
            for worker in self._workers:
                if worker.busy is None and waiting:
                    worker.busy, worker.spent = waiting.pop(0), 0.0
                    self._send(worker, pack(worker.busy))
            if waiting:
                pack(waiting[0])

        try:
            while missing:
                hand_out()
                arrived = self._arrived(end)
                if end is not None and not arrived and time.monotonic() >= end:
                    yield from (timed_out(works[k], "it did not answer in time") for k in sorted(missing))
                    return
                for k in self._stop_overdue():
                    del missing[k]
                    yield timed_out(works[k], OVERDUE.format(self.limit))
                hand_out()  # before anything is unpacked: a worker should not wait for that
                for k, worker, answer in arrived:
                    if answer is not None:
                        del missing[k]
                        done = self._unpacked(works[k], worker, answer)
                        self._lender.take_back(packed.pop(k).places)
                        yield done
                        continue
                    missing[k] += 1
                    self.events.append(died(worker.number, works[k].client, missing[k] < TRIES))
                    if missing[k] < TRIES:
                        waiting.insert(0, k)
                    else:
                        del missing[k]
                        yield Absent(works[k].client, "its worker died twice")
        finally:
            self._drop_busy()
            self._lender.clear()

    def _unpacked(self, work: Work, worker: _Process, answer: bytes) -> Done | Absent:
        def array(place: Handed) -> Any:
            if isinstance(place, int):
                return self._lender.original(place)
            turn, there = place
            memory = self._stock.empty(there.size)
            worker.shelves[turn].read(there, memory)
            return memory

        return received(
            self.memories, work.client, lambda: _unpacked(answer, lambda places: map(array, places))
        )

    def _drop_busy(self) -> None:
        """Ends workers whose wave was given up half-way: their answers belong to no later one."""
        for busy in [worker for worker in self._workers if worker.busy is not None]:
            self._workers.remove(busy)
            _end(busy)

    def _stop_overdue(self) -> list[int]:
        """Which works took longer than they may; kills their workers, stopped ones too, and starts new ones."""
        overdue = [w for w in self._workers if w.busy is not None and w.spent > self.limit]
        for worker in overdue:
            _end(worker)
            self._workers[self._workers.index(worker)] = self._start(worker.number)
        return [worker.busy for worker in overdue if worker.busy is not None]

    def _send(self, worker: _Process, job: Any) -> None:
        try:
            worker.pipe.send_bytes(job)
        except BlockingIOError:  # it does not read: somebody stopped it
            worker.spent = math.inf
        except (BrokenPipeError, ConnectionResetError):
            return  # it is dead; `_arrived` sees its end

    def _arrived(self, end: float | None) -> list[tuple[int, _Process, bytes | None]]:
        """What has come since the last look: which work, whose worker, its answer or None where that worker died.
        Nothing where neither a result nor `end` came for a while."""
        busy = {worker.pipe: worker for worker in self._workers if worker.busy is not None}
        found: list[tuple[int, _Process, bytes | None]] = []
        began = time.monotonic()
        look = min(LOOKS, self.limit)
        left = look if end is None else min(look, max(0.0, end - began))
        ready = multiprocessing.connection.wait(list(busy), left)
        passed = min(
            time.monotonic() - began, 2 * look
        )  # more: this process was stopped, its workers perhaps too
        for worker in busy.values():
            worker.spent += passed
        for pipe in ready:
            worker = busy[pipe]  # type: ignore[index]
            k = worker.busy
            assert k is not None
            try:
                found.append((k, worker, worker.pipe.recv_bytes()))
                worker.busy = None
            except BlockingIOError:  # it was stopped while it answered
                worker.spent = math.inf
            except (EOFError, ConnectionResetError):
                _end(worker)
                self._workers[self._workers.index(worker)] = self._start(worker.number)
                found.append((k, worker, None))
        return found

    def _start(self, number: int) -> _Process:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        with socket.socket(
            fileno=os.dup(ours.fileno())
        ) as end:  # no read or write waits for a stopped worker
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", *_seconds(self.limit)))
        inherited = [worker.pipe for worker in self._workers] + [ours]
        shelves = Shelf(), Shelf()
        process = context.Process(
            target=_serve,
            args=(theirs, inherited, self._worker, Borrower(self._lender.shelf, shelves), os.getpid()),
            name=f"pfedsim-worker-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Process(number, process, ours, shelves)

    def close(self) -> None:
        """Ends the workers; one in the middle of a job does not finish it."""
        for worker in self._workers:
            worker.pipe.close()
            if worker.busy is not None:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(timeout=5)
            _end(worker)
        self._workers = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(
    pipe: Connection, inherited: list[Connection], worker: Worker, borrower: Borrower, parent: int
) -> None:
    """A worker's life: jobs in, results out, until the pipe closes."""
    for other in inherited:  # so that each pipe ends with its own two processes
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if (
        sys.platform == "linux"
    ):  # a parent that is killed takes its workers along, even from the middle of a long job
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    torch.set_num_threads(1)
    while True:
        try:
            task, work, memory = _unpacked(pipe.recv_bytes(), borrower.borrow)
        except (EOFError, OSError):
            os._exit(0)
        answer = _answer(worker, task, work, memory)
        try:
            packed = _packed(answer, borrower.hand_back, borrower.is_lent)
        except Exception as error:
            why = f"its result cannot be sent: {type(error).__name__}: {error}"
            packed = _packed((False, (failed(work.client, why, error), None)), borrower.hand_back)
        del task, work, memory, answer  # and with them what was borrowed
        try:
            pipe.send_bytes(packed.text())
        except OSError:  # the parent has gone
            os._exit(0)


def _answer(worker: Worker, task: str, work: Work, memory: Memory) -> tuple[bool, Any]:
    """Whether it was raised, and the result."""
    try:
        return False, perform(worker, task, work, memory)
    except Error as error:
        error.add_note(traceback.format_exc())  # a cause does not go through a pipe
        return True, error
    except Exception:
        return True, RuntimeError(f"in a worker, for client {work.client}:\n{traceback.format_exc()}")


def _seconds(limit: float) -> tuple[int, int]:
    """As seconds and microseconds; zero would mean for ever."""
    whole = int(limit)
    return whole, max(1, int((limit - whole) * 1e6))


def _end(worker: _Process) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


P = TypeVar("P")


class _Packed(NamedTuple, Generic[P]):
    """A value as bytes, without its large arrays, and where these are."""

    body: bytes
    places: list[P]

    def text(self) -> bytes:
        return bytes(ForkingPickler.dumps((self.body, self.places)))


def _packed(
    value: Any, put: Callable[[memoryview], P], lent: Callable[[int], bool] = lambda _: False
) -> _Packed[P]:
    """`put` keeps a large array somewhere and says where; one for which there is no room goes along. `lent`: what
    begins at an address of somebody else's; if it was written into, the copy is meant."""
    places: list[P] = []

    def along(buffer: Any) -> bool:
        array: memoryview = buffer.raw()
        if array.nbytes < LARGE:
            return True
        try:
            places.append(put(array))
        except OSError:
            return True
        return False

    body = io.BytesIO()
    _Packer(body, along, lent).dump(value)
    return _Packed(body.getvalue(), places)


def _unpacked(text: bytes, arrays: Callable[[list[Any]], Iterable[Any]]) -> Any:
    """`arrays` gives those that the places name."""
    body, places = ForkingPickler.loads(text)
    return ForkingPickler.loads(body, buffers=arrays(places))


class _Packer(ForkingPickler):
    """Tensors go as plain arrays, where torch would share a file descriptor for each."""

    def __init__(self, body: io.BytesIO, along: Callable[[Any], bool], lent: Callable[[int], bool]):
        super().__init__(body, 5, True, along)
        self._lent = lent

    def reducer_override(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return NotImplemented
        if item._version and self._lent(item.data_ptr()):
            item = item.clone()
        return torch.from_numpy, (item.detach().cpu().numpy(),)
