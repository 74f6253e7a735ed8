"""APFL. Deng et al., Adaptive personalized federated learning, 2020 (arXiv 2003.13461)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Memory, Method, Phase, Reply, Share, StartingPoint, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class APFL(Method):
    """FedAvg of w, and beside it at every client a local model v_i. Served is alpha_i v_i + (1 - alpha_i) w, and v_i
    is trained at that mixture, step by step with the client's w."""

    title = "APFL"
    paper = (
        "Deng et al. 2020, Algorithm 1 and the adaptive alpha; alpha starts at 0.5 as in the authors' code"
    )
    elsewhere = (
        "The authors' code and one benchmark mix the outputs of two networks where Algorithm 1 mixes parameters, "
        "and add 0.02 alpha to the slope of alpha. One library trains v_i at v_i itself, mixes it with w for good "
        "after every round, and starts from alpha = 1."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.25, 0.5, 0.75), "adaptive": (True, False)}

    weights: Weights = "uniform"
    alpha: Annotated[Share, "share of the local model in the mixture, at first"] = 0.5
    adaptive: Annotated[bool, "whether every client moves its own alpha down the slope once a round"] = True

    def begin(self, job: Job) -> StartingPoint:
        w, alpha = job.mine(job.message.model), self.alpha
        if "own" not in job.memory.extra:
            return StartingPoint(w, {"own": w, "alpha": alpha})
        v, alpha = job.memory.extra["own"], float(job.memory.extra["alpha"])
        if job.message.task == "score":
            return StartingPoint((alpha * v + (1 - alpha) * w).where(job.fed.layout.trainable, v))
        if self.adaptive and (batches := job.batches()):
            slope = (v - w) @ job.grad(alpha * v + (1 - alpha) * w, batches[0])
            lr = job.fed.settings.lr * job.fed.settings.pace(job.round)
            alpha = min(1.0, max(0.0, alpha - lr * float(slope)))
        return StartingPoint(w, {"own": v, "alpha": alpha})

    def phases(self, job: Job) -> list[Phase]:
        import torch

        if job.message.task != "train":
            return []
        layout, settings = job.fed.layout, job.fed.settings
        both = torch.stack([job.start.theta, job.start.notes["own"]])  # w and v_i step side by side
        return [Phase(layout.trainable, settings.epochs, settings.lr, start=both)]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        import torch

        (w, v), alpha = theta, job.start.notes["alpha"]
        mixed = alpha * v + (1 - alpha) * w
        by_v = job.grad(mixed, batches[0], row=1).mul_(alpha)
        return torch.stack([job.grad(w, batches[0], row=0), by_v])

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        w, v = ends[-1]
        alpha = w.new_tensor([job.start.notes["alpha"]])
        return job.reply(w.clone()), job.remember(w, own=v.clone(), alpha=alpha)
