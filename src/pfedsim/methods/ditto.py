"""Ditto. Li et al., Ditto: Fair and robust federated learning through personalization, ICML 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import AtLeastZero, Memory, Method, Phase, Reply, StartingPoint, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and beside it at every client a personal model v_i that minimises f_i(v) + lam/2 |v - theta|^2, where
    theta is the common model of the round. The personal model is served; it never leaves the client."""

    title = "Ditto"
    paper = "Li et al. 2021, Algorithm 1; lam = 1 as in the authors' script run_fashion_clean_ditto_lam1.sh"
    elsewhere = (
        "One library's default strength is 0, which is training alone, and the loss that it reports has the norm "
        "without its square. One code base trains the personal model for a single epoch, however many the common "
        "one gets, and both with one optimiser, so that momentum carries over between them."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {
        "lam": (0.1, 1.0, 2.0)
    }  # as the authors' dynamic choice

    weights: Weights = "samples"
    lam: Annotated[AtLeastZero, "strength of the pull towards the common model (lambda)"] = 1.0

    def begin(self, job: Job) -> StartingPoint:
        common = job.mine(job.message.model)
        served = job.memory.extra.get("own", common) if job.message.task == "score" else common
        return StartingPoint(served, {"common": common})

    def phases(self, job: Job) -> list[Phase]:
        phases = super().phases(job)  # theta_i, then v_i
        return [*phases, *(replace(p, start=job.memory.extra.get("own", job.fed.initial)) for p in phases)]

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        step = job.grad(theta, batches[0])
        if job.phase.start is None:
            return step
        return step.add_((theta - job.start.notes["common"]).mul_(self.lam))

    def plain(self, job: Job) -> bool:
        return job.phase.start is None  # the common model trains as in FedAvg

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        return job.reply(ends[0]), job.remember(ends[0], own=ends[1])
