"""The rounds: `run_rounds` is the only round loop. It knows no method's name and no engine's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from pfedsim.core.client import hook, run_client, sealed
from pfedsim.core.guard import absurd, objection
from pfedsim.core.job import Absent as Absent
from pfedsim.core.job import Work
from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState
from pfedsim.core.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

MOST_WAVES = 100  # in a round; more is a method that never comes to train
Traffic = dict[int, tuple[int, int]]  # client -> bytes received, bytes sent


class Engine(Protocol):
    """Where clients' work is done: results come in the order of the works; what befell it on the way is in
    `events`."""

    events: list[dict[str, Any]]

    def map(
        self, function: Callable[..., Any], works: Sequence[Work], *arguments: Any
    ) -> Iterable[Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class State:
    """All that a run is at the end of a round: enough to go on from."""

    server: ServerState
    memories: Mapping[int, Memory] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Round:
    """What came of one round."""

    state: State
    asked: tuple[int, ...]
    """the clients that were asked to train"""
    replies: tuple[Reply, ...]
    traffic: Traffic
    """bytes down and up of every client that was spoken to, in any wave"""
    events: tuple[dict[str, Any], ...]


def begin(method: Method, fed: Fed, kept: Tensor) -> State:
    """The state before the first round."""
    with hook(method, "init"):
        server = _server(method.init(fed, fed.initial, generator(fed.settings.seed, "init")))
    return State(replace(server, model=sealed(kept, {"model": server.model})["model"]))


def run_rounds(
    method: Method,
    fed: Fed,
    kept: Tensor,
    engine: Engine,
    schedule: Sequence[Sequence[int]],
    state: State,
    declared: Sequence[int] | None = None,
) -> Iterator[Round]:
    """From `state` to the end of the schedule, a `Round` at a time; the caller scores, saves and reports in
    between. `declared`: how many train samples each client said it holds."""
    for sampled in schedule[state.server.round :]:
        traffic: Traffic = {}
        events: list[dict[str, Any]] = []
        task, waves = "", 0
        while task != "train":
            with hook(method, "plan", round=state.server.round):
                task, clients = method.plan(fed, state.server, sampled)
                if (waves := waves + 1) > MOST_WAVES:
                    raise RuntimeError(
                        f"{MOST_WAVES} waves in one round and still no 'train' (the last was {task!r})"
                    )
            messages = send(method, fed, kept, state, clients, task)
            works = [
                Work(i, state.server.round, messages[i], state.memories.get(i, Memory()), task)
                for i in sorted(messages)
            ]
            good: dict[int, tuple[Message, Reply, Memory]] = {}
            for work, result in zip(works, engine.map(run_client, works), strict=True):
                down, up = traffic.get(work.client, (0, 0))
                reply = result.reply if isinstance(result, Absent) else result[0]
                sent = 0 if reply is None else reply_bytes(reply, kept)
                traffic[work.client] = down + message_bytes(work.message, kept), up + sent
                if isinstance(result, Absent):
                    events.append(
                        {
                            "event": result.event,
                            "round": work.round,
                            "client": work.client,
                            "why": result.why,
                        }
                    )
                    continue
                reply, memory = result
                most = math.inf if declared is None else declared[work.client]
                with hook(method, "replies", round=work.round):
                    why = objection(method, fed, work.client, work.message, reply, memory, kept, most)
                if why is None:
                    good[work.client] = work.message, reply, memory
                else:
                    events.append(
                        {"event": "rejected", "round": work.round, "client": work.client, "why": why}
                    )
            if fed.settings.guard != "off":
                for client, why in absurd(
                    [(message, reply) for message, reply, _ in good.values()], kept
                ).items():
                    rejects = fed.settings.guard == "reject"
                    events.append(
                        {
                            "event": "rejected" if rejects else "absurd",
                            "round": state.server.round,
                            "client": client,
                            "why": why,
                        }
                    )
                    if rejects:
                        del good[client]
            accepted = [reply for _, reply, _ in good.values()]
            memories = {**state.memories, **{i: memory for i, (_, _, memory) in good.items()}}
            server = state.server
            if (
                accepted or task != "train"
            ):  # a method must learn that it asked in vain, or it would ask for ever
                rng = generator(fed.settings.seed, f"aggregate/{task}", server.round)
                with hook(method, "aggregate", round=server.round):
                    server = _server(method.aggregate(fed, server, task, accepted, rng))
            state = State(server, memories)
            events.extend(engine.events)
            engine.events.clear()
        state = replace(state, server=replace(state.server, round=state.server.round + 1))
        yield Round(state, tuple(sorted(messages)), tuple(accepted), traffic, tuple(events))


def _server(returned: Any) -> ServerState:
    if not isinstance(returned, ServerState):
        raise TypeError(f"it gave {type(returned).__name__}, expected a ServerState")
    return returned


def send(
    method: Method, fed: Fed, kept: Tensor, state: State, clients: Sequence[int], task: str
) -> dict[int, Message]:
    """The method's messages as they leave the server."""
    with hook(method, "send", round=state.server.round):
        messages = method.send(fed, state.server, clients, task)
        if not isinstance(messages, dict) or set(messages) != set(clients):
            raise TypeError(
                f"it gave {messages!r:.60}, expected a message for each of clients {list(clients)}"
            )
    models: dict[int, Tensor] = {}  # a model sent to many is sealed once
    for message in messages.values():
        if id(message.model) not in models:
            models[id(message.model)] = sealed(kept, {"model": message.model})["model"]
    return {
        i: replace(m, model=models[id(m.model)], extra=sealed(kept, m.extra)) for i, m in messages.items()
    }


def message_bytes(message: Message, kept: Tensor) -> int:
    return _bytes({"model": message.model, **message.extra}, kept)


def reply_bytes(reply: Reply, kept: Tensor) -> int:
    return _bytes(({} if reply.model is None else {"model": reply.model}) | dict(reply.extra), kept)


def _bytes(tensors: Mapping[str, Tensor], kept: Tensor) -> int:
    """What these tensors are on the wire: kept entries of models do not travel."""
    size = len(kept)
    travels = size - int(kept.count_nonzero())
    total = 0
    for tensor in tensors.values():
        entries = (
            tensor.numel() // size * travels if tensor.ndim and tensor.shape[-1] == size else tensor.numel()
        )
        total += entries * tensor.element_size()
    return total
