"""What one bad client can do to a run: many kinds of bad reply, memory and failing hook, one at a time.

    python benchmarks/replies.py --out benchmarks/replies.json

Six clients, all in every round; in the second of two rounds client 1 misbehaves. Each kind is tried at the client
(one process), in a worker process, and, if it is a reply, once more straight at the server, as if the client's own
checks were missing. The run must go on: the bad reply is left out with a reason, the client keeps its last memory,
and the server's model is bit by bit that of a run in which client 1 was not asked. A slip in a type that changes no
value may be accepted; then the bits must be those of the honest run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedsim.core.engine import Absent, Done
from pfedsim.core.job import Job, Work
from pfedsim.core.method import Fed, Memory, Message, Method, Phase, Reply, ServerState, StartingPoint
from pfedsim.core.server import Round
from pfedsim.dev.conformance import small_federation
from pfedsim.errors import Error
from pfedsim.runs.config import check
from pfedsim.runs.setup import Session, one_thread, prepare

BAD, ROUND = 1, 1  # the client that misbehaves, and since which round
NAN, INF = float("nan"), float("inf")
EARLIER: dict[str, Reply] = {}


def _entry(value: float) -> Callable[[Reply], Any]:
    def spoiled(reply: Reply) -> Reply:
        assert reply.model is not None
        model = reply.model.clone()
        model[0] = value
        return replace(reply, model=model)

    return spoiled


def _model(change: Callable[[Tensor], Any]) -> Callable[[Reply], Any]:
    return lambda reply: replace(reply, model=change(reply.model))  # type: ignore[arg-type]


def _field(**values: Any) -> Callable[[Reply], Any]:
    return lambda reply: replace(reply, **values)


def _counts(value: Any) -> Callable[[Reply], Any]:
    return _field(extra={"counts": value})


def _strided(model: Tensor) -> Tensor:
    return torch.stack([model, model], 1)[:, 0]


ONES = torch.ones(3)
ACCEPTED: dict[str, Callable[[Reply], Any]] = {  # slips that change no value
    "weight is np.float32": lambda r: replace(r, weight=np.float32(r.weight)),
    "weight is np.int64": lambda r: replace(r, weight=np.int64(r.weight)),
    "weight is an int": lambda r: replace(r, weight=int(r.weight)),
    "client is np.int64": lambda r: replace(r, client=np.int64(r.client)),
    "loss is np.float64": lambda r: replace(r, info={"loss": np.float64(r.info["loss"])}),
    "no loss": _field(info={}),
    "model requires a gradient": _model(lambda m: m.clone().requires_grad_()),
    "model is a Parameter": _model(torch.nn.Parameter),
    "model is not contiguous": _model(_strided),
}
REPLIES: dict[str, Callable[[Reply], Any]] = {
    "reply is None": lambda r: None,
    "reply is a dict": vars,
    "reply is a text": lambda r: "done",
    "reply is its model": lambda r: r.model,
    "reply is the class": lambda r: Reply,
    "another client's number": _field(client=0),
    "client is negative": _field(client=-1),
    "client is a text": _field(client="1"),
    "client is None": _field(client=None),
    "client is True": _field(client=True),
    "client is a float": _field(client=1.0),
    "replayed from the last round": lambda r: EARLIER["reply"],
    "for a later round": lambda r: replace(r, round=r.round + 1),
    "for another task": _field(task="statistics"),
    "for no task": _field(round=-1, task=""),
    "round is a text": _field(round="1"),
    "task is None": _field(task=None),
    "weight is a text": _field(weight="12"),
    "weight is None": _field(weight=None),
    "weight is negative": _field(weight=-1.0),
    "weight is zero": _field(weight=0.0),
    "weight is NaN": _field(weight=NAN),
    "weight is infinite": _field(weight=INF),
    "weight is above the declared": lambda r: replace(r, weight=r.weight + 1),
    "weight is True": _field(weight=True),
    "weight is complex": _field(weight=1 + 1j),
    "weight is a tensor": _field(weight=torch.tensor(12.0)),
    "weight is a Decimal": _field(weight=Decimal(12)),
    "info is None": _field(info=None),
    "info is a list": _field(info=[0.5]),
    "info by number": _field(info={1: 0.5}),
    "loss is NaN": _field(info={"loss": NAN}),
    "loss is infinite": _field(info={"loss": INF}),
    "loss is a text": _field(info={"loss": "0.5"}),
    "loss is None": _field(info={"loss": None}),
    "loss is a tensor": _field(info={"loss": torch.tensor(0.5)}),
    "model is None": _field(model=None),
    "model is a NumPy array": _model(Tensor.numpy),
    "model is a list": _model(Tensor.tolist),
    "model is a function": _field(model=print),
    "model of integers": _model(lambda m: m.nan_to_num(0).int()),
    "model of float64": _model(Tensor.double),
    "model of float16": _model(Tensor.half),
    "model of bfloat16": _model(Tensor.bfloat16),
    "model of truth values": _model(Tensor.bool),
    "model of complex numbers": _model(lambda m: m + 0j),
    "model is too short": _model(lambda m: m[:-1]),
    "model is too long": _model(lambda m: torch.cat([m, m[:1]])),
    "model is a matrix": _model(lambda m: m[None]),
    "model is one number": _model(lambda m: m[0]),
    "model is empty": _model(lambda m: m[:0]),
    "model is sparse": _model(lambda m: m.nan_to_num(0).to_sparse()),
    "model on the meta device": _model(lambda m: m.to("meta")),
    "model has NaN": _entry(NAN),
    "model has infinity": _entry(INF),
    "model has minus infinity": _entry(-INF),
    "model has 1e30": _entry(1e30),
    "model has 3e38": _entry(3e38),
    "model is 1e30 everywhere": _model(lambda m: m * 0 + 1e30),
    "model is a million times as long": _model(lambda m: m * 1e6),
    "extra is None": _field(extra=None),
    "extra is a list": _field(extra=[ONES]),
    "extra lacks a name": _field(extra={}),
    "extra has one name more": _field(extra={"counts": ONES, "more": ONES}),
    "extra has another name": _field(extra={"count": ONES}),
    "extra by number": _field(extra={0: ONES}),
    "extra has the model": lambda r: replace(r, model=None, extra={"counts": ONES, "model": r.model}),
    "extra has the model again": lambda r: replace(r, extra={"counts": ONES, "model": r.model}),
    "counts is a number": _counts(3.0),
    "counts is a NumPy array": _counts(np.ones(3, np.float32)),
    "counts has another shape": _counts(torch.ones(3, 1)),
    "counts has NaN": _counts(torch.tensor([1.0, NAN, 1.0])),
    "counts cannot be aggregated": _counts(-ONES),
    "counts among the models": lambda r: replace(r, extra={}, models={"counts": ONES}),
    "models is None": _field(models=None),
    "models has the model": lambda r: replace(r, model=None, models={"model": r.model}),
}
MEMORIES: dict[str, Callable[[Memory], Any]] = {
    "memory is None": lambda m: None,
    "memory is a dict": vars,
    "memory is a function": lambda m: print,
    "memory's kept part is a NumPy array": lambda m: replace(m, kept=m.kept.numpy()),
    "memory's kept part is too short": lambda m: replace(m, kept=m.kept[:-1]),
    "memory's kept part has NaN": lambda m: replace(m, kept=m.kept * NAN),
    "memory's extra is None": lambda m: replace(m, extra=None),
    "memory holds a number": lambda m: replace(m, extra={"n": 3}),
    "memory holds a function": lambda m: replace(m, extra={"n": print}),
    "memory holds a sparse tensor": lambda m: replace(m, extra={"n": ONES.to_sparse()}),
    "memory holds complex numbers": lambda m: replace(m, extra={"n": ONES + 1j}),
    "memory holds infinity": lambda m: replace(m, extra={"n": ONES * INF}),
}
HOOKS = ("begin", "phases", "gradient", "finish")
RAISED: dict[str, BaseException] = {
    "raises": ValueError("this client is ill"),
    "raises a KeyError": KeyError("missing"),
    "raises pfedsim's error": Error("this client is ill"),
    "exits": SystemExit(1),
    "is cancelled": asyncio.CancelledError(),
    "closes a generator": GeneratorExit(),
    "has no memory left": MemoryError(),
}
RETURNED: dict[str, Any] = {
    "begin gives None": None,
    "begin gives another length": StartingPoint(torch.zeros(3)),
    "begin gives a NumPy array": StartingPoint(np.zeros(3)),  # type: ignore[arg-type]
    "phases gives None": None,
    "phases gives a text": ["train"],
    "gradient gives None": None,
    "gradient gives another length": torch.zeros(3),
    "finish gives None": None,
    "finish gives the reply alone": Reply(BAD, 1.0, None),
}
KINDS = {
    **dict.fromkeys(ACCEPTED, "reply"),
    **dict.fromkeys(REPLIES, "reply"),
    **dict.fromkeys(MEMORIES, "memory"),
    **{f"{hook} {how}": "hook" for hook in HOOKS for how in RAISED},
    **dict.fromkeys(RETURNED, "hook"),
}


@dataclass(frozen=True)
class Bad(Method):
    """FedAvg with counts beside the model; one client misbehaves in the way that `kind` names."""

    kind: str = ""

    def _due(self, job: Job) -> bool:
        return job.client == BAD and job.round == ROUND

    def _strikes(self, job: Job, hook: str) -> bool:
        """Raises if this hook's turn is to raise; whether it returns something wrong."""
        name, _, how = self.kind.partition(" ")
        if not self._due(job) or name != hook:
            return False
        if how in RAISED:
            raise RAISED[how]
        return self.kind in RETURNED

    def begin(self, job: Job) -> StartingPoint:
        return RETURNED[self.kind] if self._strikes(job, "begin") else super().begin(job)  # type: ignore[no-any-return]

    def phases(self, job: Job) -> list[Phase]:
        return RETURNED[self.kind] if self._strikes(job, "phases") else super().phases(job)  # type: ignore[no-any-return]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Any]) -> Tensor:
        wrong = self._strikes(job, "gradient")
        return RETURNED[self.kind] if wrong else super().gradient(job, theta, batches)  # type: ignore[no-any-return]

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        reply = job.reply(ends[-1], counts=ONES)
        memory = job.remember(ends[-1], trainings=torch.tensor(float(job.round)))
        if job.client == BAD and job.round < ROUND:
            EARLIER["reply"] = reply
        if self._strikes(job, "finish"):
            return RETURNED[self.kind]  # type: ignore[no-any-return]
        if self._due(job):
            return spoil(self.kind, reply), MEMORIES.get(self.kind, lambda m: m)(memory)
        return reply, memory

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "counts": (3,)}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        total = torch.stack([reply.extra["counts"] for reply in replies]).log2().sum(0)
        return replace(super().aggregate(fed, server, task, replies, rng), extra={"total": total})


def spoil(kind: str, reply: Reply) -> Any:
    return {**ACCEPTED, **REPLIES}.get(kind, lambda r: r)(reply)


class Unchecked:
    """An engine that hands the bad reply to the server without any check at the client."""

    def __init__(self, engine: Any, kind: str):
        self._engine, self._kind = engine, kind
        self.memories, self.events, self.close = engine.memories, engine.events, engine.close

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        for done in self._engine.run(task, works, deadline):
            if done.client == BAD and works[0].round == ROUND and isinstance(done, Done):
                done = replace(done, result=spoil(self._kind, done.result))  # type: ignore[arg-type]
            elif done.client == BAD and isinstance(done, Done):
                EARLIER["reply"] = done.result  # type: ignore[assignment]
            yield done


def rounds(
    kind: str, way: str = "client", schedule: list[list[int]] | None = None
) -> tuple[list[Round], Session]:
    """The two rounds of a run in which client 1 misbehaves at its own place, in a worker or only at the server."""
    words = {
        **{"method": "fedavg", "rounds": 2, "epochs": 1, "join": 1.0, "batch": 8, "lr": 0.05},
        **{"model": "lenet5", "backend": "torch", "workers": 2 if way == "worker" else 1},
    }
    s = prepare(check(words), small_federation(), Bad("" if way == "server" else kind))
    if way == "server":
        s = replace(s, side=replace(s.side, engine=Unchecked(s.engine, kind)))  # type: ignore[arg-type]
    s = replace(s, schedule=schedule or s.schedule)
    try:
        with one_thread():
            return list(s.rounds(s.begin())), s
    finally:
        s.engine.close()


class Harness:
    """Compares a run with one bad client to an honest one and to one in which that client was not asked."""

    def __init__(self) -> None:
        everyone = list(range(6))
        self.honest, _ = rounds("")
        self.without, _ = rounds("", schedule=[everyone, [i for i in everyone if i != BAD]])

    def outcome(self, kind: str, way: str) -> tuple[str, str]:
        """ "accepted" or "left out" and why; an AssertionError if the run is not what it must be."""
        found, s = rounds(kind, way)
        assert len(found) == 2
        assert not found[0].events
        last, travels = found[1], ~s.side.wire.kept
        kept = s.engine.memories.held()[BAD].extra["trainings"]
        if not last.events:
            assert kind in ACCEPTED, "a bad reply was aggregated"
            assert last.server.model[travels].equal(self.honest[1].server.model[travels])
            assert float(kept) == ROUND
            return "accepted", ""
        (event,) = last.events
        assert event["client"] == BAD
        assert event["round"] == ROUND + 1
        assert event["event"] in ("rejected", "absent")
        assert event["why"]
        assert [reply.client for reply in last.replies] == [i for i in range(6) if i != BAD]
        assert last.server.model[travels].equal(self.without[1].server.model[travels])
        assert float(kept) == ROUND - 1, "what came with a bad reply is remembered"
        return "left out", event["why"].splitlines()[0]


def ways(kind: str) -> tuple[str, ...]:
    return ("client", "worker", "server") if KINDS[kind] == "reply" else ("client", "worker")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    harness, found, wrong = Harness(), {}, 0
    for kind in KINDS:
        for way in ways(kind):
            try:
                what, why = harness.outcome(kind, way)
            except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:
                what, why, wrong = (
                    "ENDED THE RUN OR CHANGED IT",
                    f"{type(error).__name__}: {error}",
                    wrong + 1,
                )
            found.setdefault(kind, {})[way] = f"{what}: {why}" if why else what
        print(f"{kind}: {found[kind]['client']}", flush=True)
    outcomes = [what for by_way in found.values() for what in by_way.values()]
    figures = {
        "command": "python benchmarks/replies.py " + " ".join(sys.argv[1:]),
        "kinds": len(KINDS),
        "runs": len(outcomes),
        "left_out": sum(what.startswith("left out") for what in outcomes),
        "accepted": outcomes.count("accepted"),
        "wrong": wrong,
        "by_kind": {kind: by_way["client"] for kind, by_way in found.items()},
    }
    print(json.dumps({k: v for k, v in figures.items() if k != "by_kind"}, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
