"""What a reply must be before it is aggregated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from pfedsim.core.method import Fed, Message, Method, Reply
from pfedsim.core.wire import Field, Wire, fields

ABSURD = 100  # times the median of the wave: far beyond uneven clients, far below an exploding one
FEWEST = 3  # replies that have a median to speak of


def objection(
    method: Method,
    fed: Fed,
    wire: Wire,
    client: int,
    message: Message,
    reply: Reply,
    declared: float = math.inf,
) -> str | None:
    """Why this reply of `client` must not be aggregated, or None: its own; exact names, shapes, dtype; finite
    where it was sent; a loss that is a number; at most as many samples as the client `declared`."""
    import torch

    if reply.client != client:
        return f"it says that it comes from client {reply.client}"
    expected = method.replies(fed, message)
    carried = fields(reply)
    if {field.name for field in carried} != set(expected):
        return f"it holds {sorted(field.name for field in carried)}, expected {sorted(expected)}"
    if len(carried) > len(expected) or any(f.name == "model" and not f.is_model for f in carried):
        return "it holds a model among its extras, which are sent as they are"
    for field in carried:
        name, tensor = field.name, field.tensor
        if tuple(tensor.shape) != tuple(expected[name]):
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name])}"
        if tensor.dtype != torch.float32:
            return f"{name} is {tensor.dtype}, expected float32"
        if not wire.is_finite(field):
            return f"{name} is not finite" + _where(fed, field, wire)
    if not (math.isfinite(reply.weight) and reply.weight > 0):
        return f"its weight is {reply.weight}"
    if reply.weight > declared:
        return f"its weight is {reply.weight:g}, but the client declared {declared:g} samples"
    if not math.isfinite(reply.info.get("loss", 0.0)):
        return f"its training loss is {reply.info['loss']}"
    return None


def absurd(wave: Iterable[tuple[Message, Reply]], wire: Wire) -> dict[int, str]:
    """Clients whose models moved more than ABSURD times as far as the median of the wave, and by how much."""
    norms: dict[str, dict[int, float]] = {}
    for message, reply in wave:
        for name, tensor, is_model in fields(reply):
            if is_model:
                start = message.model if name == "model" else None  # its own model: the step that it took
                norms.setdefault(name, {})[reply.client] = wire.norm(tensor, start)
    found = {}
    for name, by_client in norms.items():
        middle = median(by_client.values())
        for client, norm in by_client.items():
            if len(by_client) >= FEWEST and middle > 0 and norm > ABSURD * middle:
                found[client] = (
                    f"the norm of its {name} is {norm / middle:.0f} times the median of the round"
                )
    return found


def _where(fed: Fed, field: Field, wire: Wire) -> str:
    if not field.is_model or field.tensor.ndim != 1:
        return ""
    bad = (~field.tensor.isfinite() & ~wire.kept).nonzero()
    return f" (first in {fed.layout.where(int(bad[0]))})"
