"""FedProx. Li et al., Federated optimization in heterogeneous networks, MLSys 2020."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import AtLeastZero, Method, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term that keeps clients near the common model: they minimise
    f_i(theta) + mu/2 |theta - theta_received|^2."""

    title = "FedProx"
    paper = "Li et al. 2020, Algorithm 2; mu as in the pFedSim paper"
    elsewhere = (
        "Some code penalises the norm instead of its square, which gives the gradient a fixed length. Default "
        "values of mu range from 0 to 1, and the mean is weighted by samples or uniform."
    )

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"mu": (0.01, 0.1, 1.0)}
    weights: Weights = "uniform"
    mu: Annotated[AtLeastZero, "weight of the proximal term"] = 1.0

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        pull = (theta - job.start.theta).mul_(
            self.mu
        )  # in place: a model-sized tensor costs as much as a layer
        return job.grad(theta, batches[0]).add_(pull)
