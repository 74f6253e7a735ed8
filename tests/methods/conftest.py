"""A small network in float64 whose gradients are plain autograd, and real runs on digits at the level of
the loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import small
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from pfedsim.backends.torch import TorchNet
from pfedsim.core.job import Batch
from pfedsim.core.layout import Layout, layout_of
from pfedsim.core.method import Fed, Memory, Message, Reply, StartingPoint
from pfedsim.core.settings import Settings
from pfedsim.data.federation import Federation
from pfedsim.runs import config
from pfedsim.runs.setup import Session, federate, prepare


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Small(nn.Module):
    """Five numbers in, three classes out, with a norm layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.norm(self.inner(x)).tanh())
        return scores


@dataclass
class SmallJob:
    """What hooks need of a job, in float64, without any of pfedsim's training code."""

    fed: Fed
    start: StartingPoint
    message: Message
    memory: Memory = field(default_factory=Memory)
    client: int = 0
    round: int = 0
    labels: Tensor = field(default_factory=lambda: torch.tensor([0, 1, 2]))
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))
    module: Small = field(default_factory=lambda: Small().double().train())

    def scores(self, theta: Tensor, x: Tensor) -> Tensor:
        named = {
            k: v.detach().clone() if "running" in k else v for k, v in self.fed.layout.named(theta).items()
        }
        out: Tensor = functional_call(self.module, named, (x,))
        return out

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        named = self.fed.layout.named(theta)
        return z @ named["classifier.weight"].T + named["classifier.bias"]

    def grad(self, theta: Tensor, batch: Batch, targets: Tensor | None = None) -> Tensor:
        return by(
            theta,
            lambda t: F.cross_entropy(self.scores(t, batch.x), batch.y if targets is None else targets),
        )

    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        by_theta = by(theta, lambda t: F.cross_entropy(self.head(t, z), targets))
        return by_theta, by(z, lambda at: F.cross_entropy(self.head(theta, at), targets))

    def mine(self, model: Tensor) -> Tensor:
        return model

    def reply(self, model: Tensor | None, **extra: Tensor) -> Reply:
        return Reply(self.client, float(len(self.labels)), model, extra)

    def remember(self, theta: Tensor, **extra: Tensor) -> Memory:
        return Memory(None, extra)


def by(theta: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Gradient of a loss of one vector."""
    theta = theta.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(theta), theta)
    return gradient


@pytest.fixture
def gradient_of() -> Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]:
    return by


@pytest.fixture
def small_fed() -> Fed:
    """Four clients and the small network."""
    torch.manual_seed(3)
    module = Small()
    layout = layout_of(module)
    state = module.state_dict()
    initial = layout.flat({name: state[name] for name in layout.names})
    net = TorchNet(module, layout, "classifier", torch.zeros(1), torch.ones(1), torch.device("cpu"))
    return Fed(4, 3, layout, net, initial, Settings(rounds=4, join=0.5, epochs=1))


def near(layout: Layout, initial: Tensor, seed: int, size: float = 0.5) -> Tensor:
    """A float64 model at some distance of the initial one, with positive variances."""
    noise = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(layout.buffers, initial.double() + noise.abs(), initial.double() + size * noise)


@pytest.fixture
def small_job(small_fed: Fed) -> SmallJob:
    start = near(small_fed.layout, small_fed.initial, 1)
    return SmallJob(small_fed, StartingPoint(start), Message("train", start))


@pytest.fixture
def point(small_fed: Fed) -> Tensor:
    """Where gradients are taken: not the start."""
    return near(small_fed.layout, small_fed.initial, 2)


@pytest.fixture
def batches() -> list[Batch]:
    rng = torch.Generator().manual_seed(4)
    xs = [torch.randn(7, 5, generator=rng, dtype=torch.float64) for _ in range(2)]
    return [Batch(x, torch.tensor([0, 1, 2, 0, 1, 2, 2])) for x in xs]


@cache
def digits(clients: int) -> Federation:
    """Dealt unevenly."""
    return federate(config.check({"data": "digits", "clients": clients, "alpha": 0.5}))


@pytest.fixture
def session() -> Callable[..., Session]:
    """Everything for a short run on digits; settings as on the command line."""

    def make(method: str, clients: int = 4, **settings: Any) -> Session:
        words: Mapping[str, Any] = {"rounds": 2, "epochs": 1, "join": 0.5, "batch": 64, **settings}
        return prepare(
            config.check({"data": "digits", "method": method, "workers": 1, **words}), digits(clients)
        )

    return make


@pytest.fixture
def rounds() -> Callable[..., list[small.Seen]]:
    """All rounds of a session."""

    def run(session: Session, engine: Any = None) -> list[small.Seen]:
        return list(small.rounds(session, engine=engine))

    return run
