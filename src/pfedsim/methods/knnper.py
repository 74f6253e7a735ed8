"""kNN-Per. Marfoq et al., Personalized federated learning through local memorization, ICML 2022 (arXiv 2111.09360)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Count, Method, Positive, Share, StartingPoint, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Job

CHUNK = 1 << 22  # distances that exist at once


@dataclass(frozen=True)
class KNNPer(Method):
    """FedAvg, whose prediction every client mixes with that of the k nearest of its own train samples, by the features
    of the common model."""

    title = "kNN-Per"
    paper = "Marfoq et al. 2022, section 3; k = 7 and scale = 1 as in the authors' scripts for CIFAR-10"
    beside = "its predictions look up the client's train samples"
    elsewhere = (
        "The authors' script prints the score on test data for each of 101 values of lam. One benchmark mixes the "
        "neighbours' probabilities with logits, which have another scale, keeps 500 samples of each client, and "
        "compares features before their activation. Here both sides are probabilities, and lam is an option."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.3, 0.5, 0.7, 0.9), "k": (3, 7, 15)}

    weights: Weights = "samples"
    k: Annotated[Count, "neighbours that vote"] = 7
    lam: Annotated[Share, "weight of the neighbours' vote (lambda)"] = 0.5
    scale: Annotated[Positive, "widens the kernel exp(-d^2 / (features * scale))"] = 1.0

    def begin(self, job: Job) -> StartingPoint:
        return replace(super().begin(job), predict=lambda theta, x: self.mixed(job, theta, x))

    def mixed(self, job: Job, theta: Tensor, x: Tensor) -> Tensor:
        """The logarithm of lam p_kNN(y | x) + (1 - lam) p_theta(y | x)."""
        import torch

        own = job.logits(theta, x).softmax(1)
        z, keys = job.features(theta, x), job.features(theta, job.part("train").x)
        if not len(keys):
            return own.log()
        parts = torch.split(z, CHUNK // len(keys) + 1)
        votes = [self.vote(part, keys, job.labels, job.fed.classes) for part in parts]
        mixed = self.lam * torch.cat(votes) + (1 - self.lam) * own
        return mixed.clamp(min=1e-12).log()

    def vote(self, z: Tensor, keys: Tensor, labels: Tensor, classes: int) -> Tensor:
        """p_kNN(y | x): the nearest samples' labels, weighted by exp(-d^2 / (features * scale))."""
        import torch

        squares = torch.cdist(z, keys, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest, places = squares.topk(min(self.k, len(keys)), dim=1, largest=False)
        kernel = (-nearest / (z.shape[1] * self.scale)).softmax(1)  # the sum of the kernel is 1
        return kernel.new_zeros(len(z), classes).scatter_add(1, labels[places], kernel)
