"""The rounds: `run_rounds` is the only round loop. It knows no method's name and no engine's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pfedsim.core import guard as guards
from pfedsim.core import optimisers, robust
from pfedsim.core.engine import Absent, Done, Engine, refuse_if_all_failed
from pfedsim.core.guard import FEWEST, Lengths, far, flaw, lengths, longest, objection
from pfedsim.core.hooks import hook
from pfedsim.core.job import Work
from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState
from pfedsim.core.purity import public, unchanged
from pfedsim.core.rows import Rows, on_cores
from pfedsim.core.seeds import generator
from pfedsim.core.wire import Wire
from pfedsim.errors import Diverged, HookError

if TYPE_CHECKING:
    from torch import Tensor

MOST_WAVES = 100  # in a round; more is a method that never comes to train
Traffic = dict[int, tuple[int, int]]  # client -> bytes received, bytes sent
REJECTED = "rejected"  # the event of a reply that must not count
ABSURD = "absurd"  # the event of a reply that moved too far and counts
NO_EFFECT = "no effect"  # the event of a defence that the method does not use
Event = dict[str, Any]
Good = dict[int, Reply]  # by client
Observer = Callable[[Work, Done | Absent], None]


@dataclass(frozen=True, eq=False)
class Coordinator:
    """The server's side of a run. `declared`: how many train samples each client said it holds. `observers`
    hear of every client's work and result: who times or counts needs no engine of its own. `deadline`: seconds
    after which a wave ends without those who have not answered. `cores`: of this machine, which means may use while
    no client works."""

    method: Method
    fed: Fed
    wire: Wire
    engine: Engine
    declared: Sequence[float] | None = None
    observers: tuple[Observer, ...] = ()
    deadline: float | None = None
    cores: int = 1

    def begin(self) -> ServerState:
        """The server before the first round; nobody remembers anything."""
        self.engine.memories.restore({})
        with hook(self.method, "init", **public(self.fed)):
            rng = generator(self.fed.settings.seed, "init")
            server = _checked(self, None, self.method.init(self.fed, self.fed.initial, rng))
        return replace(server, model=self.wire.sealed_model(server.model))

    def snapshot(self, server: ServerState) -> State:
        """All that this side can save of the run."""
        memories = self.engine.memories
        return State(server, memories.held(), memories.elsewhere())

    def restore(self, state: State) -> ServerState:
        """Takes up a saved state; returns the server to go on from."""
        self.engine.memories.restore(state.memories, state.elsewhere)
        return state.server


@dataclass(frozen=True, eq=False)
class State:
    """A run at the end of a round, as far as its engine holds it. `elsewhere`: the marks of the memories that others
    hold, by client."""

    server: ServerState
    memories: Mapping[int, Memory] = field(default_factory=dict)
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    best: State | None = None
    """the state of an earlier round that may still be the one to report"""


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's result, and what the server found in it. `why`: it must not be aggregated, or nothing."""

    work: Work
    done: Done | Absent
    reply: Reply | None = None
    why: str = ""
    lengths: Lengths = field(default_factory=dict)


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
    failing: set[int] = set()  # clients whose work failed while nobody else's reply could be used
    proven = bool(side.engine.memories.held() or side.engine.memories.elsewhere())
    for sampled in schedule[server.round :]:
        traffic: Traffic = {}
        events: list[Event] = []
        task, waves = "", 0
        while task != "train":
            # 1. Plan: the method names the wave's task and clients; "train" ends the round.
            with hook(method, "plan", round=server.round, server=server, **public(fed)):
                task, clients = method.plan(fed, server, sampled)
                if (waves := waves + 1) > MOST_WAVES:
                    raise RuntimeError(
                        f"{MOST_WAVES} waves in one round and still no 'train' (the last was {task!r})"
                    )
            server, wave, good = _waved(side, server, task, clients, traffic, events)
            proven = proven or bool(good)
            absent = [one.done for one in wave if isinstance(one.done, Absent)]
            failing |= {done.client for done in absent if done.trace}
            if len(wave) >= FEWEST or (not proven and len(failing) >= min(2, fed.clients)):
                refuse_if_all_failed(absent, len(wave))
        server = replace(server, round=server.round + 1)
        asked = tuple(one.work.client for one in wave)
        yield Round(server, asked, tuple(good.values()), traffic, tuple(events))
        del wave, good, absent  # their models make room for the next round's


def last_wave(side: Coordinator, server: ServerState) -> Round | None:
    """After the last round: the method's task `last` for every client; None where it has none."""
    if not (task := side.method.last):
        return None
    traffic: Traffic = {}
    events: list[Event] = []
    server, wave, good = _waved(side, server, task, range(side.fed.clients), traffic, events)
    refuse_if_all_failed([one.done for one in wave if isinstance(one.done, Absent)], len(wave))
    asked = tuple(one.work.client for one in wave)
    return Round(server, asked, tuple(good.values()), traffic, tuple(events))


def _waved(
    side: Coordinator,
    server: ServerState,
    task: str,
    clients: Sequence[int],
    traffic: Traffic,
    events: list[Event],
) -> tuple[ServerState, list[Answer], Good]:
    """The server after one wave, every client's answer, and the replies that counted."""
    # 2. Send: every client gets its message.
    messages = send(side, server, clients, task)
    works = [Work(i, server.round, messages[i], task) for i in sorted(messages)]
    # 3. Work: results come in any order, are looked at as they come and taken in the order of clients.
    with unchanged("the work of a client", server.round, server=server, messages=messages):
        wave = _worked(side, works, events)
    # 4. Guard: what cannot be used becomes an event.
    good = _usable(side, wave, traffic, events)
    moved = _judge(side, server, wave, good, events)
    # 5. Aggregate; a method must learn that it asked in vain, or it would ask for ever.
    if good or task != "train":
        means = robust.taken
        server = _aggregated(side, server, task, good, moved, events)
        if task == "train" and not server.round and side.fed.settings.defence and robust.taken == means:
            name = type(side.method).__name__
            why = f"{name}.aggregate does not call self.mean, so defence.rule has no effect"
            events.append({"event": NO_EFFECT, "round": 1, "why": why})
        chosen = side.fed.settings.server_optimiser
        if task == "train" and not server.round and chosen is not None and not server.moments:
            name = type(side.method).__name__
            why = (
                f"{name}.aggregate leaves the common model as it is, so server_optimiser.rule has no effect"
            )
            events.append({"event": NO_EFFECT, "round": 1, "why": why})
    # 6. Accept: from here on the memories that came with these replies count.
    side.engine.memories.accept(list(good))
    events.extend({"round": server.round + 1, **event} for event in side.engine.events)
    side.engine.events.clear()
    return server, wave, good


def _worked(side: Coordinator, works: Sequence[Work], events: list[Event]) -> list[Answer]:
    """Every client's answer in the order of clients; one that does not come is Absent, one that nobody asked for an
    event."""
    asked = {work.client: work for work in works}
    answers: dict[int, Answer] = {}
    for done in side.engine.run("train", works, side.deadline):
        if done.client in asked and done.client not in answers:
            answers[done.client] = _looked_at(side, asked[done.client], done)
        else:
            why = "this result came twice" if done.client in asked else "nobody asked for this result"
            events.append(
                {"event": REJECTED, "round": works[0].round + 1, "client": done.client, "why": why}
            )
    wave = []
    for work in works:
        none = Answer(work, Absent(work.client, "no result came"))
        wave.append(answers.get(work.client, none))
        for observer in side.observers:
            observer(work, wave[-1].done)
    return wave


def _looked_at(side: Coordinator, work: Work, done: Done | Absent) -> Answer:
    """A result and what is wrong with it. This is done as it comes, while others still work."""
    given = done.reply if isinstance(done, Absent) else done.result
    if given is None and isinstance(done, Absent):
        return Answer(work, done)
    try:
        reply = side.wire.proper(given)
    except TypeError as error:
        return Answer(work, done, None, str(error))
    if isinstance(done, Absent):
        return Answer(work, done, reply)
    moved = lengths(work.message, reply, side.wire)
    most = math.inf if side.declared is None else side.declared[work.client]
    with hook(side.method, "replies", round=work.round):
        why = objection(side.method, side.fed, side.wire, work, reply, moved, most) or done.flaw
    return Answer(work, done, reply, why, moved)


def _usable(side: Coordinator, wave: Sequence[Answer], traffic: Traffic, events: list[Event]) -> Good:
    """The replies that are what the method declares, in the order of clients; counts bytes and writes events."""
    good: Good = {}
    for one in wave:
        about = {"round": one.work.round + 1, "client": one.work.client}
        down, up = traffic.get(one.work.client, (0, 0))
        sent = 0 if one.reply is None else side.wire.bytes(one.reply)
        traffic[one.work.client] = down + side.wire.bytes(one.work.message), up + sent
        if isinstance(one.done, Absent):
            events.append({"event": one.done.event, **about, "why": one.done.why})
        elif one.why or one.reply is None:
            events.append({"event": REJECTED, **about, "why": one.why})
        else:
            good[one.work.client] = one.reply
    return good


def _judge(
    side: Coordinator, server: ServerState, wave: Sequence[Answer], good: Good, events: list[Event]
) -> Mapping[str, Mapping[int, float]]:
    """How far every usable model moved; takes out those that moved absurdly far."""
    guard, wire = side.fed.settings.guard, side.wire
    if guard == "off":
        return {}
    moved: dict[str, dict[int, float]] = {}
    for one in wave:
        if one.work.client in good:
            for name, length in one.lengths.items():
                moved.setdefault(name, {})[one.work.client] = length
    for client, (times, why) in far(
        moved, server.steps, lambda: max(wire.norm(server.model), wire.travels**0.5)
    ).items():
        rejects = guard == "reject" or times > guards.ABSURD
        what = REJECTED if rejects else ABSURD
        events.append({"event": what, "round": server.round + 1, "client": client, "why": why})
        if rejects:
            del good[client]
    return moved


def _aggregated(
    side: Coordinator,
    server: ServerState,
    task: str,
    good: Good,
    moved: Mapping[str, Mapping[int, float]],
    events: list[Event],
) -> ServerState:
    """The server after a wave. If the method cannot aggregate all replies but all except one, that one is rejected."""

    def attempt(clients: Sequence[int]) -> ServerState:
        replies = [good[i] for i in clients]
        rng = generator(side.fed.settings.seed, f"aggregate/{task}", server.round)
        given: dict[str, Any] = {"server": server, "replies": replies, **public(side.fed)}
        with hook(side.method, "aggregate", round=server.round, **given), on_cores(side.cores):
            new = _checked(side, server, side.method.aggregate(side.fed, server, task, replies, rng))
        return replace(new, steps=longest(server.steps, moved, clients))

    def of_all_or_all_except_one() -> ServerState:
        try:
            return attempt(list(good))
        except HookError as error:
            for culprit in list(good) if len(good) > 1 else ():
                try:
                    new = attempt([i for i in good if i != culprit])
                except HookError:
                    continue
                why = f"without it the wave can be aggregated, with it {error}"
                events.append({"event": REJECTED, "round": server.round + 1, "client": culprit, "why": why})
                del good[culprit]
                return new
            raise

    return _stepped(side, server, of_all_or_all_except_one(), task)


def _stepped(side: Coordinator, before: ServerState, new: ServerState, task: str) -> ServerState:
    """The state after the server optimiser's step, where there is one and the common model was trained."""
    chosen, was = side.fed.settings.server_optimiser, new.model
    if chosen is None or task != "train" or was is before.model:
        return replace(new, moments=before.moments)
    layout = side.fed.layout
    model, moments = optimisers.served(chosen, before.model, was, before.moments, layout.trainable)
    personal = new.personal
    if personal is not None and personal.default is was:  # the switch of a two-stage method
        personal = Rows(model, {i: personal[i] for i in personal.ids})
    new = replace(new, model=model, personal=personal, moments=moments)
    if why := flaw(side.fed, side.wire, before, new):
        raise Diverged(
            f"server_optimiser.rule = {chosen.rule!r}: after its step {why}; lower server_optimiser.lr"
        )
    return new


def send(side: Coordinator, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
    """The method's messages as they leave the server."""
    given: dict[str, Any] = {"server": server, **public(side.fed)}
    with hook(side.method, "send", round=server.round, **given), on_cores(side.cores):
        messages = side.method.send(side.fed, server, clients, task)
        if not isinstance(messages, dict) or set(messages) != set(clients):
            raise TypeError(
                f"it gave {messages!r:.60}, expected a message for each of clients {list(clients)}"
            )
    return side.wire.sealed_messages(messages)


def _checked(side: Coordinator, before: ServerState | None, returned: Any) -> ServerState:
    """A state that a hook returned; a model of another size, or one that is not finite, would fail far from its
    cause."""
    if not isinstance(returned, ServerState):
        raise TypeError(f"it gave {type(returned).__name__}, expected a ServerState")
    shape = side.fed.initial.shape
    for name, model in _models(returned):
        if model.shape != shape:
            raise ValueError(f"{name} has shape {tuple(model.shape)}, expected {tuple(shape)}")
    if why := flaw(side.fed, side.wire, before, returned):
        raise FloatingPointError(why)
    return returned


def _models(server: ServerState) -> Iterator[tuple[str, Tensor]]:
    yield "its model", server.model
    if server.personal is not None:
        yield "its default row", server.personal.default
        yield from ((f"client {i}'s row", server.personal[i]) for i in server.personal.ids)
