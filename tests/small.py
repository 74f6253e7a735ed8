"""Small federations and networks for tests: a table of numbers, networks of a few hundred entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfedsim.core import scoring
from pfedsim.core.engine import Engine
from pfedsim.core.job import Job, Work
from pfedsim.core.method import Memory, Message, Method, ServerState
from pfedsim.core.server import Round, State, run_rounds
from pfedsim.core.wire import Wire
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.durable import digest_of
from pfedsim.engines.serial import Serial
from pfedsim.runs.config import check
from pfedsim.runs.names import MAY_DIFFER, SUMS
from pfedsim.runs.reader import sums_text
from pfedsim.runs.setup import Session, prepare

FEATURES, CLASSES = 6, 3


class Net(nn.Module):
    """A hidden layer with batch norm."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.hidden = nn.Linear(shape[0], 8)
        self.bn = nn.BatchNorm1d(8)
        self.classifier = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(torch.relu(self.bn(self.hidden(x))))
        return out


class Dropping(Net):
    """The same with dropout."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.bn(self.hidden(x)))
        out: Tensor = self.classifier(nn.functional.dropout(hidden, 0.5, self.training))
        return out


class Plain(nn.Module):
    """A linear classifier: no norm layer, no statistics."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.classifier = nn.Linear(shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(x)
        return out


def table(train: Sequence[int] = (20, 9, 33, 4), test: int = 10, seed: int = 0) -> Federation:
    """Clients with so many train samples of a table whose classes can be told apart."""
    draw = np.random.default_rng(seed)
    n = sum(train) + test * len(train)
    y = draw.integers(0, CLASSES, n)
    x = (draw.normal(size=(n, FEATURES)) + 1.5 * np.eye(CLASSES, FEATURES)[y]).astype(np.float32)
    mean, std = tuple(x.mean(0, dtype=float).tolist()), tuple(x.std(0, dtype=float).tolist())
    data = DataSet("table", x, y.astype(np.int64), tuple("abc"), mean, std)
    places = iter(np.split(draw.permutation(n), np.cumsum([k for t in train for k in (t, test)])[:-1]))
    return Federation(
        data, Partition(tuple(Split(next(places), next(places)) for _ in train), {}, data.digest)
    )


def session(method: Method | None = None, federation: Federation | None = None, **settings: Any) -> Session:
    """A run in memory of any method object; every client in every round unless said otherwise."""
    method = method or Method()
    federation = federation or table()
    words = {
        "method": "fedavg",
        "model": "small:Net",
        "rounds": 2,
        "join": 1.0,
        "epochs": 1,
        "batch": 8,
        "lr": 0.1,
        "backend": "torch",
        **settings,
    }
    s = prepare(check(words), federation, method)
    kept = method.keeps(s.fed.layout) | (s.fed.layout.buffers & (s.fed.settings.buffers == "local"))
    worker = replace(s.worker, method=method, wire=Wire(kept))
    side = replace(s.side, method=method, wire=worker.wire, engine=Serial(worker), declared=None)
    return replace(s, worker=worker, side=side)


def listed(folder: Path) -> Path:
    """The folder with a new list of its files, as if the run had written them so."""
    names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
    sums = {name: digest_of(folder / name)[0] for name in names if name not in (SUMS, *MAY_DIFFER)}
    (folder / SUMS).write_text(sums_text(sums))
    return folder


@dataclass(frozen=True, eq=False)
class Seen(Round):
    """A round and the state that the run could be saved in after it."""

    state: State


def rounds(
    s: Session, state: State | ServerState | None = None, engine: Engine | None = None
) -> Iterator[Seen]:
    """The run's rounds from `state` (default: from the start), on another engine if one is given."""
    side = replace(s.side, engine=engine or s.engine)
    server = side.restore(state) if isinstance(state, State) else state or side.begin()
    for done in run_rounds(side, s.schedule, server):
        yield Seen(**vars(done), state=side.snapshot(done.server))


def score(
    s: Session, state: State | ServerState, engine: Engine | None = None, **asked: Any
) -> scoring.Scores:
    """The scores of all clients in this state."""
    side = replace(s.side, engine=engine or s.engine)
    server = side.restore(state) if isinstance(state, State) else state
    return scoring.score(side, server, **asked)


def job(
    s: Session, client: int = 0, round: int = 0, memory: Memory | None = None, task: str = "train"
) -> Job:
    """A client's job before its first hook."""
    work = Work(client, round, Message(task, s.fed.initial), task)
    return Job(s.worker, work, memory or Memory())


def module(s: Session, theta: Tensor | None = None) -> nn.Module:
    """An ordinary module, apart from the backend's, with the entries of `theta` (default: the initial
    ones)."""
    from pfedsim import models

    assert s.config.model is not None
    data = s.federation.data
    fresh = models.build(s.config.model, data.shape, len(data.classes))
    fresh.load_state_dict(s.fed.layout.named(s.fed.initial if theta is None else theta), strict=False)
    return fresh


def flat(s: Session, module: nn.Module) -> Tensor:
    state = module.state_dict()
    return s.fed.layout.flat({name: state[name] for name in s.fed.layout.names})


def normal(s: Session, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
    """A client's samples, normalised by hand, and their labels."""
    data, split = s.federation.data, s.federation.partition.clients[client]
    positions = split.train if part == "train" else split.test
    x = torch.from_numpy(data.x[positions])
    x = x.float() / 255 if data.x.dtype == np.uint8 else x
    over = (-1, *[1] * (x.ndim - 2))
    x = (x - torch.tensor(data.mean).reshape(over)) / torch.tensor(data.std).reshape(over)
    return x, torch.from_numpy(data.y[positions])
