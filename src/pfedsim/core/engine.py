"""Where clients' work is done, as the loops see it: tasks by name go out, results come back in any order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pfedsim.core.job import Work
from pfedsim.core.method import Memory, Reply

if TYPE_CHECKING:
    from pfedsim.core.scoring import ClientScore


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
    """In place of a result: this client could not do its work, or its `reply` must not count."""

    client: int
    why: str
    event: str = "absent"
    reply: Reply | None = None


class Memories(Protocol):
    """What clients remember between rounds, wherever they are. A memory counts once the loop has accepted the
    reply that came with it; after a rejected, late or lost reply the last accepted one stays."""

    def accept(self, clients: Collection[int]) -> None:
        """The replies of these clients were accepted; whatever else came since the last call is dropped."""

    def held(self) -> Mapping[int, Memory]:
        """The accepted memories that this engine can save: a snapshot."""

    def elsewhere(self) -> Sequence[int]:
        """Clients whose memories others hold."""

    def restore(self, held: Mapping[int, Memory]) -> None:
        """Takes back what `held` gave."""


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

    def elsewhere(self) -> Sequence[int]:
        return ()

    def restore(self, held: Mapping[int, Memory]) -> None:
        self._accepted, self._offered = dict(held), {}


def late(work: Work, reply: Reply | None = None) -> Absent:
    """This client's reply comes after the deadline, or never."""
    return Absent(work.client, "its reply came too late", "late", reply)
