"""FedRep. Collins et al., Exploiting shared representations for personalized federated learning, ICML
2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pfedsim.core.method import Count, Fed, Method, Phase, ServerState, Weights
from pfedsim.errors import Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class FedRep(Method):
    """As FedPer, but a client first fits its classifier to the body that it got, then the body to that
    classifier."""

    title = "FedRep"
    paper = "Collins et al. 2021, Algorithm 1; body_epochs as in the pFedSim paper"
    elsewhere = (
        "Head and body epochs are 4 + 1 inside E = 5, or 5 + 1 on top, depending on the date of the "
        "code; one fine-tuning "
        "branch lacks the optimiser's step."
    )

    weights: Weights = "samples"
    body_epochs: Annotated[Count, "local epochs that train the body; those before train the classifier"] = 1

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        if (epochs := fed.settings.epochs) <= self.body_epochs:
            raise Error(
                f"FedRep: epochs = {epochs} leaves none for the classifier beside body_epochs = "
                f"{self.body_epochs}; raise epochs"
            )
        return super().init(fed, theta, rng)

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head

    def phases(self, job: Job) -> list[Phase]:
        if job.message.task != "train":
            return []
        layout, settings = job.fed.layout, job.fed.settings
        return [
            Phase(layout.head, settings.epochs - self.body_epochs, settings.lr),
            Phase(layout.body, self.body_epochs, settings.lr),
        ]
