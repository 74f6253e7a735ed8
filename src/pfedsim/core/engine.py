"""Where clients' work is done, as the loops see it: tasks by name go out, results come back in any order."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pfedsim.core.job import Work
from pfedsim.core.method import Memory, Reply
from pfedsim.errors import Error, HookError

if TYPE_CHECKING:
    from pfedsim.core.scoring import ClientScore


TIMED_OUT = "timed out"
DIED = "worker died"  # the event; its client runs again
IGNORED = "ignored"  # the event of an answer that nobody waits for
TRIES = 2  # a client whose worker dies twice is absent


@dataclass(frozen=True, eq=False)
class Done:
    """A client's result. `flaw`: what is wrong with the memory that came with it, which stays at the client.
    `seconds` and `cpu_seconds`: of the whole task."""

    client: int
    result: Reply | ClientScore
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    flaw: str = ""


@dataclass(frozen=True, eq=False)
class Absent:
    """In place of a result: this client could not do its work, or its `reply` must not count. `trace`: where in
    the code it failed, if it was there."""

    client: int
    why: str
    event: str = "absent"
    reply: Reply | None = None
    trace: str = ""


class Memories(Protocol):
    """What clients remember between rounds, wherever they are. A memory counts once the loop has accepted the
    reply that came with it; after a rejected, late or lost reply the last accepted one stays."""

    def accept(self, clients: Collection[int]) -> None:
        """The replies of these clients were accepted; whatever else came since the last call is dropped."""

    def held(self) -> Mapping[int, Memory]:
        """The accepted memories that this engine can save: a snapshot."""

    def elsewhere(self) -> Mapping[int, str]:
        """Clients whose memories others hold, each with the mark under which its holder finds the accepted one: a
        snapshot."""

    def restore(self, held: Mapping[int, Memory], elsewhere: Mapping[int, str] | None = None) -> None:
        """Takes back what `held` and `elsewhere` gave."""

    def may_return_to(self, marks: Callable[[], Iterable[Mapping[int, str]]]) -> None:
        """From now on holders keep every memory that `marks` names: the run may be restored to any of these."""


class Engine(Protocol):
    """`run` yields one Done or Absent for each work, in any order; after `deadline` seconds those that are
    still missing are Absent. What befell the engine on the way is in `events`."""

    events: list[dict[str, Any]]

    @property
    def memories(self) -> Memories: ...

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]: ...

    def close(self) -> None: ...


class HeldMemories:
    """Memories beside the engine, in its process."""

    def __init__(self) -> None:
        self._accepted: dict[int, Memory] = {}
        self._offered: dict[int, Memory] = {}

    def of(self, client: int) -> Memory:
        return self._accepted.get(client) or Memory()

    def offer(self, client: int, memory: Memory) -> None:
        """Came with a reply that nobody has accepted yet."""
        self._offered[client] = memory

    def accept(self, clients: Collection[int]) -> None:
        for client in clients:
            self._accepted[client] = self._offered[client]
        self._offered = {}

    def held(self) -> Mapping[int, Memory]:
        return dict(self._accepted)

    def elsewhere(self) -> Mapping[int, str]:
        return {}

    def restore(self, held: Mapping[int, Memory], elsewhere: Mapping[int, str] | None = None) -> None:
        if elsewhere:
            raise Error(
                f"clients {', '.join(map(str, sorted(elsewhere)))} keep their memories themselves and are not reached "
                "here, so the run cannot continue"
            )
        self._accepted, self._offered = dict(held), {}

    def may_return_to(self, marks: Callable[[], Iterable[Mapping[int, str]]]) -> None:
        """Memories are values here, so whoever may come back to one holds it."""


def received(
    memories: HeldMemories, client: int, unpacked: Callable[[], tuple[bool, Any]]
) -> Done | Absent:
    """What a worker in another process sent for this client: whether it raised, and its error or result with the
    memory. An answer that cannot be read costs this client only."""
    try:
        raised, result = unpacked()
    except Exception as error:
        return failed(client, f"its result cannot be read: {type(error).__name__}: {error}", error)
    if raised:
        raise result
    done, memory = result
    if memory is not None:
        memories.offer(done.client, memory)
    return done  # type: ignore[no-any-return]


def died(worker: object, client: int, again: bool) -> dict[str, Any]:
    """The event of a worker that died over this client's work."""
    then = "is run again" if again else "counts as absent"
    return {"event": DIED, "worker": worker, "client": client, "then": then}


class Wrapping:
    """An engine around another one, whose memories and events are those of the inner one."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.events = engine.events

    @property
    def memories(self) -> Memories:
        return self._engine.memories

    def close(self) -> None:
        self._engine.close()


def timed_out(work: Work, why: str) -> Absent:
    """This client took longer than it may."""
    return Absent(work.client, why, TIMED_OUT)


def failed(client: int, why: str, error: BaseException) -> Absent:
    """This client's work ended with an error."""
    trace = "".join(traceback.format_exception(error))
    if os.environ.get("PFEDSIM_DEBUG"):
        print(trace, file=sys.stderr)
    return Absent(client, why, trace=trace)


def refuse_if_all_failed(absent: Collection[Absent], asked: int) -> None:
    """One client whose work fails is absent. If it fails for all of several, the method is wrong: that stops the
    run with the first failure."""
    broken = [one for one in absent if one.trace]
    if broken and len(broken) == asked:
        error = HookError(broken[0].why)
        error.add_note(broken[0].trace)
        raise error
