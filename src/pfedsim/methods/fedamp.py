"""FedAMP. Huang et al., Personalized cross-silo federated learning on non-IID data, AAAI 2021 (arXiv 2007.03797)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import (
    AtLeastZero,
    Fed,
    Memory,
    Message,
    Method,
    Positive,
    Reply,
    ServerState,
    StartingPoint,
)
from pfedsim.core.rows import Rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class FedAMP(Method):
    """Every client has a personal model w_i and a cloud model u_i, mixed from the personal models that are near w_i:
    clients minimise f_i(w) + lam / (2 alpha) |w - u_i|^2."""

    title = "FedAMP"
    paper = "Huang et al. 2021, Algorithm 1, with A(x) = 1 - exp(-x / sigma); options as in PFLlib"
    elsewhere = (
        "Two libraries leave out the square of |w - u_i|, so that the pull has a fixed length, and one replaces "
        "A' by exp(10 cos) with a fixed own weight, which the paper calls HeurFedAMP. Weights of others are not "
        "limited, so that with many clients the own weight turns negative; here others share at most 1."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"sigma": (1.0, 10.0, 100.0), "lam": (0.1, 1.0)}

    lam: Annotated[AtLeastZero, "strength of the pull towards the cloud model (lambda)"] = 1.0
    alpha: Annotated[Positive, "step of the message passing (alpha_k)"] = 1.0
    sigma: Annotated[Positive, "squared distance at which models hardly attract each other"] = 1.0

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        return ServerState(0, theta, Rows(theta))

    def attention(self, fed: Fed, personal: Rows, client: int) -> dict[int, float]:
        """xi_ij = alpha A'(|w_i - w_j|^2), and the rest for i itself, over those that took part."""
        own = personal[client]
        xi = {}
        for j in personal.ids:
            if j != client:
                apart = (own - personal[j])[fed.layout.trainable].double()
                squared = float(apart.nan_to_num_(0.0).square_().sum())  # kept entries are NaN
                xi[j] = self.alpha * math.exp(-squared / self.sigma) / self.sigma
        most = max(1.0, sum(xi.values()))
        xi = {j: weight / most for j, weight in xi.items()}
        return {**xi, client: max(0.0, 1 - sum(xi.values()))}

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        personal = server.personal
        assert personal is not None
        if task != "train":
            return {i: Message(task, personal[i]) for i in clients}
        u = personal.mixes({i: self.attention(fed, personal, i) for i in clients})
        return {i: Message(task, u[i]) for i in clients}

    def begin(self, job: Job) -> StartingPoint:
        received = job.mine(job.message.model)  # u_i, or to be scored w_i
        return StartingPoint(job.memory.extra.get("own", received), {"u": received})

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        pull = (theta - job.start.notes["u"]).mul_(self.lam / self.alpha)
        return job.grad(theta, batches[0]).add_(pull)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return job.reply(ends[-1]), job.remember(ends[-1], own=ends[-1])

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        assert server.personal is not None
        models = {r.client: r.model for r in replies if r.model is not None}
        return replace(server, personal=server.personal.put(models))
