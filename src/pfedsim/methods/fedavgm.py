"""FedAvgM. Hsu et al., Measuring the effects of non-identical data distribution for federated visual
classification, 2019 (arXiv 1909.06335)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Fed, Method, Reply, ServerState, Share, Weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum at the server: v <- beta v + (mean - theta), theta <- theta + v. Norm statistics are
    averaged as in FedAvg."""

    title = "FedAvgM"
    paper = "Hsu et al. 2019; beta = 0.9 as in Flower's baseline of the paper"
    elsewhere = (
        "One code base gives norm statistics momentum as well, which can make a variance negative, and takes "
        "Nesterov's form with the same beta."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"beta": (0.7, 0.9, 0.97)}

    weights: Weights = "samples"
    beta: Annotated[Share, "share of the last step that is kept"] = 0.9

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        return ServerState(0, theta, extra={"velocity": theta * 0})

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        mean = self.mean(fed, server, replies)
        step = (mean - server.model).where(fed.layout.trainable, 0)
        velocity = step.add_(server.extra["velocity"], alpha=self.beta)
        model = (server.model + velocity).where(fed.layout.trainable, mean)
        return replace(server, model=model, extra={**server.extra, "velocity": velocity})
