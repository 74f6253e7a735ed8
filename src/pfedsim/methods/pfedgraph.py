"""pFedGraph. Ye et al., Personalized federated learning with inferred collaboration graphs, ICML 2023."""

from __future__ import annotations

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
from pfedsim.methods.simplex import cheapest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class PFedGraph(Method):
    """Every client starts from a mix of the round's models. Its weights, the client's row of the collaboration graph,
    favour clients whose models moved in the same direction and that have many samples."""

    title = "pFedGraph"
    paper = "Ye et al. 2023, Algorithm 1; alpha = 0.8 and lam = 0.01 as in the authors' code"
    elsewhere = (
        "The authors' code adds lam cos(theta, mix) to the loss where the method's objective has -cos, so that it "
        "pushes models apart. It treats every cosine above 0.9 as 1, and reports each client's test accuracy where "
        "its validation accuracy was best, before or after training, in any round."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.2, 0.8, 3.2), "lam": (0.0, 0.01, 0.1)}

    alpha: Annotated[Positive, "how strongly weights are held at the shares of samples"] = 0.8
    lam: Annotated[AtLeastZero, "strength of the pull towards the direction of the mix (lambda)"] = 0.01

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        return ServerState(0, theta, Rows(theta))

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        assert server.personal is not None
        return {i: Message(task, server.personal[i]) for i in clients}

    def begin(self, job: Job) -> StartingPoint:
        mix = job.mine(job.message.model)
        if job.message.task == "score" or not self.lam or "own" not in job.memory.extra:
            served = job.memory.extra.get("own", mix) if job.message.task == "score" else mix
            return StartingPoint(served)
        trained = mix.where(job.fed.layout.trainable, 0)
        return StartingPoint(mix, {"direction": trained / trained.norm()})

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        """Of f_i(theta) - lam cos(theta, mix); a client's first round has no mix."""
        g = job.grad(theta, batches[0])
        if "direction" not in job.start.notes:
            return g
        direction = job.start.notes["direction"]
        statistics = theta[job.fed.layout.statistics]
        squared = float(theta @ theta) - float(statistics @ statistics)
        along = float(theta @ direction)  # cos' = u / |theta| - <theta, u> theta / |theta|^3
        return g.add_(direction, alpha=-self.lam / squared**0.5).add_(
            theta, alpha=self.lam * along / squared**1.5
        )

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return job.reply(ends[-1]), job.remember(ends[-1], own=ends[-1])

    def graph(self, fed: Fed, server: ServerState, replies: Sequence[Reply]) -> dict[int, dict[int, float]]:
        """Row i: argmin_w sum_j w_ij d_ij + alpha sum_j (w_ij - p_j)^2 over the simplex, where d_ij is the negative
        cosine of the clients' distances from the initial model and p_j the share of samples."""
        import numpy as np
        import torch

        entries = fed.layout.trainable
        moved = [(r.model - fed.initial)[entries].nan_to_num_(0.0) for r in replies if r.model is not None]
        norms = [float(m.double().norm()) + 1e-12 for m in moved]
        d = np.zeros((len(moved), len(moved)))
        for i, a in enumerate(moved):
            for j in range(i + 1):
                d[i, j] = d[j, i] = -float(torch.dot(a.double(), moved[j].double())) / (norms[i] * norms[j])
        p = np.array([r.weight for r in replies]) / sum(r.weight for r in replies)
        ids = [r.client for r in replies]
        rows = (cheapest(self.alpha * np.eye(len(p)), row - 2 * self.alpha * p) for row in d)
        return {i: dict(zip(ids, row.tolist(), strict=True)) for i, row in zip(ids, rows, strict=True)}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        assert server.personal is not None
        models = Rows(server.model, {r.client: r.model for r in replies if r.model is not None})
        mixes = models.mixes(self.graph(fed, server, replies))
        mean = models.mix({r.client: r.weight for r in replies})  # for clients that never took part
        known = {i: server.personal[i] for i in server.personal.ids}
        return replace(server, model=mean, personal=Rows(mean, known | mixes))
