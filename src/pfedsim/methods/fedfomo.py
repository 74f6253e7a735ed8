"""FedFomo. Zhang et al., Personalized federated learning with first order model optimization, ICLR 2021.

Without exploration by chance: a client is offered the models of last round's clients that helped it most so
far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Lt

from pfedsim.core.method import Count, Fed, Memory, Message, Method, Reply, ServerState, StartingPoint
from pfedsim.core.rows import Pairs, Rows, weighted_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Job


@dataclass(frozen=True)
class FedFomo(Method):
    """Every client has a model of its own and starts from the mix of others' models that do better on its
    validation part."""

    title = "FedFomo"
    paper = "Zhang et al. 2021, section 3; M and validation as in the pFedSim paper"
    elsewhere = (
        "The validation part is redrawn at every load in one code base, so that it leaks into training; "
        "the loss is summed over "
        "batches and divided by samples; candidates are drawn from all clients rather than the last "
        "round's."
    )

    validation: Annotated[
        float, Ge(0), Lt(1), "share of a client's train part that judges others' models"
    ] = 0.2
    models: Annotated[Count, "most models that a client is offered in a round (M)"] = 5

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        import torch

        nobody = torch.zeros(0, dtype=torch.int64)
        return ServerState(0, theta, Rows(theta), {"affinity": Pairs(), "last": nobody})

    def offered(self, server: ServerState, client: int) -> list[int]:
        """Whose models this client gets: the M of last round's clients with the largest affinity; its own,
        if there, counts 1."""
        row = {client: 1.0, **server.extra["affinity"].row(client)}
        ranked = sorted(server.extra["last"].tolist(), key=lambda j: (-row.get(j, 0.0), j))
        return [j for j in ranked[: self.models] if j != client]  # its own it gets anyway

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        import torch

        personal = server.personal
        assert personal is not None
        if task == "score":  # the client's own model as it left its last training
            return {i: Message(task, personal[i]) for i in clients}
        none = fed.initial.new_empty(0, fed.layout.size)
        models = {
            i: torch.cat([none, *(personal[j][None] for j in self.offered(server, i))]) for i in clients
        }
        return {i: Message(task, personal[i], models={"offered": models[i]}) for i in clients}

    def begin(self, job: Job) -> StartingPoint:
        import torch

        own = job.mine(job.message.model)
        others = [job.mine(model) for model in job.message.models.get("offered", ())]
        if not others or not len(job.part("validation").y):
            return StartingPoint(own, {"affinity": own.new_zeros(len(others))})
        loss, trainable = job.loss_on(own, "validation"), job.fed.layout.trainable
        apart = [float((model - own)[trainable].double().norm()) for model in others]
        # w_m = (L_i(own) - L_i(m)) / (|theta_m - theta_own| + 1e-5)
        w = [
            (loss - job.loss_on(model, "validation")) / (d + 1e-5)
            for model, d in zip(others, apart, strict=True)
        ]
        better = [(weight, model) for weight, model in zip(w, others, strict=True) if weight > 0]
        return StartingPoint(
            weighted_mean(better) if better else own,
            {"affinity": torch.tensor(w, dtype=own.dtype, device=own.device)},
        )

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return job.reply(ends[-1], affinity=job.start.notes["affinity"]), job.remember(ends[-1])

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        import torch

        personal, affinity = server.personal, server.extra["affinity"]
        assert personal is not None
        gained = {}
        for reply in replies:  # P[i, m] += w_m
            known = affinity.row(reply.client)
            for j, w in zip(
                self.offered(server, reply.client), reply.extra["affinity"].tolist(), strict=True
            ):
                gained[reply.client, j] = known.get(j, 0.0) + w
        personal = personal.put({r.client: r.model for r in replies if r.model is not None})
        last = torch.tensor([r.client for r in replies])
        return replace(server, personal=personal, extra={"affinity": affinity.put(gained), "last": last})

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "affinity": (len(message.models["offered"]),)}
