"""FedDBE. Zhang et al., Eliminating domain bias for federated learning in representation space, NeurIPS 2023."""

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
    Phase,
    Reply,
    ServerState,
    StartingPoint,
    Weights,
)
from pfedsim.core.rows import weighted_mean
from pfedsim.methods.linear import refuse_deep

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class FedDBE(Method):
    """FedAvg whose clients keep a vector of their own that is added to the features (PRBM), while the features' mean is
    held at a mean that all clients agreed on before the first round (MR)."""

    title = "FedDBE"
    paper = (
        "Zhang et al. 2023, Algorithm 1; kappa = 50 and the mean of each batch (momentum 1) as in section 5 and the "
        "authors' run_me.sh"
    )
    elsewhere = (
        "The authors' code halves the squares of MR, so that its kappa of 50 is 25 here, and takes each client's "
        "mean before the first round from its last batch alone. A library has it with momentum 0.1 and kappa 0 as "
        "defaults, which is no regularisation at all."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"kappa": (1.0, 10.0, 50.0)}

    weights: Weights = "samples"
    kappa: Annotated[AtLeastZero, "strength of the pull of the features' mean"] = 50.0

    def network(self, net: nn.Module, head: str) -> nn.Module:
        """The last linear layer gets a vector of the features' length. It need not read it: W (z + p) + b is
        W z + (b + W p)."""
        import torch

        linear = [m for m in net.get_submodule(head).modules() if isinstance(m, torch.nn.Linear)][-1]
        linear.register_parameter("own", torch.nn.Parameter(torch.zeros(linear.in_features)))
        return net

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        refuse_deep("FedDBE", fed.layout, beside=self.keeps(fed.layout))
        return super().init(fed, theta, rng)

    def keeps(self, layout: Layout) -> Tensor:
        mask = layout.head & False
        layout.view(mask, _own(layout)).fill_(True)
        return mask

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        return ("train", sampled) if "mean" in server.extra else ("mean", range(fed.clients))

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        mean = {"mean": server.extra["mean"]} if task == "train" else {}
        return {i: Message(task, server.model, mean) for i in clients}

    def begin(self, job: Job) -> StartingPoint:
        theta, layout = job.mine(job.message.model), job.fed.layout
        if job.message.task != "score":
            return StartingPoint(theta)
        served, own = theta.clone(), layout.view(theta, _own(layout))
        served[layout.bias] += layout.rows(theta) @ own
        layout.view(served, _own(layout)).zero_()
        return StartingPoint(served)

    def phases(self, job: Job) -> list[Phase]:
        layout, settings = job.fed.layout, job.fed.settings
        if job.message.task == "score":
            return []
        moves = layout.trainable
        if job.message.task == "mean":
            moves = moves & ~self.keeps(layout)
        return [Phase(moves, settings.epochs, settings.lr)]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        layout = job.fed.layout
        mean = job.message.extra.get(
            "mean", theta[:0]
        )  # none before the first round, or if nobody answered then
        w, p = layout.rows(theta), layout.view(theta, _own(layout))

        def regularise(z: Tensor) -> Tensor:
            """Of kappa MSE(mean of the batch's features, common mean)."""
            return (2 * self.kappa / z.numel() * (z.mean(0) - mean)).expand_as(z).clone()

        shifted = theta.clone()
        shifted[layout.bias] += w @ p
        g = job.grad(shifted, batches[0], at_features=regularise if len(mean) else None)
        by_b = g[layout.bias]
        layout.rows(g).add_(by_b.outer(p))
        layout.view(g, _own(layout)).copy_(by_b @ w)
        return g

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        if job.message.task != "mean":
            return job.reply(ends[-1]), job.remember(ends[-1])
        z = job.features(ends[-1], job.part("train").x)  # this model is only looked at
        return job.reply(None, mean=z.mean(0)), job.memory

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        if task != "mean":
            return super().aggregate(fed, server, task, replies, rng)
        means = [(r.weight, r.extra["mean"]) for r in replies]
        return replace(server, extra={"mean": weighted_mean(means) if means else server.model[:0]})

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        if message.task == "mean":
            return {"mean": tuple(fed.layout.rows(fed.initial).shape[1:])}
        return super().replies(fed, message)


def _own(layout: Layout) -> str:
    """The name of the vector that is added to the features."""
    return layout.last.removesuffix("weight") + "own"
