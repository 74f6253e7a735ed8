"""What a reply must be before it is aggregated, and a server's state before it is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from pfedsim.core.job import Work
from pfedsim.core.method import Fed, Message, Method, Reply, ServerState
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.wire import Field, Wire, fields

FAR = 100  # times as far as others: beyond what uneven clients cause, below an exploding learning rate
ABSURD = 10_000  # times as far: no training explains it
FEWEST = 3  # clients that have a median to speak of
Steps = Mapping[int, float]  # by client
Lengths = Mapping[str, float]  # by name of a model


def objection(
    method: Method,
    fed: Fed,
    wire: Wire,
    work: Work,
    reply: Reply,
    lengths: Lengths,
    declared: float = math.inf,
) -> str | None:
    """Why this proper reply to `work` must not be aggregated, or None: its own; to this task; exact names and
    shapes; finite where it was sent; a loss that is a number; at most as many samples as the client `declared`.
    `lengths`: of this reply; a model whose length is finite is so itself."""
    if reply.client != work.client:
        return f"it says that it comes from client {reply.client}"
    if (reply.round, reply.task) != (work.round, work.purpose):
        if not reply.task:
            return "it does not say what it answers: make it with job.reply"
        return f"it answers {reply.task!r} of round {reply.round + 1}"
    expected = method.replies(fed, work.message)
    carried = fields(reply)
    if {field.name for field in carried} != set(expected):
        return f"it holds {sorted(field.name for field in carried)}, expected {sorted(expected)}"
    for field in carried:
        name, tensor = field.name, field.tensor
        if tuple(tensor.shape) != tuple(expected[name]):
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name])}"
        if not math.isfinite(lengths.get(name, math.inf)) and not wire.is_finite(field):
            return f"{name} is not finite" + _where(fed, field, wire)
    if not (math.isfinite(reply.weight) and reply.weight > 0):
        return f"its weight is {reply.weight}"
    if reply.weight > declared:
        return f"its weight is {reply.weight:g}, but the client declared {declared:g} samples"
    if not math.isfinite(reply.info.get("loss", 0.0)):
        return f"its training loss is {reply.info['loss']}"
    return None


def lengths(message: Message, reply: Reply, wire: Wire) -> Lengths:
    """How far the model of a proper reply moved from the one that was sent; how long its further models are."""
    starts = {"model": message.model}
    return {f.name: wire.norm(f.tensor, starts.get(f.name)) for f in fields(reply) if f.is_model}


def far(
    moved: Mapping[str, Steps], before: Steps, model: Callable[[], float]
) -> dict[int, tuple[float, str]]:
    """Clients whose models moved more than FAR times as far as others: how many times, and a sentence.

    `before`: every client's longest accepted step; `model`: asked for the length of the model that was sent. A
    client is compared with the median of the wave and of all clients before; where too few are known, with its
    own past; where it has none, with the model itself."""
    found: dict[int, tuple[float, str]] = {}
    for name, by_client in moved.items():
        past = before if name == "model" else {}
        medians = [median(known.values()) for known in (by_client, past) if len(known) >= FEWEST]
        for client, length in by_client.items():
            usual, whose = max(medians, default=0.0), "the median of the clients'"
            if not usual:
                usual, whose = past.get(client, 0.0), "its longest before"
            if not usual:
                usual, whose = model(), "the model that was sent"
            if length > FAR * usual > 0:
                found[client] = (
                    length / usual,
                    f"the norm of its {name} is {length / usual:.4g} times {whose}",
                )
    return found


def longest(before: Steps, moved: Mapping[str, Steps], accepted: Iterable[int]) -> Steps:
    """Every client's longest accepted step after a wave; the same object where nothing is longer."""
    steps = moved.get("model", {})
    longer = {i: steps[i] for i in accepted if steps.get(i, 0.0) > before.get(i, 0.0)}
    return {**before, **longer} if longer else before


def flaw(fed: Fed, wire: Wire, before: ServerState | None, server: ServerState) -> str | None:
    """What is not finite in a server's state, of the parts that were not there before; None if all is."""
    known = set() if before is None else {id(part) for _, part in _parts(before)}
    for name, part in _parts(server):
        if id(part) in known:
            continue
        if isinstance(part, Mapping):
            if not all(map(math.isfinite, part.values())):
                return f"{name} is not finite"
        elif isinstance(part, (int, float)):
            if not math.isfinite(part):
                return f"{name} is not finite"
        elif part.is_floating_point():
            field = Field(name, part, tuple(part.shape[-1:]) == (fed.layout.size,))
            if not wire.is_finite(field):
                return f"{name} is not finite" + _where(fed, field, wire)
    return None


def _parts(server: ServerState) -> Iterator[tuple[str, Any]]:
    """Every tensor and every row of numbers of a state."""
    yield "its model", server.model
    yield from ((f"the moment {name!r}", part) for name, part in server.moments.items())
    tables = {"personal": server.personal} if server.personal is not None else {}
    for name, value in {**tables, **{f"extra[{key!r}]": v for key, v in server.extra.items()}}.items():
        if isinstance(value, Rows):
            yield f"{name}'s default", value.default
            yield from ((f"{name}[{i}]", value[i]) for i in value.ids)
        elif isinstance(value, Pairs):
            yield from ((f"{name}'s row {i}", row) for i, row in value.rows())
        else:
            yield name, value


def _where(fed: Fed, field: Field, wire: Wire) -> str:
    if not field.is_model or field.tensor.ndim != 1:
        return ""
    bad = (~field.tensor.isfinite() & ~wire.kept).nonzero()
    return f" (first in {fed.layout.where(int(bad[0]))})"
