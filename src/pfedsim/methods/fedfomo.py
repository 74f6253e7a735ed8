"""FedFomo. Zhang et al., Personalized federated learning with first order model optimization, ICLR 2021.

Without random exploration: a client is offered the models of those clients of the last round that have helped it
most so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from pfedsim.core.method import Count, Fed, Memory, Message, Method, Reply, ServerState, StartingPoint
from pfedsim.core.rows import Pairs, Rows, weighted_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Job


@dataclass(frozen=True)
class FedFomo(Method):
    """Every client has a personal model. It starts training from a mix of the other clients' models that do better
    on its validation part."""

    title = "FedFomo"
    tunes = "train"  # the second score tunes a fresh mix of the models on offer, as the next round would
    paper = "Zhang et al. 2021, section 3; M and validation as in the pFedSim paper"
    elsewhere = (
        "One code base redraws the validation part at every load, which leaks it into training, sums the loss "
        "over batches and divides it by samples, and draws candidates from all clients rather than from those of "
        "the last round. The authors compare models with the client's own model before its last local training "
        "and count its current model as a candidate, which then gets most of the weight (preset `authors`); the "
        "benchmark compares with the current model, which is also the default here."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"authors": {"baseline": "before"}}

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"models": (3, 5, 10)}
    validation: Annotated[
        float, Ge(0), Lt(1), "share of a client's train part that judges others' models"
    ] = 0.2
    models: Annotated[Count, "largest number of models offered to a client in a round (M)"] = 5
    baseline: Annotated[
        Literal["current", "before"],
        "what models are compared with: the client's current model, or its model before its last local training",
    ] = "current"

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        import torch

        nobody = torch.zeros(0, dtype=torch.int64)
        return ServerState(0, theta, Rows(theta), {"affinity": Pairs(), "last": nobody})

    def offered(self, server: ServerState, client: int) -> list[int]:
        """The clients whose models this client gets: the M of last round's clients with the largest affinity. Its
        own affinity is 1."""
        row = {client: 1.0, **server.extra["affinity"].row(client)}
        ranked = sorted(server.extra["last"].tolist(), key=lambda j: (-row.get(j, 0.0), j))
        return [j for j in ranked[: self.models] if j != client]  # it gets its own model anyway

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        import torch

        personal = server.personal
        assert personal is not None
        if task == "score":  # the client's model after its last training
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
        before = job.memory.extra.get("before")
        base = own if before is None else job.mine(before)
        candidates = others if before is None else [*others, own]
        loss, trainable = job.loss_on(base, "validation"), job.fed.layout.trainable
        apart = [float((model - base)[trainable].double().norm()) for model in candidates]
        # w_m = (L_i(base) - L_i(m)) / (|theta_m - theta_base| + 1e-5)
        w = [
            (loss - job.loss_on(model, "validation")) / (d + 1e-5)
            for model, d in zip(candidates, apart, strict=True)
        ]
        better = [(weight, model) for weight, model in zip(w, candidates, strict=True) if weight > 0]
        return StartingPoint(
            weighted_mean(better) if better else base,
            {"affinity": torch.tensor(w[: len(others)], dtype=own.dtype, device=own.device)},
        )

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        before = {"before": job.start.theta} if self.baseline == "before" else {}
        return job.reply(ends[-1], affinity=job.start.notes["affinity"]), job.remember(ends[-1], **before)

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
