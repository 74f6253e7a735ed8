"""Per-FedAvg. Fallah et al., Personalized federated learning with theoretical guarantees: A model-agnostic
meta-learning approach, NeurIPS 2020. The first-order variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Method, Phase, Positive, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class PerFedAvg(Method):
    """A common model trained to be good after one step of local training, scored after one plain local epoch."""

    title = "Per-FedAvg"
    tunes = (
        "train"  # the common model is made to be tuned: the epochs take the place of the one before scoring
    )
    paper = (
        "Fallah et al. 2020, Algorithm 1 without second derivatives; alpha and beta as in the pFedSim paper"
    )
    elsewhere = (
        "In one code base, restoring the weights after the inner step also restores the running statistics, which "
        "therefore never change, and clients with a single batch do no step at all. Another library trains every "
        "client twice a round. Steps take the batches of an epoch in pairs: with shuffle = false, a client with "
        "an odd number of batches (above one) never trains on its last one, because it is the same in every epoch."
    )

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.001, 0.01, 0.1)}
    rate = "beta"  # the run's lr is that of the second score alone
    weights: Weights = "uniform"
    alpha: Annotated[Positive, "learning rate of the inner step, and of the epoch before scoring"] = 0.01
    beta: Annotated[Positive, "learning rate of the common model"] = 0.001

    def phases(self, job: Job) -> list[Phase]:
        everything = job.fed.layout.trainable
        if job.message.task == "score":
            return [Phase(everything, 1, self.alpha)]
        return [Phase(everything, job.fed.settings.epochs, self.beta, batches=2)]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        if len(batches) == 1:
            return job.grad(theta, batches[0])
        u = theta - self.alpha * job.grad(theta, batches[0])
        return job.grad(u, batches[1])  # theta <- theta - beta g(u; B')
