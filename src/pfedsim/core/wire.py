"""What travels between the server and its clients: names, tensors, and which of them hold models.

This is the only statement of it. Sealing, byte counts, the guard and the methods pages all read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pfedsim.core.method import Message, Reply

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 1 << 17  # entries that are looked at together: they stay in the cache
Carrier = TypeVar("Carrier", Message, Reply)


class Field(NamedTuple):
    """One tensor of a message or reply. In a model the entries that clients keep do not travel."""

    name: str
    tensor: Tensor
    is_model: bool


def fields(carrier: Message | Reply) -> list[Field]:
    """Everything that this message or reply carries."""
    own = [] if carrier.model is None else [Field("model", carrier.model, True)]
    models = [Field(name, tensor, True) for name, tensor in carrier.models.items()]
    return own + models + [Field(name, tensor, False) for name, tensor in carrier.extra.items()]


@dataclass(frozen=True, eq=False)
class Wire:
    """The line between the server and its clients. `kept`: mask of the entries that never leave a client."""

    kept: Tensor

    @cached_property
    def places(self) -> Tensor:
        """Where the kept entries lie: places are ten times as fast as a mask."""
        return self.kept.nonzero()[:, 0]

    @cached_property
    def travels(self) -> int:
        """How many entries of a model travel."""
        return len(self.kept) - len(self.places)

    def entries(self, field: Field) -> int:
        """How many entries of this field travel."""
        if not field.is_model:
            return field.tensor.numel()
        return field.tensor.numel() // len(self.kept) * self.travels

    def bytes(self, carrier: Message | Reply) -> int:
        """The size of a message or reply on the wire."""
        return sum(self.entries(field) * field.tensor.element_size() for field in fields(carrier))

    def sealed(self, carrier: Carrier) -> Carrier:
        """The carrier as it is sent: on the CPU, kept entries of models NaN, which reveals a leak or a
        forgotten `mine` at once."""
        models = {name: self.sealed_model(tensor) for name, tensor in carrier.models.items()}
        sealed = replace(carrier, models=models, extra=_on_cpu(carrier.extra))
        return sealed if carrier.model is None else replace(sealed, model=self.sealed_model(carrier.model))

    def sealed_messages(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        """A wave's messages as they leave the server; a model sent to many clients is sealed once."""
        models = {id(m.model): m.model for m in messages.values()}
        sealed = {key: self.sealed_model(model) for key, model in models.items()}
        found = {}
        for i, message in messages.items():
            others = {name: self.sealed_model(tensor) for name, tensor in message.models.items()}
            found[i] = replace(
                message, model=sealed[id(message.model)], models=others, extra=_on_cpu(message.extra)
            )
        return found

    def sealed_model(self, model: Tensor) -> Tensor:
        if not len(self.places):
            return model.cpu()
        return model.index_fill(-1, self.places.to(model.device), float("nan")).cpu()

    def is_finite(self, field: Field) -> bool:
        """Whether all that was sent is a finite number."""
        if not field.is_model or not len(self.places):
            return all(bool(part.isfinite().all()) for part in _split(field.tensor.reshape(-1)))
        rows = field.tensor.reshape(-1, len(self.kept))
        return all(bool((part.isfinite() | kept).all()) for row in rows for kept, part in self._pieces(row))

    def norm(self, model: Tensor, start: Tensor | None = None) -> float:
        """The Euclidean norm of what was sent of a model, or of its step from `start`."""
        total = 0.0
        for row in model.reshape(-1, len(self.kept)):
            origin = None if start is None else _split(start)
            for k, (kept, part) in enumerate(self._pieces(row)):
                step = part if origin is None else part - origin[k]
                total += float(step.masked_fill(kept, 0.0).double().square().sum())
        return float(total**0.5)

    def _pieces(self, row: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(_split(self.kept), _split(row), strict=True)


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _split(vector: Tensor) -> tuple[Tensor, ...]:
    import torch

    return torch.split(vector, PIECE)
