"""A packet is bytes that hold plain facts and named tensors: safetensors, with the facts as JSON in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfedsim import memory
from pfedsim.durable import Bytes
from pfedsim.errors import Error
from pfedsim.runs.checkpoint import packed as safetensors_of

if TYPE_CHECKING:
    from torch import Tensor

FACTS = "facts"  # the name of the tensor that holds the JSON
KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
COPIES = 3  # of a packet in memory while it is read


class Malformed(Error):
    """These bytes are not what was expected."""


def packed(facts: bytes, tensors: Mapping[str, Tensor]) -> list[Bytes]:
    """The packet in chunks, without a copy of any tensor."""
    import torch

    head = torch.frombuffer(bytearray(facts), dtype=torch.uint8)
    return safetensors_of({FACTS: head, **{name: tensor.contiguous() for name, tensor in tensors.items()}})


def opened(data: bytes, limit: int | None = None) -> tuple[bytes, dict[str, Tensor]]:
    """The facts and the tensors of a packet of at most `limit` bytes, in memory of their own. Raises Malformed."""
    from safetensors.torch import load

    if limit is not None and len(data) > limit:
        raise Malformed(f"it has {len(data):,} bytes, expected at most {limit:,}")
    try:
        memory.need("a packet", COPIES * len(data))
        tensors = load(data)
        facts = tensors.pop(FACTS)
        strange = {str(t.dtype) for t in tensors.values()} - {f"torch.{kind}" for kind in KINDS}
        if strange:
            raise ValueError(f"it holds numbers of the type {min(strange)}")
        return facts.numpy().tobytes(), tensors
    except Exception as error:  # the library may raise anything on hostile bytes
        if isinstance(error, KeyError):
            raise Malformed("it holds no facts, or numbers of an unknown type") from error
        raise Malformed(f"it is not a packet: {' '.join(str(error).split())[:200]}") from error
