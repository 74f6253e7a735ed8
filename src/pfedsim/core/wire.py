"""What travels between the server and its clients: names, tensors, and which of them hold models.

This is the only statement of it. Sealing, byte counts, the guard and the methods pages all read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pfedsim.core.method import Memory, Message, Reply

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
    def size(self) -> int:
        """How many entries a model has."""
        return len(self.kept)

    @cached_property
    def travels(self) -> int:
        """How many entries of a model travel."""
        return self.size - len(self.places)

    @cached_property
    def spans(self) -> Tensor:
        """The entries that travel, as spans (first, last) between kept ones."""
        import torch

        edges = torch.diff((~self.kept).byte(), prepend=torch.zeros(1), append=torch.zeros(1))
        return edges.nonzero().reshape(-1, 2).contiguous()

    @cached_property
    def going(self) -> Tensor:
        """Where the entries that travel lie."""
        return (~self.kept).nonzero()[:, 0]

    def part_that_travels(self, model: Tensor) -> Tensor:
        """A model, or rows of models, without the entries that clients keep."""
        return model.index_select(-1, self.going) if len(self.places) else model

    def with_gaps(self, part: Tensor) -> Tensor:
        """A sealed model of what has travelled: the inverse of `part_that_travels`."""
        if not len(self.places):
            return part
        model = part.new_full((*part.shape[:-1], self.size), float("nan"))
        return model.index_copy_(-1, self.going, part)

    def entries(self, field: Field) -> int:
        """How many entries of this field travel."""
        if not field.is_model:
            return field.tensor.numel()
        return field.tensor.numel() // self.size * self.travels

    def bytes(self, carrier: Message | Reply) -> int:
        """The size of a message or reply on the wire."""
        return sum(self.entries(field) * field.tensor.element_size() for field in fields(carrier))

    def sealed(self, carrier: Carrier) -> Carrier:
        """The carrier as it is sent: on the CPU, kept entries of models NaN, which reveals a leak or a
        forgotten `mine` at once."""
        models = {name: self.sealed_model(tensor) for name, tensor in carrier.models.items()}
        sealed = replace(carrier, models=models, extra=_on_cpu(carrier.extra))
        return sealed if carrier.model is None else replace(sealed, model=self.sealed_model(carrier.model))

    def proper(self, reply: Any) -> Reply:
        """The reply as plain numbers and dense float32 tensors; raises TypeError with what is wrong where that would
        change a value. A client may send anything, so this looks at everything before anything is computed."""
        _expect(reply, Reply, "the reply", "a Reply (make it with job.reply)")
        assert isinstance(reply, Reply)
        model = None if reply.model is None else _tensor("model", reply.model, sent=True)
        models = {name: _tensor(name, t, sent=True) for name, t in _named("models", reply.models).items()}
        extra = {name: _tensor(name, t, sent=True) for name, t in _named("extra", reply.extra).items()}
        if "model" in {**models, **extra} or models.keys() & extra.keys():
            raise TypeError(
                "it holds a model among its extras, which are sent as they are, or a name twice"
            )
        size = self.size
        if model is not None and tuple(model.shape) != (size,):
            raise TypeError(f"model has shape {tuple(model.shape)}, expected ({size},)")
        for name, tensor in models.items():
            if tuple(tensor.shape[-1:]) != (size,):
                raise TypeError(f"{name} has shape {tuple(tensor.shape)}, expected rows of {size} entries")
        info = {
            name: float(_number(f"its {name}", x, Real)) for name, x in _named("info", reply.info).items()
        }
        return replace(
            reply,
            client=int(_number("its client", reply.client, Integral)),
            weight=float(_number("its weight", reply.weight, Real)),
            model=model,
            extra=extra,
            info=info,
            models=models,
            round=int(_number("its round", reply.round, Integral)),
            task=_expect(reply.task, str, "its task", "a text"),
        )

    def proper_memory(self, memory: Any) -> Memory:
        """What a client remembers, as dense tensors; raises TypeError with what is wrong."""
        _expect(memory, Memory, "what the client keeps", "a Memory (make it with job.remember)")
        extra = {
            name: _tensor(name, t) for name, t in _named("what the client keeps", memory.extra).items()
        }
        kept = None if memory.kept is None else _tensor("its kept part", memory.kept, sent=True)
        if kept is not None and tuple(kept.shape) != (len(self.places),):
            raise TypeError(f"its kept part has shape {tuple(kept.shape)}, expected ({len(self.places)},)")
        return Memory(kept, extra)

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
            return is_finite(field.tensor)
        rows = field.tensor.reshape(-1, self.size)
        return all(is_finite(_without(kept, part)) for row in rows for kept, part in self._pieces(row))

    def norm(self, model: Tensor, start: Tensor | None = None) -> float:
        """The Euclidean norm of what was sent of a model, or of its step from `start`: finite if all entries of
        both are, unless a difference is beyond float32."""
        rows = [model] if model.ndim == 1 else model.reshape(-1, self.size)
        return math.sqrt(math.fsum(self._squares(row, start) for row in rows))

    def _squares(self, row: Tensor, start: Tensor | None) -> float:
        from pfedsim.backends import native

        if native.available() and row.device.type == "cpu":
            return native.squares(row, self.spans, start)
        total = 0.0
        origin = None if start is None else _split(start)
        for k, (kept, part) in enumerate(self._pieces(row)):
            step = _without(kept, part if origin is None else part - origin[k]).double()
            total += float((step * step).sum())
        return total

    def _pieces(self, row: Tensor) -> Iterator[tuple[Tensor | None, Tensor]]:
        return zip(self._masks, _split(row), strict=True)

    @cached_property
    def _masks(self) -> list[Tensor | None]:
        """Which entries of each piece are kept; None where none is."""
        return [mask if mask.any() else None for mask in _split(self.kept)]


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite numbers. No sum loses an infinity or a NaN, so a finite sum answers that at a
    thirtieth of the time."""
    return all(
        math.isfinite(part.sum()) or bool(part.isfinite().all()) for part in _split(tensor.reshape(-1))
    )


def _without(kept: Tensor | None, part: Tensor) -> Tensor:
    return part if kept is None else part.masked_fill(kept, 0.0)


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _expect(value: Any, kind: type, what: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {_named_kind(value)}, expected {expected}")
    return value


def _named_kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _named(what: str, mapping: Any) -> Mapping[str, Any]:
    _expect(mapping, Mapping, what, "a dict by name")
    for name in mapping:
        _expect(name, str, f"a name in {what}", "a text")
    return mapping  # type: ignore[no-any-return]


def _number(what: str, value: Any, kind: type) -> Any:
    """NumPy's numbers count; a truth value, a text or a tensor does not."""
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{what} is {value!r:.60}, expected a number")
    return value


def _tensor(name: str, value: Any, sent: bool = False) -> Tensor:
    """A dense real tensor without a graph; float32 where it is sent."""
    import torch

    _expect(value, torch.Tensor, name, "a torch.Tensor")
    if value.layout != torch.strided or value.device.type == "meta" or value.dtype.is_complex:
        kind = "on the meta device" if value.device.type == "meta" else f"{value.layout} {value.dtype}"
        raise TypeError(f"{name} is {kind}, expected dense real numbers")
    if sent and value.dtype != torch.float32:
        raise TypeError(f"{name} is {value.dtype}, expected float32")
    if value.requires_grad or type(value) is not torch.Tensor:
        value = value.detach().as_subclass(torch.Tensor)
    return value.contiguous()  # type: ignore[no-any-return]


def _split(vector: Tensor) -> tuple[Tensor, ...]:
    import torch

    return torch.split(vector, PIECE)
