"""A warm-up by another method, then a stage of its own: pFedSim's generalization and personalization,
f-FedAP's likewise."""

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
    from torch import Tensor

    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout

WARM = "warm"


@dataclass(frozen=True)
class TwoStage(Method):
    """Every hook goes to `first()` for floor(rho T) rounds, then to `second()`: told apart by
    `server.personal` at the server and by `message.stage` at the client, never by the round."""

    rho: Share = 0.5

    def first(self) -> Method:
        """The warm-up."""
        raise NotImplementedError

    def second(self) -> Method:
        """What follows, with one model per client in `server.personal`."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stages  # noqa: B018 - here, so that nothing about a method changes later and a warm-up that does not exist is refused

    @cached_property
    def _stages(self) -> tuple[Method, Method]:
        return self.first(), self.second()

    def _at_server(self, server: ServerState) -> Method:
        return self._stages[server.personal is not None]

    def _at_client(self, message: Message) -> Method:
        return self._stages[message.stage != WARM]

    def warm_rounds(self, rounds: int) -> int:
        """How many rounds the warm-up takes: T_g = floor(rho T)."""
        return math.floor(self.rho * rounds + 1e-9)

    def _turn(self, fed: Fed, server: ServerState, finished: int) -> ServerState:
        """At the switch every client gets the common model."""
        if server.personal is None and finished >= self.warm_rounds(fed.settings.rounds):
            return replace(server, personal=Rows(server.model))
        return server

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        first, second = self._stages
        if not (first.keeps(fed.layout) == second.keeps(fed.layout)).all():
            raise Error(
                f"{self.title}: {first.title or type(first).__name__} cannot warm up, because it keeps "
                "part of the model at home"
            )
        server = first.init(fed, theta, rng)
        if server.personal is not None or isinstance(first, TwoStage):
            raise Error(
                f"{self.title}: {first.title or type(first).__name__} cannot warm up, because it has no "
                "common model"
            )
        return self._turn(fed, server, 0)

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        return self._at_server(server).plan(fed, server, sampled)

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        messages = self._at_server(server).send(fed, server, clients, task)
        if server.personal is not None:
            return messages
        return {i: replace(message, stage=WARM) for i, message in messages.items()}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        server = self._at_server(server).aggregate(fed, server, task, replies, rng)
        return self._turn(fed, server, server.round + 1) if task == "train" else server

    def keeps(self, layout: Layout) -> Tensor:
        return self._stages[1].keeps(layout)

    def begin(self, job: Job) -> StartingPoint:
        return self._at_client(job.message).begin(job)

    def phases(self, job: Job) -> list[Phase]:
        return self._at_client(job.message).phases(job)

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        return self._at_client(job.message).gradient(job, theta, batches)

    def plain(self, job: Job) -> bool:
        return self._at_client(job.message).plain(job)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return self._at_client(job.message).finish(job, ends)

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return self._at_client(message).replies(fed, message)
