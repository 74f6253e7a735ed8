"""cwFedAvg. Lee and Choi, Class-wise federated averaging for efficient personalization, ICCV 2025 (arXiv
2406.07800)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pfedsim.core.method import AtLeastZero, Fed, Message, Method, Reply, ServerState, Weights
from pfedsim.core.rows import Rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class CwFedAvg(Method):
    """One mean of the models for every class, weighted by the clients' shares of it, which are read from the norms of
    their classifiers' rows. A client gets the class means mixed in its own shares. A regulariser draws the norms to the
    shares of the labels (WDR)."""

    title = "cwFedAvg"
    paper = "Lee and Choi 2025, class-wise aggregation and WDR; lam = 10 as in the authors' README"
    elsewhere = (
        "The authors' code breaks if fewer than all clients take part, because it shapes its weights by the number "
        "of all of them. Their table takes the best round on test data."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.1, 1.0, 10.0), "part": ("head", "all")}

    weights: Weights = "samples"
    part: Annotated[Literal["head", "all"], "what is averaged by class: the classifier, or every layer"] = (
        "all"
    )
    lam: Annotated[AtLeastZero, "strength of the regulariser (lambda)"] = 10.0

    def by_class(self, layout: Layout) -> Tensor:
        """The entries that are averaged by class."""
        return layout.head & layout.trainable if self.part == "head" else layout.trainable

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        means = Rows(theta[self.by_class(fed.layout)])  # one row per class
        shares = Rows(theta.new_full((fed.classes,), 1 / fed.classes))  # one row per client
        return ServerState(0, theta, extra={"means": means, "shares": shares})

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        means, shares, where = server.extra["means"], server.extra["shares"], self.by_class(fed.layout)
        mixes = means.mixes({i: dict(enumerate(shares[i].tolist())) for i in clients})
        return {i: Message(task, server.model.masked_scatter(where, mix)) for i, mix in mixes.items()}

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        """Of f_i + lam / 2 |p - q|, where p are the shares of the labels and q those of the norms."""
        g = job.grad(theta, batches[0])
        if self.lam:
            rows = job.fed.layout.rows(theta)
            norms = rows.norm(dim=1)
            q = norms / norms.sum()
            p = job.labels.bincount(minlength=job.fed.classes) / len(job.labels)
            unit = (q - p) / (q - p).norm().clamp(min=1e-12)
            by_norm = (unit - unit @ q) / norms.sum()
            job.fed.layout.rows(g).add_((self.lam / 2 * by_norm / norms)[:, None] * rows)
        return g

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        where = self.by_class(fed.layout)
        models = {r.client: r.model for r in replies if r.model is not None}
        norms = {i: fed.layout.rows(model).norm(dim=1) for i, model in models.items()}
        shares = {i: n / n.sum() for i, n in norms.items()}  # q_i
        table = {
            c: {r.client: r.weight * float(shares[r.client][c]) for r in replies}
            for c in range(fed.classes)
        }
        trained = Rows(server.model[where], {i: model[where] for i, model in models.items()})
        means = server.extra["means"].put(trained.mixes(table))
        extra = {"means": means, "shares": server.extra["shares"].put(shares)}
        return replace(server, model=self.mean(fed, server, replies), extra=extra)
