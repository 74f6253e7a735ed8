"""FedPAC. Xu et al., Personalized federated learning with feature alignment and classifier collaboration, ICLR
2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import (
    AtLeastZero,
    Count,
    Fed,
    Memory,
    Message,
    Method,
    Phase,
    Positive,
    Reply,
    ServerState,
    StartingPoint,
    Weights,
)
from pfedsim.core.rows import Rows
from pfedsim.methods.simplex import cheapest

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class FedPAC(Method):
    """FedAvg of the body, whose features are pulled to their class's common centroid; every client gets the classifier
    that is mixed from the round's classifiers with the least expected error on its features."""

    title = "FedPAC"
    paper = "Xu et al. 2023, Algorithm 1; lam, head_epochs and head_lr as in the authors' code"
    elsewhere = (
        "One library averages the centroids of clients whatever their samples, and takes features in train mode "
        "before training. The authors' code pulls features of a class that has no common centroid to the client's "
        "own; here they are not pulled. Matrices that rounding makes indefinite are repaired there; here the "
        "active-set method needs no repair."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.1, 1.0, 10.0)}

    weights: Weights = "samples"
    lam: Annotated[AtLeastZero, "strength of the pull of features to centroids (lambda)"] = 1.0
    head_epochs: Annotated[Count, "epochs of the classifier, before those of the body"] = 1
    head_lr: Annotated[Positive, "learning rate of the classifier"] = 0.1

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        heads = Rows(theta[fed.layout.head])
        none = theta.new_zeros(fed.classes)
        return ServerState(
            0, theta, extra={"heads": heads, "centroids": fed.layout.rows(theta) * 0, "counts": none}
        )

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        heads = server.extra["heads"]
        models = dict.fromkeys(clients, server.model)
        for i in heads.ids:
            if i in models:
                models[i] = server.model.masked_scatter(fed.layout.head, heads[i])
        known = {name: server.extra[name] for name in ("centroids", "counts")} if task == "train" else {}
        return {i: Message(task, models[i], known) for i in clients}

    def begin(self, job: Job) -> StartingPoint:
        """p_c mu_c for every class, and the variance of the mean of features, at the received body."""
        theta = job.mine(job.message.model)
        if job.message.task != "train" or not len(job.labels):
            return StartingPoint(theta)
        z, n = job.features(theta, job.part("train").x), len(job.labels)
        h = z.new_zeros(job.fed.classes, z.shape[1]).index_add(0, job.labels, z) / n
        v = (z.double().square().sum() / n - h.double().square().sum()).clamp(min=0) / n
        return StartingPoint(theta, {"h": h, "v": v.float().reshape(1)})

    def phases(self, job: Job) -> list[Phase]:
        if job.message.task != "train":
            return []
        layout, settings = job.fed.layout, job.fed.settings
        return [
            Phase(layout.head, self.head_epochs, self.head_lr),
            Phase(layout.body, settings.epochs, settings.lr),
        ]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        (batch,) = batches
        if not self.lam or job.message.task != "train" or job.phase.train is job.fed.layout.head:
            return job.grad(theta, batch)
        centroids = job.message.extra["centroids"][batch.y]
        known = job.message.extra["counts"][batch.y] > 0

        def pull(z: Tensor) -> Tensor:
            """Of lam |z - c_y|^2 / d, in the mean over the batch."""
            return (z - centroids) * known[:, None] * (2 * self.lam / z.numel())

        return job.grad(theta, batch, at_features=pull)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        z, notes = job.features(ends[-1], job.part("train").x), job.start.notes
        sums = z.new_zeros(job.fed.classes, z.shape[1]).index_add(0, job.labels, z)
        counts = job.labels.bincount(minlength=job.fed.classes).to(z.dtype)
        return job.reply(ends[-1], sums=sums, counts=counts, h=notes["h"], v=notes["v"]), job.remember(
            ends[-1]
        )

    def mixes(self, replies: Sequence[Reply]) -> np.ndarray:
        """Row i: the weights of the round's classifiers with the least expected error for client i:
        sum_j a_j^2 v_j + |h_i - sum_j a_j h_j|^2."""
        import numpy as np

        h = np.stack([r.extra["h"].double().numpy().ravel() for r in replies])
        v = np.diag([float(r.extra["v"]) for r in replies])
        zero = np.zeros(len(replies))
        return np.stack([cheapest(v + (own - h) @ (own - h).T, zero) for own in h])

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        head = fed.layout.head
        trained = Rows(
            server.model[head], {r.client: r.model[head] for r in replies if r.model is not None}
        )
        ids = [r.client for r in replies]
        weights = {
            i: dict(zip(ids, row.tolist(), strict=True))
            for i, row in zip(ids, self.mixes(replies), strict=True)
        }
        heads = server.extra["heads"].put(trained.mixes(weights))
        sums, counts = (sum(r.extra[name].double() for r in replies) for name in ("sums", "counts"))
        means = (sums / counts.clamp(min=1)[:, None]).float()  # type: ignore[union-attr]
        met = (counts > 0)[:, None]  # type: ignore[index]
        extra = {
            "heads": heads,
            "centroids": means.where(met, server.extra["centroids"]),
            "counts": server.extra["counts"] + counts.float(),  # type: ignore[union-attr]
        }
        return replace(server, model=self.mean(fed, server, replies), extra={**server.extra, **extra})

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        shape = tuple(fed.layout.rows(fed.initial).shape)
        return {"model": (fed.layout.size,), "sums": shape, "counts": shape[:1], "h": shape, "v": (1,)}
