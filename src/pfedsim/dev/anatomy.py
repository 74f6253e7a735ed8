"""What a method sends, keeps and stores, measured by running it: numbers of parameters with LeNet5 on 3 x
32 x 32 and ten classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from pfedsim.core.method import Method
from pfedsim.core.rows import Pairs, Rows
from pfedsim.dev.conformance import Listening, session, small_federation, states, travelling

Sizes = dict[str, int]


@dataclass(frozen=True)
class Wave:
    """What one client gets and gives in a wave of this kind; the largest seen, where it varies."""

    stage: str
    task: str
    down: Sizes
    up: Sizes


@dataclass(frozen=True)
class Anatomy:
    """Numbers of parameters, by name."""

    model: int
    waves: tuple[Wave, ...]
    server: Sizes
    client: Sizes


def anatomy(method: Method) -> Anatomy:
    """Runs the method for eight rounds of six out of twelve clients and counts."""
    federation = small_federation(((20, 10),) * 12, classes=10, seen=10, shape=(3, 32, 32))
    run = session(method, federation, rounds=8, batch=16)
    listening = Listening(run.engine)
    last = states(replace(run, engine=listening))[-1]
    travels = int((~run.kept).sum())
    waves: dict[tuple[str, str], Wave] = {}
    for message, reply in listening.heard:
        kind = message.stage, message.task
        known = waves.get(kind, Wave(*kind, {}, {}))
        down, up = (_sizes(travelling(c), run.fed.layout.size, travels) for c in (message, reply))
        waves[kind] = Wave(*kind, _larger(known.down, down), _larger(known.up, up))
    server: Sizes = {} if travels == 0 else {"model": travels}
    if last.server.personal is not None:
        server[f"models of {len(last.server.personal.ids)} clients"] = travels * len(
            last.server.personal.ids
        )
    for name, value in last.server.extra.items():
        if isinstance(value, Rows):
            server[f"{name} of {len(value.ids)} clients"] = sum(value[i].numel() for i in value.ids)
        elif isinstance(value, Pairs):
            server[f"{name} of pairs that met"] = len(value.tensors()["value"])
        else:
            server |= _sizes({name: value}, run.fed.layout.size, travels)
    memory = last.memories[max(last.memories)]
    kept = {} if memory.kept is None or not len(memory.kept) else {"kept entries": len(memory.kept)}
    return Anatomy(
        int(run.fed.layout.trainable.sum()),
        tuple(waves.values()),
        server,
        kept | {n: t.numel() for n, t in memory.extra.items()},
    )


def _sizes(tensors: Mapping[str, Tensor], size: int, travels: int) -> Sizes:
    """Entries that travel: kept ones do not."""
    models = {n for n, t in tensors.items() if t.ndim and t.shape[-1] == size}
    counts = {n: t.numel() // size * travels if n in models else t.numel() for n, t in tensors.items()}
    return {n: c for n, c in counts.items() if c}


def _larger(a: Sizes, b: Sizes) -> Sizes:
    return {n: max(a.get(n, 0), b.get(n, 0)) for n in {**a, **b}}
