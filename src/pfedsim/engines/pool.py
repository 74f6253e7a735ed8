"""Clients of a wave side by side, one per worker process, the longest job first. The bits are those of the
serial engine: a job runs on one thread and draws by address, so that it does not matter where or when it
runs."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from pfedsim.core.engine import Absent, Done, HeldMemories, late
from pfedsim.core.job import Work, Worker
from pfedsim.core.tasks import perform
from pfedsim.errors import Error

PR_SET_PDEATHSIG = 1  # prctl's number for it
DIED = "worker died"  # the event; its client runs again
TRIES = 2  # a client whose worker dies twice is absent


@dataclass
class _Process:
    number: int
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    busy: int | None = None  # which of the works it has


class Pool:
    """Worker processes that fork from this one and so share its data without copying. Use as a context, or
    `close` it."""

    def __init__(self, worker: Worker, workers: int):
        if workers < 1:
            raise Error(f"workers = {workers}: at least one is needed")
        self._worker, self._count = worker, workers
        self._workers: list[_Process] = []
        self.memories = HeldMemories()
        self.events: list[dict[str, Any]] = []

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        """Results as they come. A worker that dies is named in `events` and its client runs again; after two
        deaths, or after the deadline, the client is Absent."""
        end = None if deadline is None else time.monotonic() + deadline
        while len(self._workers) < min(self._count, len(works)):
            self._workers.append(self._start(len(self._workers)))
        waiting = sorted(range(len(works)), key=lambda k: -self._worker.samples.size(works[k].client))
        missing = dict.fromkeys(waiting, 0)  # which works have no result yet -> how often their worker died
        packed: dict[int, Any] = {}

        def pack(k: int) -> Any:
            memory = self.memories.of(works[k].client)
            return packed.pop(k, None) or _Packer.dumps((task, works[k], memory))

        def hand_out() -> None:
            for worker in self._workers:
                if worker.busy is None and waiting:
                    worker.busy = waiting.pop(0)
                    self._send(worker, pack(worker.busy))
            if waiting:  # at hand for the next that comes free
                packed[waiting[0]] = pack(waiting[0])

        try:
            while missing:
                hand_out()
                arrived = self._arrived(end)
                if not arrived:  # the deadline has passed
                    yield from (late(works[k]) for k in sorted(missing))
                    return
                hand_out()  # before anything is unpacked: a worker should not wait for that
                for k, number, answer in arrived:
                    if answer is not None:
                        del missing[k]
                        yield self._unpacked(answer)
                        continue
                    missing[k] += 1
                    self._died(number, works[k].client, missing[k] < TRIES)
                    if missing[k] < TRIES:
                        waiting.insert(0, k)
                    else:
                        del missing[k]
                        yield Absent(works[k].client, "its worker died twice")
        finally:
            self._drop_busy()

    def _died(self, worker: int, client: int, again: bool) -> None:
        then = "is run again" if again else "counts as absent"
        self.events.append({"event": DIED, "worker": worker, "client": client, "then": then})

    def _unpacked(self, answer: bytes) -> Done | Absent:
        failed, result = ForkingPickler.loads(answer)
        if failed:
            raise result
        done, memory = result
        if memory is not None:
            self.memories.offer(done.client, memory)
        return done  # type: ignore[no-any-return]

    def _drop_busy(self) -> None:
        """Ends workers whose wave was given up half-way: their answers belong to no later one."""
        for busy in [worker for worker in self._workers if worker.busy is not None]:
            self._workers.remove(busy)
            busy.process.kill()
            busy.process.join()
            busy.pipe.close()

    def _send(self, worker: _Process, job: Any) -> None:
        try:
            worker.pipe.send_bytes(job)
        except (BrokenPipeError, ConnectionResetError):
            return  # it is dead; `_arrived` sees its end

    def _arrived(self, end: float | None) -> list[tuple[int, int, bytes | None]]:
        """What has come after waiting for at least one: which work, whose worker, its answer or None where that
        worker died. Nothing where `end` came first."""
        busy = {worker.pipe: worker for worker in self._workers if worker.busy is not None}
        found: list[tuple[int, int, bytes | None]] = []
        left = None if end is None else max(0.0, end - time.monotonic())
        for pipe in multiprocessing.connection.wait(list(busy), left):
            worker = busy[pipe]  # type: ignore[index]
            k = worker.busy
            assert k is not None
            worker.busy = None
            try:
                found.append((k, worker.number, worker.pipe.recv_bytes()))
            except (EOFError, ConnectionResetError):
                worker.process.join()
                worker.pipe.close()
                self._workers[self._workers.index(worker)] = self._start(worker.number)
                found.append((k, worker.number, None))
        return found

    def _start(self, number: int) -> _Process:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [worker.pipe for worker in self._workers] + [ours]
        process = context.Process(
            target=_serve,
            args=(theirs, inherited, self._worker, os.getpid()),
            name=f"pfedsim-worker-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Process(number, process, ours)

    def close(self) -> None:
        """Ends the workers; one in the middle of a job does not finish it."""
        for worker in self._workers:
            worker.pipe.close()
            if worker.busy is not None:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
        self._workers = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Connection, inherited: list[Connection], worker: Worker, parent: int) -> None:
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
            task, work, memory = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        answer: tuple[bool, Any]
        try:
            answer = False, perform(worker, task, work, memory)
        except Error as error:
            error.add_note(traceback.format_exc())  # a cause does not go through a pipe
            answer = True, error
        except Exception:
            answer = True, RuntimeError(f"in a worker, for client {work.client}:\n{traceback.format_exc()}")
        try:
            pipe.send_bytes(_Packer.dumps(answer))
        except OSError:  # the parent has gone
            os._exit(0)


class _Packer(ForkingPickler):
    """Tensors go through a pipe as plain arrays, where torch would share a file descriptor for each."""

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return torch.from_numpy, (item.detach().cpu().numpy(),)
        return NotImplemented
