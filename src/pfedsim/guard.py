"""What a reply must be before it is aggregated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pfedsim.method import Fed, Message, Method, Reply

if TYPE_CHECKING:
    from torch import Tensor


def objection(method: Method, fed: Fed, message: Message, reply: Reply, kept: Tensor) -> str | None:
    """Why this reply must not be aggregated, or None: exact names, shapes, dtype; finite where it was sent; a positive weight."""
    import torch

    expected = method.replies(fed, message)
    tensors = dict(reply.extra) if reply.model is None else {"model": reply.model, **reply.extra}
    if set(tensors) != set(expected):
        return f"it holds {sorted(tensors)}, expected {sorted(expected)}"
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(expected[name]):
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected[name])}"
        if tensor.dtype != torch.float32:
            return f"{name} is {tensor.dtype}, expected float32"
        finite = torch.isfinite(tensor)
        if tensor.ndim and tensor.shape[-1] == fed.layout.size:
            finite |= kept  # what is not sent need not be
        if not finite.all():
            return f"{name} is not finite" + _where(fed, tensor, kept)
    if not (math.isfinite(reply.weight) and reply.weight > 0):
        return f"its weight is {reply.weight}"
    return None


def _where(fed: Fed, tensor: Tensor, kept: Tensor) -> str:
    if tensor.shape != kept.shape:
        return ""
    bad = (~tensor.isfinite() & ~kept).nonzero()
    return f" (first in {fed.layout.where(int(bad[0]))})"
