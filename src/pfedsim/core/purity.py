"""Whether a hook leaves alone what it is given. States, messages and memories are values: a hook that writes into
one, by an operation in place, `.data` or `.numpy()`, changes what other hooks see and what a checkpoint saves."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pfedsim.core.rows import Pairs, Rows
from pfedsim.errors import Impure

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.method import Fed

EVERY = 8  # the first two rounds are watched, then one in so many
JOBS = 4  # in a watched round one client's job in so many is watched, others every time
ENTRIES = 1024  # of a tensor that a digest covers, evenly spread, others every time
ROWS = 8  # of a table that a digest covers, others every time


@contextmanager
def unchanged(who: str, round: int, **given: Any) -> Iterator[None]:
    """Raises an error if `who` changes what it is given, in the rounds that are watched. A write that touches every
    entry of a tensor shows in any sample, a write to a few entries after some rounds."""
    turn = _turn(round)
    if not given or turn is None:
        yield
        return
    before = dict(_digests(given, "", turn, {}))
    yield
    after = dict(_digests(given, "", turn, {}))
    if after != before:
        where = next(w for w in (*before, *after) if before.get(w) != after.get(w))
        raise Impure(
            f"{who} changed {where} in place; it is a value that others read: clone a tensor before you change it"
        )


@contextmanager
def same_process(who: str) -> Iterator[None]:
    """Raises an error if `who` changes a setting of the process, which other clients of this process would train
    with, and those in other processes not. It is put back."""
    before = _process()
    try:
        yield
    finally:
        after = _process()
        changed = [
            name
            for name, value in before.items()
            if None not in (value, after[name]) and after[name] != value
        ]
        for name in changed:
            PUT_BACK[name](before[name])
    if changed:
        raise Impure(
            f"{who} changed {changed[0]} of the whole process; put it back before the hook returns"
        )


def _process() -> dict[str, Any]:
    import torch

    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's grad mode": torch.is_grad_enabled(),
        "the working directory": _folder(),
    }


def _folder() -> str | None:
    """The working directory; None if somebody has deleted it."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _set_torch(setter: str) -> Callable[[Any], object]:
    def put_back(value: Any) -> None:
        import torch

        getattr(torch, setter)(value)

    return put_back


PUT_BACK: dict[str, Callable[[Any], object]] = {
    "torch's default dtype": _set_torch("set_default_dtype"),
    "torch's number of threads": _set_torch("set_num_threads"),
    "torch's grad mode": _set_torch("set_grad_enabled"),
    "the working directory": os.chdir,
}


def public(fed: Fed) -> dict[str, Any]:
    """The tensors that every hook can reach through `fed`."""
    masks = ("head", "body", "norm", "buffers", "trainable")
    return {"initial": fed.initial, **{f"layout.{name}": getattr(fed.layout, name) for name in masks}}


def watches(round: int, client: int) -> bool:
    """Whether this client's job is watched in this round."""
    turn = _turn(round)
    return turn is not None and (turn + client) % JOBS == 0


def _turn(round: int) -> int | None:
    """Which of the watched rounds this is; None where nothing is watched."""
    return round if round < 2 else 1 + round // EVERY if round % EVERY == 0 else None


def _digests(value: Any, where: str, turn: int, known: dict[int, int]) -> Iterator[tuple[str, int]]:
    """A number for each part that can be reached from a value, with its path; `known`: those of tensors by id, as
    many clients are sent the same one."""
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            known[id(value)] = _sampled(value, turn)
        yield where, known[id(value)]
    elif isinstance(value, Rows):
        rows: dict[Any, Tensor] = {"default": value.default, **dict(value.some(ROWS, turn))}
        yield from _digests(rows, where, turn, known)
    elif isinstance(value, Pairs):
        yield from (
            (f"{where}.row({i})", hash(tuple(sorted(row.items())))) for i, row in value.some(ROWS, turn)
        )
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _digests(part, f"{where}[{key!r}]" if where else str(key), turn, known)
    elif isinstance(value, (list, tuple)):
        for k, part in enumerate(value):
            yield from _digests(part, f"{where}[{k}]", turn, known)
    elif is_dataclass(value):
        for own in fields(value):
            yield from _digests(getattr(value, own.name), f"{where}.{own.name}", turn, known)
    elif isinstance(value, (int, float, str)):
        yield where, hash(value)


def _sampled(tensor: Tensor, turn: int) -> int:
    """The CRC-32 of a sample of the entries."""
    import torch

    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // ENTRIES)
    if flat.device.type != "cpu" or flat.dtype == torch.bfloat16:
        return zlib.crc32(flat[turn % stride :: stride].cpu().view(torch.uint8).numpy().tobytes())
    return zlib.crc32(flat.numpy()[turn % stride :: stride].tobytes())  # NumPy is faster here
