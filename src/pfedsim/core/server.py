"""The rounds: `run_rounds` is the only round loop. It knows no method's name and no engine's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pfedsim.core.client import hook
from pfedsim.core.engine import Absent, Done, Engine
from pfedsim.core.guard import absurd, objection
from pfedsim.core.job import Work
from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState
from pfedsim.core.seeds import generator
from pfedsim.core.wire import Wire
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor

MOST_WAVES = 100  # in a round; more is a method that never comes to train
Traffic = dict[int, tuple[int, int]]  # client -> bytes received, bytes sent
Event = dict[str, Any]
Observer = Callable[[Work, Done | Absent], None]


@dataclass(frozen=True, eq=False)
class Coordinator:
    """The server's side of a run. `declared`: how many train samples each client said it holds. `observers`
    hear of every client's work and result: who times or counts needs no engine of its own. `deadline`: seconds
    after which a wave ends without those who have not answered."""

    method: Method
    fed: Fed
    wire: Wire
    engine: Engine
    declared: Sequence[int] | None = None
    observers: tuple[Observer, ...] = ()
    deadline: float | None = None

    def begin(self) -> ServerState:
        """The server before the first round; nobody remembers anything."""
        self.engine.memories.restore({})
        with hook(self.method, "init"):
            rng = generator(self.fed.settings.seed, "init")
            server = _checked(self.fed, self.method.init(self.fed, self.fed.initial, rng))
        return replace(server, model=self.wire.sealed_model(server.model))

    def snapshot(self, server: ServerState) -> State:
        """All that this side can save of the run."""
        memories = self.engine.memories
        return State(server, memories.held(), tuple(memories.elsewhere()))

    def restore(self, state: State) -> ServerState:
        """Takes up a saved state; returns the server to go on from."""
        lost = sorted({*state.elsewhere} - {*self.engine.memories.elsewhere()})
        if lost:
            raise Error(
                f"clients {', '.join(map(str, lost))} keep their memories themselves and are not reached here, so "
                "the run cannot continue"
            )
        self.engine.memories.restore(state.memories)
        return state.server


@dataclass(frozen=True, eq=False)
class State:
    """A run at the end of a round, as far as its engine holds it: enough to go on from where nobody's memory
    is `elsewhere`."""

    server: ServerState
    memories: Mapping[int, Memory] = field(default_factory=dict)
    elsewhere: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Round:
    """What came of one round."""

    server: ServerState
    asked: tuple[int, ...]
    """the clients that were asked to train"""
    replies: tuple[Reply, ...]
    traffic: Traffic
    """bytes down and up of every client that was spoken to, in any wave"""
    events: tuple[Event, ...]


def run_rounds(
    side: Coordinator, schedule: Sequence[Sequence[int]], server: ServerState
) -> Iterator[Round]:
    """From `server` to the end of the schedule, a `Round` at a time; the caller scores, saves and reports in
    between."""
    method, fed = side.method, side.fed
    for sampled in schedule[server.round :]:
        traffic: Traffic = {}
        events: list[Event] = []
        task, waves = "", 0
        while task != "train":
            # 1. Plan: the method names the wave's task and clients; "train" ends the round.
            with hook(method, "plan", round=server.round):
                task, clients = method.plan(fed, server, sampled)
                if (waves := waves + 1) > MOST_WAVES:
                    raise RuntimeError(
                        f"{MOST_WAVES} waves in one round and still no 'train' (the last was {task!r})"
                    )
            # 2. Send: every client gets its message.
            messages = send(side, server, clients, task)
            works = [Work(i, server.round, messages[i], task) for i in sorted(messages)]
            # 3. Work: results come in any order and are taken in the order of clients.
            results = {done.client: done for done in side.engine.run("train", works, side.deadline)}
            # 4. Guard: what cannot be used becomes an event.
            good = _accepted(side, [(work, results[work.client]) for work in works], traffic, events)
            # 5. Accept: from here on the memories that came with these replies count.
            side.engine.memories.accept([reply.client for reply in good])
            # 6. Aggregate; a method must learn that it asked in vain, or it would ask for ever.
            if good or task != "train":
                rng = generator(fed.settings.seed, f"aggregate/{task}", server.round)
                with hook(method, "aggregate", round=server.round):
                    server = _checked(fed, method.aggregate(fed, server, task, good, rng))
            events.extend({"round": server.round + 1, **event} for event in side.engine.events)
            side.engine.events.clear()
        server = replace(server, round=server.round + 1)
        yield Round(server, tuple(sorted(messages)), tuple(good), traffic, tuple(events))


def _accepted(
    side: Coordinator, wave: Sequence[tuple[Work, Done | Absent]], traffic: Traffic, events: list[Event]
) -> list[Reply]:
    """The replies that may be aggregated, in the order of clients; counts bytes and writes events."""
    good: dict[int, tuple[Message, Reply]] = {}
    for work, done in wave:
        for observer in side.observers:
            observer(work, done)
        reply = done.reply if isinstance(done, Absent) else done.result
        assert reply is None or isinstance(reply, Reply)
        down, up = traffic.get(work.client, (0, 0))
        sent = 0 if reply is None else side.wire.bytes(reply)
        traffic[work.client] = down + side.wire.bytes(work.message), up + sent
        about = {"round": work.round + 1, "client": work.client}
        if isinstance(done, Absent):
            events.append({"event": done.event, **about, "why": done.why})
            continue
        assert reply is not None
        most = math.inf if side.declared is None else side.declared[work.client]
        with hook(side.method, "replies", round=work.round):
            why = objection(side.method, side.fed, side.wire, work.client, work.message, reply, most)
        if why := why or done.flaw:
            events.append({"event": "rejected", **about, "why": why})
        else:
            good[work.client] = work.message, reply
    if side.fed.settings.guard != "off":
        rejects = side.fed.settings.guard == "reject"
        for client, why in absurd(good.values(), side.wire).items():
            what = "rejected" if rejects else "absurd"
            events.append({"event": what, "round": wave[0][0].round + 1, "client": client, "why": why})
            if rejects:
                del good[client]
    return [reply for _, reply in good.values()]


def send(side: Coordinator, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
    """The method's messages as they leave the server."""
    with hook(side.method, "send", round=server.round):
        messages = side.method.send(side.fed, server, clients, task)
        if not isinstance(messages, dict) or set(messages) != set(clients):
            raise TypeError(
                f"it gave {messages!r:.60}, expected a message for each of clients {list(clients)}"
            )
    return side.wire.sealed_messages(messages)


def _checked(fed: Fed, returned: Any) -> ServerState:
    """A state that a hook returned; a model of another size would fail far from its cause."""
    if not isinstance(returned, ServerState):
        raise TypeError(f"it gave {type(returned).__name__}, expected a ServerState")
    for name, model in _models(returned):
        if model.shape != fed.initial.shape:
            raise ValueError(f"{name} has shape {tuple(model.shape)}, expected {tuple(fed.initial.shape)}")
    return returned


def _models(server: ServerState) -> Iterator[tuple[str, Tensor]]:
    yield "its model", server.model
    if server.personal is not None:
        yield "its default row", server.personal.default
        yield from ((f"client {i}'s row", server.personal[i]) for i in server.personal.ids)
