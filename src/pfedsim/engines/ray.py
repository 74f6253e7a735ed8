"""Clients of a wave on a Ray cluster, some of them in each call of an actor, the longest jobs first. The bits are
those of the serial engine on the same type of machine: a job runs on one thread and draws by address."""

from __future__ import annotations

import io
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from pfedsim.core.engine import TRIES, Absent, Done, HeldMemories, died, failed, received, timed_out
from pfedsim.core.job import Work, Worker
from pfedsim.core.tasks import perform
from pfedsim.core.wire import fields
from pfedsim.engines.actors import Actor, Actors, Came
from pfedsim.engines.pool import LIMIT, LOOKS, OVERDUE
from pfedsim.errors import Error

MOST = 50  # clients in a call
LARGEST = 64 << 20  # bytes of the models that a call brings, unless one alone is larger
CALLS = 4  # calls for each actor in a wave: the last ones even out
SMALL = 1024  # bytes of an array that travels inside the pickle
DRIFT = "drift"  # the event of a node that differs from the driver
Group = tuple[int, ...]  # which works a call has
Parcel = tuple[bytes, list[np.ndarray]]


class Ray:
    """Memories stay with the driver and go along with the work, so an actor that dies takes nothing with it. A
    job that takes more than `limit` seconds ends with its actor. `size`: of a client, by its number."""

    def __init__(self, actors: Actors, size: Callable[[int], int], limit: float = LIMIT):
        self._actors, self._size, self.limit = actors, size, limit
        self._told = 0  # of the nodes' differences
        self.memories = HeldMemories()
        self.events: list[dict[str, Any]] = []

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        """Results as they come. The clients of an actor that dies run again, one at a time; after two deaths with
        one of them alone, beyond the limit of a job or after the deadline, the client is Absent."""
        if not works:
            return
        end = None if deadline is None else time.monotonic() + deadline
        actors = self._actors.start(len(works))
        waiting = deque(self._grouped(works, actors, 1 if deadline is not None else _most(works)))
        missing = dict.fromkeys(
            range(len(works)), 0
        )  # works without a result -> deaths alone with their actor
        sender = _Sender(task, works, self.memories, self._actors)
        try:
            while missing:
                self._hand_out(sender, waiting)
                look = min(LOOKS, self.limit)
                left = look if end is None else min(look, max(0.0, end - time.monotonic()))
                came = self._actors.arrived(left)
                self._tell_drift()
                if end is not None and not came and time.monotonic() >= end:
                    yield from (timed_out(works[k], "it did not answer in time") for k in sorted(missing))
                    return
                for k in self._overdue(works, missing, waiting):
                    yield timed_out(works[k], OVERDUE.format(self.limit))
                self._hand_out(sender, waiting)  # before anything is unpacked: an actor should not wait
                for one in came:
                    yield from self._results(one, works, missing, waiting)
        finally:
            self._actors.drop_busy()

    def close(self) -> None:
        self._actors.close()

    def _grouped(self, works: Sequence[Work], actors: int, most: int) -> Iterator[Group]:
        """Works in calls of about equal numbers of samples, so that each actor gets several; the largest first."""
        sizes = [self._size(work.client) for work in works]
        enough = sum(sizes) / (CALLS * actors)
        group: list[int] = []
        held = 0
        for k in sorted(range(len(works)), key=lambda k: -sizes[k]):
            group.append(k)
            held += sizes[k]
            if held >= enough or len(group) == most:
                yield tuple(group)
                group, held = [], 0
        if group:
            yield tuple(group)

    def _hand_out(self, sender: _Sender, waiting: deque[Group]) -> None:
        for actor in self._actors.idle():
            if not waiting:
                return
            group = waiting.popleft()
            self._actors.call(actor, group, *sender.job(group))

    def _tell_drift(self) -> None:
        for note in self._actors.notes[self._told :]:
            self.events.append({"event": DRIFT, "what": note})
        self._told = len(self._actors.notes)

    def _results(
        self, came: Came, works: Sequence[Work], missing: dict[int, int], waiting: deque[Group]
    ) -> Iterator[Done | Absent]:
        """The results of a call; if its actor died, its clients wait again."""
        if not came.lost:
            for k, parcel in zip(came.what, came.answer, strict=True):
                del missing[k]
                yield self._unpacked(works[k], parcel)
        elif not came.first:
            waiting.appendleft(came.what)
        else:
            for k in came.what:
                missing[k] += len(came.what) == 1 and not came.node_died
                again = missing[k] < TRIES
                self.events.append(died(came.worker, works[k].client, again))
                if again:
                    waiting.appendleft((k,))
                else:
                    del missing[k]
                    yield Absent(works[k].client, "its worker died twice")

    def _unpacked(self, work: Work, parcel: Parcel) -> Done | Absent:
        return received(self.memories, work.client, lambda: unpacked(*parcel))

    def _overdue(
        self, works: Sequence[Work], missing: dict[int, int], waiting: deque[Group]
    ) -> Iterator[int]:
        """Which works took longer than they may. Their actors are killed, and those that do not say what they do;
        whatever else these had to do waits again."""
        late = self._actors.busy(self.limit)
        for actor, said in zip(late, self._actors.look(late), strict=True):
            if said is not None and said[1] <= self.limit:
                continue
            found = self._culprit(actor, said)
            calls = self._actors.replace(actor)
            for call in reversed(calls[1:]):
                waiting.appendleft(call.what)
            left = [k for k in calls[0].what if k != found]
            waiting.extendleft((k,) for k in left)
            if found is not None:
                del missing[found]
                yield found

    def _culprit(self, actor: Actor, said: tuple[int, float] | None) -> int | None:
        """Which work an actor spends its time on; None if it does not say and has several."""
        group: Group = actor.calls[0].what
        if said is None:
            return group[0] if len(group) == 1 else None
        return group[said[0]]


class _Sender:
    """Jobs of one wave as they go to an actor. What several messages share is in the object store once."""

    def __init__(self, task: str, works: Sequence[Work], memories: HeldMemories, actors: Actors):
        self._task, self._works, self._memories, self._actors = task, works, memories, actors
        sent = Counter(_place(f.tensor) for work in works for f in fields(work.message))
        self._shared = {key for key, times in sent.items() if times > 1}
        self._put: dict[tuple[int, int], Any] = {}

    def job(self, group: Group) -> tuple[Any, ...]:
        """The arguments of a call: the task, the pickled works, where each of their arrays is, those of this call
        alone, and the shared ones."""
        content = [(self._works[k], self._memories.of(self._works[k].client)) for k in group]
        text, arrays = packed(content)
        order: list[int] = []
        own: list[np.ndarray] = []
        refs: list[Any] = []
        for array in arrays:
            key = array.ctypes.data, array.nbytes
            if key in self._shared:
                if key not in self._put:
                    self._put[key] = self._actors.put(array)
                refs.append(self._put[key])
                order.append(-len(refs))
            else:
                order.append(len(own))
                own.append(array)
        return self._task, text, order, own, *refs


def _most(works: Sequence[Work]) -> int:
    """How many clients a call has at most; their replies are about as large as their messages."""
    largest = max(sum(f.tensor.nbytes for f in fields(work.message)) for work in works)
    return max(1, min(MOST, LARGEST // max(1, largest)))


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


class Clients:
    """The guest of an actor: works as a worker does, and says which of its works it is at."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self._at, self._began = 0, time.monotonic()

    def look(self) -> tuple[int, float]:
        """Which work of the call is under way, and for how many seconds."""
        return self._at, time.monotonic() - self._began

    def do(
        self, task: str, text: bytes, order: list[int], own: list[np.ndarray], *shared: np.ndarray
    ) -> list[Parcel]:
        """The results of these works, each packed apart."""
        torch.set_num_threads(1)  # sums split over threads have other bits
        arrays = [own[place] if place >= 0 else shared[-place - 1] for place in order]
        results = []
        for k, (work, memory) in enumerate(unpacked(text, arrays)):
            self._at, self._began = k, time.monotonic()
            results.append(self._result(task, work, memory))
        return results

    def _result(self, task: str, work: Work, memory: Any) -> Parcel:
        answer: tuple[bool, Any]
        try:
            answer = False, perform(self._worker, task, work, memory)
        except Error as error:
            error.add_note(traceback.format_exc())  # a cause does not travel
            answer = True, error
        except Exception:
            answer = True, RuntimeError(f"in an actor, for client {work.client}:\n{traceback.format_exc()}")
        try:
            return packed(answer)
        except Exception as error:
            why = f"its result cannot be sent: {type(error).__name__}: {error}"
            return packed((False, (failed(work.client, why, error), None)))


class _Packer(ForkingPickler):
    """Tensors travel as arrays, and arrays beside the pickle."""

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return torch.from_numpy, (item.detach().cpu().numpy(),)
        return NotImplemented


def packed(content: Any) -> Parcel:
    """A pickle, and the arrays that go beside it without a copy."""
    arrays: list[np.ndarray] = []

    def stays(buffer: Any) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL:
            return True
        arrays.append(np.frombuffer(raw, np.uint8))
        return False

    text = io.BytesIO()
    _Packer(text, 5, True, stays).dump(content)
    return text.getvalue(), arrays


def unpacked(text: bytes, arrays: Sequence[np.ndarray]) -> Any:
    """The inverse of `packed`, in memory of its own: the object store's cannot be written to, and a hook that
    does so should be told, not end the process."""
    return ForkingPickler.loads(text, buffers=[_copied(array) for array in arrays])


def _copied(array: np.ndarray) -> np.ndarray:
    own: np.ndarray = torch.empty(array.nbytes, dtype=torch.uint8).numpy()  # aligned as torch's tensors are
    own[:] = array
    return own
