"""Methods with two stages, a warm-up by another method and then their own: pFedSim and f-FedAP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pfedsim.core.method import (
    Fed,
    Memory,
    Message,
    Method,
    Phase,
    Reply,
    ServerState,
    Share,
    StartingPoint,
)
from pfedsim.core.rows import Rows
from pfedsim.errors import Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from pfedsim.backends.base import AutogradNet
    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout

WARM = "warm"


@dataclass(frozen=True)
class TwoStage(Method):
    """Delegates every hook to `first()` for floor(rho T) rounds, then to `second()`. The server knows the stage from
    `server.personal`, a client from `message.stage`. Rounds count even if nobody replied."""

    rho: Share = 0.5

    def first(self) -> Method:
        """The warm-up."""
        raise NotImplementedError

    def second(self) -> Method:
        """The second stage, with one model per client in `server.personal`."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stages  # noqa: B018 - refuses an unknown warm-up now, and caches the stages before first use

    @cached_property
    def _stages(self) -> tuple[Method, Method]:
        return self.first(), self.second()

    def _at_server(self, server: ServerState) -> Method:
        return self._stages[server.personal is not None]

    def _at_client(self, message: Message) -> Method:
        return self._stages[message.stage != WARM]

    def warm_rounds(self, rounds: int) -> int:
        """The number of rounds of the warm-up: T_g = floor(rho T)."""
        return math.floor(self.rho * rounds + 1e-9)

    @property
    def buffers(self) -> str:  # type: ignore[override]
        """Norm statistics are averaged if one of the stages asks for it."""
        return next((stage.buffers for stage in self._stages if stage.buffers), "")

    def _after(self, fed: Fed, server: ServerState, finished: int) -> ServerState:
        """The server's state after so many finished rounds. At the switch, every client gets the common model."""
        if server.personal is None and finished >= self.warm_rounds(fed.settings.rounds):
            return replace(server, personal=Rows(server.model))
        return server

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        first, second = self._stages
        if first.reshapes() or not (first.keeps(fed.layout) == second.keeps(fed.layout)).all():
            raise Error(
                f"{self.title}: {first.title or type(first).__name__} cannot be the warm-up, because it keeps "
                "part of the model at the clients"
                if not first.reshapes()
                else f"{self.title}: {first.title or type(first).__name__} cannot be the warm-up, because it changes "
                "the network"
            )
        server = first.init(fed, theta, rng)
        if server.personal is not None or isinstance(first, TwoStage):
            raise Error(
                f"{self.title}: {first.title or type(first).__name__} cannot be the warm-up, because it has no "
                "common model"
            )
        return self._after(fed, server, 0)

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        server = self._after(fed, server, server.round)
        return self._at_server(server).plan(fed, server, sampled)

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        server = self._after(fed, server, server.round)
        messages = self._at_server(server).send(fed, server, clients, task)
        if server.personal is not None:
            return messages
        return {i: replace(message, stage=WARM) for i, message in messages.items()}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        server = self._after(fed, server, server.round)
        server = self._at_server(server).aggregate(fed, server, task, replies, rng)
        return self._after(fed, server, server.round + 1) if task == "train" else server

    def keeps(self, layout: Layout) -> Tensor:
        return self._stages[1].keeps(layout)

    def begin(self, job: Job) -> StartingPoint:
        return self._at_client(job.message).begin(job)

    def phases(self, job: Job) -> list[Phase]:
        return self._at_client(job.message).phases(job)

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        return self._at_client(job.message).gradient(job, theta, batches)

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        return self._at_client(job.message).loss(job, net, batch)

    def network(self, net: nn.Module, head: str) -> nn.Module:
        return self._stages[1].network(net, head)

    def plain(self, job: Job) -> bool:
        return self._at_client(job.message).plain(job)

    def autograd(self) -> bool:
        return any(stage.autograd() for stage in self._stages)

    def reshapes(self) -> bool:
        return self._stages[1].reshapes()

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return self._at_client(job.message).finish(job, ends)

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return self._at_client(message).replies(fed, message)
