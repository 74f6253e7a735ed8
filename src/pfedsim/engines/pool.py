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
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from pfedsim.core.job import Absent, Work, Worker, attempt
from pfedsim.errors import Error

PR_SET_PDEATHSIG = 1  # prctl's number for it
TRIES = 2  # a client whose worker dies twice is absent


@dataclass
class _Worker:
    number: int
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    busy: int | None = None  # which of the works it has


class Pool:
    """Worker processes that fork from this one and so share its data without copying. Use as a context, or
    `close` it."""

    def __init__(self, site: Worker, workers: int):
        if workers < 1:
            raise Error(f"workers = {workers}: at least one is needed")
        self._site, self._count = site, workers
        self._workers: list[_Worker] = []
        self.events: list[dict[str, Any]] = []

    def map(self, function: Callable[..., Any], works: Sequence[Work], *arguments: Any) -> Iterator[Any]:
        """`function(site, work, *arguments)` for each work, results in order. A worker that dies is named
        in `events` and its client run again; after two deaths the result is `Absent`."""
        while len(self._workers) < min(self._count, len(works)):
            self._workers.append(self._start(len(self._workers)))
        waiting = sorted(range(len(works)), key=lambda k: -self._site.samples.size(works[k].client))
        deaths = dict.fromkeys(waiting, 0)
        packed: dict[int, Any] = {}
        results: dict[int, Any] = {}

        def pack(k: int) -> Any:
            return packed.pop(k, None) or _Packer.dumps((function, works[k], arguments))

        def hand_out() -> None:
            for worker in self._workers:
                if worker.busy is None and waiting:
                    worker.busy = waiting.pop(0)
                    self._send(worker, pack(worker.busy))
            if waiting:  # at hand for the next that comes free
                packed[waiting[0]] = pack(waiting[0])

        try:
            at = 0
            while at < len(works):
                hand_out()
                arrived = self._arrived(wait=at not in results)
                hand_out()  # before anything is unpacked: a worker should not wait for that
                for k, number, answer in arrived:
                    if answer is not None:
                        failed, results[k] = ForkingPickler.loads(answer)
                        if failed:
                            raise results[k]
                        continue
                    deaths[k] += 1
                    again = deaths[k] < TRIES
                    what = "is run again" if again else "counts as absent"
                    self.events.append(
                        {"event": "worker died", "worker": number, "client": works[k].client, "then": what}
                    )
                    if again:
                        waiting.insert(0, k)
                    else:
                        results[k] = Absent(works[k].client, "its worker died twice")
                if at in results:
                    yield results.pop(at)
                    at += 1
        finally:
            for busy in [
                worker for worker in self._workers if worker.busy is not None
            ]:  # given up half-way: no answer to a later map
                self._workers.remove(busy)
                busy.process.kill()
                busy.process.join()
                busy.pipe.close()

    def _send(self, worker: _Worker, job: Any) -> None:
        try:
            worker.pipe.send_bytes(job)
        except (BrokenPipeError, ConnectionResetError):
            return  # it is dead; `_arrived` sees its end

    def _arrived(self, wait: bool) -> list[tuple[int, int, bytes | None]]:
        """What has come, after waiting for at least one where asked: which work, whose worker, its answer
        or None where that died."""
        busy = {worker.pipe: worker for worker in self._workers if worker.busy is not None}
        found: list[tuple[int, int, bytes | None]] = []
        for pipe in multiprocessing.connection.wait(list(busy), None if wait else 0) if busy else ():
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

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [worker.pipe for worker in self._workers] + [ours]
        process = context.Process(
            target=_serve,
            args=(theirs, inherited, self._site, os.getpid()),
            name=f"pfedsim-worker-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Worker(number, process, ours)

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


def _serve(pipe: Connection, inherited: list[Connection], site: Worker, parent: int) -> None:
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
            function, work, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        answer: tuple[bool, Any]
        try:
            answer = False, attempt(function, site, work, *arguments)
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
