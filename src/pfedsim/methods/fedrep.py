"""FedRep. Collins et al., Exploiting shared representations for personalized federated learning, ICML
2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Count, Fed, Method, Phase, ServerState, Weights
from pfedsim.errors import Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class FedRep(Method):
    """Like FedPer, but a client first trains its classifier with the received body fixed, then the body with that
    classifier fixed."""

    title = "FedRep"
    paper = "Collins et al. 2021, Algorithm 1; body_epochs as in the pFedSim paper"
    elsewhere = (
        "Depending on the version of the code, head and body train for 4 + 1 epochs (E = 5 in total) or for 5 + 1; "
        "one fine-tuning branch lacks the optimiser's step."
    )

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"body_epochs": (1, 2, 3)}
    weights: Weights = "samples"
    body_epochs: Annotated[Count, "local epochs for the body; the epochs before train the classifier"] = 1

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        if (epochs := fed.settings.epochs) <= self.body_epochs:
            raise Error(
                f"FedRep: epochs = {epochs} leaves no epoch for the classifier, because body_epochs = "
                f"{self.body_epochs}; increase epochs"
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
