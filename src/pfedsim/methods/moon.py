"""MOON. Li, He and Song, Model-contrastive federated learning, CVPR 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import AtLeastZero, Memory, Method, Positive, Reply, StartingPoint, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class Moon(Method):
    """FedAvg with a contrastive loss: a client's features are drawn to those of the common model and pushed away from
    those of the model that it trained last."""

    title = "MOON"
    paper = (
        "Li et al. 2021, Algorithm 1, Eq. 3; temperature and mu as in section 4.1, where mu = 1 was best on "
        "CIFAR-100 and Tiny-ImageNet and 5 on CIFAR-10"
    )
    elsewhere = (
        "The authors insert a projection of two layers before the classifier and compare its output; libraries "
        "without one, as ours, compare the features. One library keeps the last model of a client in train mode, "
        "so that its norm statistics move while it is compared with."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"mu": (0.1, 1.0, 5.0, 10.0)}

    weights: Weights = "samples"
    mu: Annotated[AtLeastZero, "weight of the contrastive loss"] = 1.0
    temperature: Annotated[Positive, "divides the similarities (tau)"] = 0.5

    def begin(self, job: Job) -> StartingPoint:
        common = job.mine(job.message.model)
        if job.message.task == "score" or "last" not in job.memory.extra:
            return StartingPoint(
                common
            )  # in its first round the two models are one, and the loss is constant
        return StartingPoint(common, {"common": common, "last": job.memory.extra["last"]})

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        (batch,), notes = batches, job.start.notes
        if not (self.mu and notes):
            return job.grad(theta, batch)
        common, last = (job.features(notes[name], batch.x) for name in ("common", "last"))
        return job.grad(theta, batch, at_features=lambda z: self.contrast(z, common, last))

    def contrast(self, z: Tensor, common: Tensor, last: Tensor) -> Tensor:
        """The gradient by z of -mu log(e^near / (e^near + e^far)) in the mean over the batch (Eq. 3)."""
        import torch
        from torch.nn.functional import cosine_similarity, softplus

        with torch.enable_grad():
            z = z.detach().requires_grad_()
            near, far = (cosine_similarity(z, other, dim=1) / self.temperature for other in (common, last))
            (by_z,) = torch.autograd.grad(self.mu * softplus(far - near).mean(), z)
        return by_z

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return job.reply(ends[-1]), job.remember(ends[-1], last=ends[-1])
