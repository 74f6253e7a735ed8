"""What a reply must be before it is aggregated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING

from pfedsim.core.method import Fed, Memory, Message, Method, Reply

if TYPE_CHECKING:
    from torch import Tensor

# times the median of the wave: far beyond what uneven clients do, far below what an exploding one does
ABSURD = 100
FEWEST = 3  # replies that have a median to speak of


def objection(
    method: Method,
    fed: Fed,
    client: int,
    message: Message,
    reply: Reply,
    memory: Memory,
    kept: Tensor,
    declared: float = math.inf,
) -> str | None:
    """Why this reply of `client` must not be aggregated, or None: its own; exact names, shapes, dtype;
    finite where it was sent and in what the client keeps; a loss that is a number; as many samples as the
    client `declared` at most."""
    import torch

    if reply.client != client:
        return f"it says that it comes from client {reply.client}"
    expected = method.replies(fed, message)
    tensors = dict(reply.extra) if reply.model is None else {"model": reply.model, **reply.extra}
    if set(tensors) != set(expected):
        return f"it holds {sorted(tensors)}, expected {sorted(expected)}"
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(expected[name]):
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name])}"
        if tensor.dtype != torch.float32:
            return f"{name} is {tensor.dtype}, expected float32"
        if not _finite(tensor, kept):
            return f"{name} is not finite" + _where(fed, tensor, kept)
    if not (math.isfinite(reply.weight) and reply.weight > 0):
        return f"its weight is {reply.weight}"
    if reply.weight > declared:
        return f"its weight is {reply.weight:g}, but the client declared {declared:g} samples"
    if not math.isfinite(reply.info.get("loss", 0.0)):
        return f"its training loss is {reply.info['loss']}"
    for name, tensor in _held(memory):
        if not _finite(tensor, kept):
            return f"what the client keeps is not finite ({name})"
    return None


def _finite(tensor: Tensor, kept: Tensor) -> bool:
    """In models, what is kept at home need not be: it is not sent, and NaN in every message."""
    finite = tensor.isfinite()
    return bool((finite | kept if _is_models(tensor, kept) else finite).all())


def absurd(wave: Iterable[tuple[Message, Reply]], kept: Tensor) -> dict[int, str]:
    """Clients whose models moved more than ABSURD times as far as the median of the wave, and by how
    much."""
    norms: dict[str, dict[int, float]] = {}
    for message, reply in wave:
        for name, tensor in _moves(message, reply, kept).items():
            norms.setdefault(name, {})[reply.client] = float(tensor.masked_fill(kept, 0.0).double().norm())
    found = {}
    for name, by_client in norms.items():
        middle = median(by_client.values())
        for client, norm in by_client.items():
            if len(by_client) >= FEWEST and middle > 0 and norm > ABSURD * middle:
                found[client] = (
                    f"the norm of its {name} is {norm / middle:.0f} times the median of the round"
                )
    return found


def _moves(message: Message, reply: Reply, kept: Tensor) -> Mapping[str, Tensor]:
    """The models in a reply: its own as the step from the one that was sent."""
    own = {} if reply.model is None else {"model": reply.model - message.model}
    return own | {name: t for name, t in reply.extra.items() if _is_models(t, kept)}


def _is_models(tensor: Tensor, kept: Tensor) -> bool:
    return tensor.ndim > 0 and tensor.shape[-1] == len(kept)


def _held(memory: Memory) -> Iterator[tuple[str, Tensor]]:
    if memory.kept is not None:
        yield "its kept entries", memory.kept
    yield from memory.extra.items()


def _where(fed: Fed, tensor: Tensor, kept: Tensor) -> str:
    if tensor.shape != kept.shape:
        return ""
    bad = (~tensor.isfinite() & ~kept).nonzero()
    return f" (first in {fed.layout.where(int(bad[0]))})"
