"""Every random stream by address: the same (seed, purpose, round, client) gives the same draws in any
engine, on any worker."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def address(seed: int, purpose: str, round: int = 0, client: int = -1) -> int:
    """A 63-bit number that belongs to this address alone."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{round}/{client}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = -1) -> torch.Generator:
    """A CPU generator that starts at this address."""
    import torch

    return torch.Generator().manual_seed(address(seed, purpose, round, client))


@contextmanager
def torch_seeded(seed: int, purpose: str, round: int = 0, client: int = -1) -> Iterator[None]:
    """Torch's global generators start at this address inside, and are as before outside: for initialisers
    and dropout, which know no other."""
    import torch

    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed: it keeps a stack trace for every kind of device that is not there, call
        # after call
        for generator in (torch.default_generator, *(torch.cuda.default_generators[d] for d in devices)):
            generator.manual_seed(address(seed, purpose, round, client))
        yield


def schedule(seed: int, clients: int, join: float, rounds: int) -> list[list[int]]:
    """Who takes part in each round: the one stream without an address, drawn round by round from the seed
    alone, so that every method meets the same clients."""
    stream = random.Random(seed)
    each = per_round(clients, join)
    return [stream.sample(range(clients), each) for _ in range(rounds)]


def per_round(clients: int, join: float) -> int:
    """How many clients take part in a round (1e-9: 0.29 * 100 is 28.999...)."""
    return max(1, int(clients * join + 1e-9))
