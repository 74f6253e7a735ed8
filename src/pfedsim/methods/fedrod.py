"""Fed-RoD. Chen and Chao, On bridging generic and personalized federated learning for image classification, ICLR
2022."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import (
    AtLeastZero,
    Fed,
    Memory,
    Method,
    Phase,
    Reply,
    ServerState,
    StartingPoint,
    Weights,
)
from pfedsim.methods.linear import refuse_deep

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class FedRoD(Method):
    """FedAvg of a generic model that is trained on the balanced softmax, as if every client had all classes alike. A
    second, linear classifier of the client's own learns what must be added to its scores for the client's samples."""

    title = "FedRoD"
    paper = (
        "Chen and Chao 2022, section 4: the balanced risk with the balanced softmax (gamma = 1), the empirical "
        "risk of the sum of both classifiers, and the linear personal classifier"
    )
    elsewhere = (
        "One library starts the personal classifier from a copy of the generic one, so that a client which never "
        "trained is served twice its scores; here it starts at zero. One trains with the mean of the balanced "
        "probabilities in place of their negative logarithm."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"gamma": (0.5, 1.0)}

    weights: Weights = "samples"
    gamma: Annotated[AtLeastZero, "power of the class counts in the balanced softmax"] = 1.0

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        refuse_deep("FedRoD", fed.layout)
        return super().init(fed, theta, rng)

    def begin(self, job: Job) -> StartingPoint:
        generic, layout = job.mine(job.message.model), job.fed.layout
        own = job.memory.extra.get("own", generic[layout.head] * 0)
        personal = (generic * 0).masked_scatter(layout.head, own)
        if (
            job.message.task == "score"
        ):  # two linear classifiers of the same features: one with the summed weights
            return StartingPoint(generic + personal)
        counts = job.labels.bincount(minlength=job.fed.classes).to(generic.dtype)
        prior = self.gamma * counts.clamp(min=1e-30).log()
        shift = (generic * 0).masked_scatter(layout.bias, prior)
        return StartingPoint(generic, {"personal": personal, "shift": shift})

    def phases(self, job: Job) -> list[Phase]:
        import torch

        if job.message.task == "score":
            return []
        layout, settings = job.fed.layout, job.fed.settings
        both = torch.stack([job.start.theta, job.start.notes["personal"]])  # side by side
        return [Phase(layout.trainable, settings.epochs, settings.lr, start=both)]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        import torch

        (generic, personal), (batch,), seen = theta, batches, list[torch.Tensor]()

        def see(z: Tensor) -> Tensor:
            seen.append(z.clone())
            return z * 0

        # the balanced risk: cross-entropy of g(x) + gamma log n
        balanced = job.grad(generic + job.start.notes["shift"], batch, at_features=see, row=0)
        # the empirical risk of both classifiers' sum, by the personal one alone
        empirical, _ = job.head_grad(generic + personal, seen[0], batch.y)
        return torch.stack([balanced, empirical.where(job.fed.layout.head, 0)])

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        generic, personal = ends[-1]
        return job.reply(generic.clone()), job.remember(generic, own=personal[job.fed.layout.head])
