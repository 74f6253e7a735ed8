"""What a method sends, keeps and stores, measured by running it: numbers of parameters with LeNet5 on 3 x
32 x 32 and ten classes."""

from __future__ import annotations

from dataclasses import dataclass

from pfedsim.core.method import Message, Method, Reply
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.wire import Wire, fields
from pfedsim.dev.conformance import Heard, session, small_federation, states

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
    heard = Heard()
    last = states(run.observed(heard))[-1]
    wire = run.side.wire
    travels = wire.travels
    waves: dict[tuple[str, str], Wave] = {}
    for message, reply in heard.pairs:
        kind = message.stage, message.task
        known = waves.get(kind, Wave(*kind, {}, {}))
        down, up = (_sizes(wire, c) for c in (message, reply))
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
            server |= {name: value.numel()}
    memory = last.memories[max(last.memories)]
    kept = {} if memory.kept is None or not len(memory.kept) else {"kept entries": len(memory.kept)}
    return Anatomy(
        int(run.fed.layout.trainable.sum()),
        tuple(waves.values()),
        server,
        kept | {n: t.numel() for n, t in memory.extra.items()},
    )


def _sizes(wire: Wire, carrier: Message | Reply) -> Sizes:
    """Entries that travel: kept ones do not."""
    counts = {field.name: wire.entries(field) for field in fields(carrier)}
    return {name: count for name, count in counts.items() if count}


def _larger(a: Sizes, b: Sizes) -> Sizes:
    return {n: max(a.get(n, 0), b.get(n, 0)) for n in {**a, **b}}
