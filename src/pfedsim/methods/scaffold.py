"""SCAFFOLD. Karimireddy et al., SCAFFOLD: Stochastic controlled averaging for federated learning, ICML 2020."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import (
    Fed,
    Memory,
    Message,
    Method,
    Positive,
    Reply,
    ServerState,
    StartingPoint,
    Weights,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class Scaffold(Method):
    """FedAvg whose clients correct every gradient by c - c_i, the mean direction less their own, as learnt in earlier
    rounds. For plain SGD: with momentum or weight decay, c_i holds them too."""

    title = "SCAFFOLD"
    paper = "Karimireddy et al. 2020, Algorithm 1 with option II; eta_g = 1 as in section 7"
    elsewhere = (
        "One code base trains one batch per local epoch, a fraction of what its other methods train; one divides "
        "the sum of steps by the clients that were asked, whoever answered. Clients usually send the change of "
        "their control, as large as the model. It follows from the model they send and from K eta, so here they "
        "send that one number."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"eta_g": (0.3, 1.0)}

    weights: Weights = "uniform"
    eta_g: Annotated[Positive, "learning rate of the server"] = 1.0

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        return ServerState(0, theta, extra={"c": theta.double() * 0})

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        c = {"c": server.extra["c"].float()} if task == "train" else {}
        return {i: Message(task, server.model, models=c) for i in clients}

    def begin(self, job: Job) -> StartingPoint:
        theta, c = job.mine(job.message.model), job.message.models.get("c")
        if c is None:
            return StartingPoint(theta)
        shift = c.where(job.fed.layout.trainable, 0)
        if "c_i" in job.memory.extra:
            shift = shift - job.memory.extra["c_i"]
        return StartingPoint(theta, {"shift": shift})  # c - c_i

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        return job.grad(theta, batches[0]).add_(job.start.notes["shift"])

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        lr = job.phase.lr * job.fed.settings.pace(job.round)
        pace = ends[-1].new_full((1,), job.steps * lr)  # K eta
        if not job.steps:
            return job.reply(ends[-1], pace=pace), job.remember(ends[-1])
        moved = (job.start.theta - ends[-1]).where(job.fed.layout.trainable, 0)
        c_i = moved.div_(job.steps * lr).sub_(job.start.notes["shift"])  # c_i - c + (x - y) / (K eta)
        return job.reply(ends[-1], pace=pace), job.remember(ends[-1], c_i=c_i)

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        trainable, old = fed.layout.trainable, server.extra["c"]
        c = old.clone()
        for reply in replies:
            assert reply.model is not None
            if pace := float(reply.extra["pace"]):
                moved = (server.model.double() - reply.model).where(trainable, 0)
                c += (moved / pace - old) / fed.clients  # N: all clients
        mean = self.mean(fed, server, replies)
        model = server.model + self.eta_g * (mean - server.model) if self.eta_g != 1 else mean
        return replace(server, model=model.where(trainable, mean), extra={**server.extra, "c": c})

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "pace": (1,)}
