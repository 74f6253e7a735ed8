"""Controls: FedPer (Arivazhagan et al. 2019) after pFedSim's warm-up, and FedDyn and Per-FedAvg as the
author's code of the paper's time has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pfedsim.core import Fed, Memory, Message, Method, Reply, ServerState, Share
from pfedsim.methods import FedDyn, PerFedAvg, TwoStage

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core import Batch, Job


@dataclass(frozen=True)
class OwnHeads(Method):
    """One extractor for all, averaged; a classifier for each, which the server holds for it."""

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        assert server.personal is not None
        return {i: Message(task, server.model.where(~fed.layout.head, server.personal[i])) for i in clients}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        assert server.personal is not None
        personal = server.personal.put({r.client: r.model for r in replies if r.model is not None})
        return replace(server, model=self.mean(fed, server, replies), personal=personal)


@dataclass(frozen=True)
class WarmFedPer(TwoStage):
    """FedAvg for floor(rho T) rounds, then FedPer."""

    title = "FedPer, warmed up"
    paper = "a control, not of the paper"

    rho: Annotated[Share, "share of the rounds that warm up"] = 0.5

    def first(self) -> Method:
        from pfedsim.methods import parse

        return parse("fedavg")

    def second(self) -> Method:
        return OwnHeads()


@dataclass(frozen=True)
class FedDynAsRun(FedDyn):
    """The linear term has no gradient, so that the memory does nothing, and the norm is not squared: a pull
    of constant length."""

    title = "FedDyn, the author's code"
    paper = "a control, not of the paper"

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        apart = (theta - job.start.theta).where(job.fed.layout.trainable, 0)
        return job.grad(theta, batches[0]) + self.alpha / 2 * apart / max(float(apart.norm()), 1e-12)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return job.reply(ends[-1]), job.remember(ends[-1])


@dataclass(frozen=True)
class PerFedAvgAsRun(PerFedAvg):
    """Restoring the weights after the inner step restores the norm statistics too: training leaves a
    client's as they were."""

    title = "Per-FedAvg, the author's code"
    paper = "a control, not of the paper"

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        before = ends[-1].where(~job.fed.layout.buffers, job.start.theta)
        return job.reply(before), job.remember(before)
