"""f-FedAP. Lu et al., Personalized federated learning with adaptive batchnorm for healthcare, IEEE
Transactions on Big Data 2022 (arXiv 2112.00734): the variant that warms up with FedBN and needs no pre-trained
model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState, Share, Weights
from pfedsim.core.rows import Rows
from pfedsim.methods.fedbn import FedBN
from pfedsim.methods.two_stage import TwoStage

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class Adaptation(FedBN):
    """After the warm-up, every client sends the statistics of its samples at each norm layer once; from then on,
    models are mixed by the distance between these statistics."""

    title = "f-FedAP"

    mu: Share = 0.5

    def row(self, layout: Layout, statistics: Rows, client: int) -> dict[int, float]:
        """A_ij over all j: mu for i itself, the rest proportional to 1 / W_ij. Clients without statistics are not
        mixed."""
        import torch

        others = [j for j in statistics.ids if j != client]
        if client not in statistics or not others:
            return {client: 1.0}
        apart = torch.stack([statistics[j] for j in others]).double() - statistics[client].double()
        layers = torch.split(apart, [2 * channels for _, channels in layout.norms], dim=1)
        # W_ij = sum_l sqrt(|mu_i - mu_j|^2 + |sigma_i - sigma_j|^2)
        distance = torch.stack([layer.norm(dim=1) for layer in layers]).sum(0)
        near = (1 / distance).clamp(max=1e14)
        shares = ((1 - self.mu) * near / near.sum()).tolist()
        return {client: self.mu, **dict(zip(others, shares, strict=True))}

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        asked, statistics = server.extra.get("asked"), _statistics(fed, server)
        absent = range(fed.clients) if asked is None else [i for i in sampled if i not in statistics]
        # a round asks for statistics at most once
        return ("stats", absent) if absent and asked != server.round else ("train", sampled)

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        if task == "stats":
            return super().send(fed, server, clients, task)
        personal, statistics = server.personal, _statistics(fed, server)
        assert personal is not None
        mixed = personal.mixes({i: self.row(fed.layout, statistics, i) for i in clients})
        return {i: Message(task, mixed[i]) for i in clients}

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        import torch

        if job.message.task != "stats":
            return super().finish(job, ends)
        layers = [part for _, mean, variance in job.moments(ends[-1]) for part in (mean, variance.sqrt())]
        return job.reply(None, statistics=torch.cat(layers)), job.memory

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        import torch

        if task == "stats":
            statistics = _statistics(fed, server).put({r.client: r.extra["statistics"] for r in replies})
            asked = torch.tensor(server.round)
            return replace(server, extra={**server.extra, "statistics": statistics, "asked": asked})
        assert server.personal is not None
        models = {r.client: r.model for r in replies if r.model is not None}
        return replace(server, personal=server.personal.put(models))

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"statistics": (_length(fed),)} if message.task == "stats" else super().replies(fed, message)


def _length(fed: Fed) -> int:
    return 2 * sum(channels for _, channels in fed.layout.norms)


def _statistics(fed: Fed, server: ServerState) -> Rows:
    """Mean and standard deviation of every channel, norm layer by norm layer, of the clients that sent them."""
    known: Rows = server.extra.get("statistics", Rows(fed.initial.new_zeros(_length(fed))))
    return known


@dataclass(frozen=True)
class FedAP(TwoStage):
    """FedBN for floor(rho T) rounds. Then every client's model is mixed from all models, with fixed weights by the
    similarity of the inputs of their norm layers."""

    title = "f-FedAP"
    paper = "Lu et al. 2022, f-FedAP; rho and mu as in the pFedSim paper"
    elsewhere = (
        "The paper names the output of batch norm layers, but the statistics are those of their input. One "
        "version computes the mix at scoring, a later one does not; one trains a single epoch in the warm-up."
    )

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"rho": (0.3, 0.5, 0.7), "mu": (0.3, 0.5, 0.7)}
    weights: Weights = "samples"
    rho: Annotated[Share, "share of rounds in the warm-up"] = 0.5
    mu: Annotated[Share, "weight of the client's own model in its mix"] = 0.5

    def first(self) -> Method:
        return FedBN(self.weights)

    def second(self) -> Method:
        return Adaptation(mu=self.mu)
