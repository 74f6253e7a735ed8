"""FedALA. Zhang et al., FedALA: Adaptive local aggregation for personalized federated learning, AAAI 2023 (arXiv
2212.01197)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Gt

from pfedsim.core.method import (
    AtLeastZero,
    Memory,
    Method,
    Positive,
    Reply,
    Share,
    StartingPoint,
    Weights,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Job

LOSSES = 10  # whose deviation decides when the weights have converged
MOST = 60  # passes until they count as converged all the same; the authors have no limit


@dataclass(frozen=True)
class FedALA(Method):
    """FedAvg whose clients do not overwrite their own classifier with the common one but mix the two, entry by entry,
    with weights in [0, 1] that they learn on a share of their samples before they train."""

    title = "FedALA"
    paper = (
        "Zhang et al. 2023, Algorithm 1, Eq. 4 to 6; eta, share, threshold and the last layer as in the authors' "
        "ALA.py and main.py"
    )
    elsewhere = (
        "The authors count tensors, not layers, from the end (2 is the last layer with its bias), draw the share as "
        "one stretch of the stored order, and have no limit on the first learning, which can go on for ever with a "
        "small threshold. Their table takes the best round on test data, where the mix is scored before training."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"eta": (0.1, 1.0), "share": (0.4, 0.8)}

    weights: Weights = "samples"
    part: Annotated[Literal["head", "all"], "what is mixed: the classifier, or every layer"] = "head"
    eta: Annotated[AtLeastZero, "learning rate of the weights"] = 1.0
    share: Annotated[Share, Gt(0), "share of the samples on which they are learnt (s)"] = 0.8
    threshold: Annotated[
        Positive, "the first learning stops when the losses of ten passes deviate by less"
    ] = 0.1

    def mixed(self, job: Job) -> Tensor:
        """Which entries are mixed."""
        layout = job.fed.layout
        return layout.head if self.part == "head" else layout.trainable

    def begin(self, job: Job) -> StartingPoint:
        theta = job.mine(job.message.model)
        if "own" not in job.memory.extra:  # nothing to mix with
            return StartingPoint(theta)
        where, own = self.mixed(job), job.memory.extra["own"]
        theta, apart = theta.clone(), theta[where] - own
        first = "weights" not in job.memory.extra
        w = apart.new_ones(len(apart)) if first else job.memory.extra["weights"]
        losses: list[float] = []
        for _ in range(MOST if first else 1):
            for batch in (batches := job.batches(self.share)):
                theta[where] = own + apart * w
                slope = job.grad(theta, batch)[where] * apart
                w = (w - self.eta * slope).clamp_(0, 1)  # Eq. 5 and 6
            theta[where] = own + apart * w  # Eq. 4
            losses += [_loss(job, theta, batches[-1].x, batches[-1].y)] if first and batches else []
            if first and (len(losses) > LOSSES and _deviation(losses[-LOSSES:]) < self.threshold):
                break
        return StartingPoint(theta, {"weights": w})

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        learnt = {"weights": job.start.notes["weights"]} if job.start.notes else {}
        return job.reply(ends[-1]), job.remember(ends[-1], own=ends[-1][self.mixed(job)], **learnt)


def _loss(job: Job, theta: Tensor, x: Tensor, y: Tensor) -> float:
    from torch.nn.functional import cross_entropy

    return float(cross_entropy(job.logits(theta, x), y))


def _deviation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return float((sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5)
