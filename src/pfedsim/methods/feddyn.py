"""FedDyn. Acar et al., Federated learning based on dynamic regularization, ICLR 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Fed, Memory, Method, Positive, Reply, ServerState, Weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class FedDyn(Method):
    """Client i minimises f_i(theta) - <v_i, theta> + alpha/2 |theta - theta_received|^2, where its memory
    v_i makes the clients' optima agree with the common one. Only trained entries are corrected; norm
    statistics are averaged as in FedAvg."""

    title = "FedDyn"
    paper = "Acar et al. 2021, Algorithm 1; alpha as in the pFedSim paper"
    elsewhere = (
        "When the pFedSim paper was written, its author's benchmark had one memory for all clients, a linear term "
        "without gradient, and a norm that is not squared; a later version lacks the alpha theta term. Another "
        "library does not square the norm either. Here: a memory per client, the squared norm, h over all n "
        "clients. The model that is sent and scored is mean - h / alpha, as in Algorithm 1; the FedDyn authors' "
        "code scores the plain mean of the clients' models."
    )

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.001, 0.01, 0.1)}
    weights: Weights = "uniform"
    alpha: Annotated[Positive, "strength of the dynamic regularisation"] = 0.01
    clip: Annotated[Positive, "largest norm of the loss gradient in a step"] = 10.0

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        return ServerState(0, theta, extra={"h": theta.double() * 0})

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        g = job.grad(theta, batches[0])
        shrink = self.clip / max(self.clip, float(g.norm()))
        return g.mul_(shrink).sub_(_memory(job)).add_((theta - job.start.theta).mul_(self.alpha))

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        moved = (ends[-1] - job.start.theta).where(job.fed.layout.trainable, 0)
        memory = _memory(job) - self.alpha * moved  # v_i <- v_i - alpha (theta_i - theta)
        return job.reply(ends[-1]), job.remember(ends[-1], memory=memory)

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        theta, h = server.model.double(), server.extra["h"]
        for reply in replies:
            assert reply.model is not None
            moved = (reply.model.double() - theta).where(fed.layout.trainable, 0)
            h = h - self.alpha / fed.clients * moved  # n: all clients
        model = (self.mean(fed, server, replies).double() - h / self.alpha).float()
        return replace(server, model=model, extra={**server.extra, "h": h})


def _memory(job: Job) -> Tensor:
    """v_i, initially zero."""
    memory = job.memory.extra.get("memory")
    return job.start.theta * 0 if memory is None else memory
