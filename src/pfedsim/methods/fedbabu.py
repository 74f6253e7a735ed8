"""FedBABU. Oh et al., FedBABU: Towards enhanced representation for federated image classification, ICLR 2022."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import Count, Method, Phase, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.job import Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class FedBABU(Method):
    """Only the body is trained and averaged; the classifier stays at its random start, the same for all clients.
    Before it is served, every client tunes the whole model on its own samples."""

    title = "FedBABU"
    paper = "Oh et al. 2022, Algorithm 1; tune_epochs = 5 as the authors' option ft_ep"
    elsewhere = (
        "One code base zeroes the classifier's gradient but lets weight decay and momentum move it; one tunes for "
        "ten epochs, and once, after the last round, so that its curve over rounds is of untuned models."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"tune_epochs": (1, 5, 10)}

    weights: Weights = "samples"
    tune_epochs: Annotated[Count, "epochs of tuning before the model is served"] = 5

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head  # never trained in rounds, so it need not travel

    def phases(self, job: Job) -> list[Phase]:
        layout, settings = job.fed.layout, job.fed.settings
        if job.message.task == "score":
            return [Phase(layout.trainable, self.tune_epochs, settings.lr)]
        return [Phase(layout.body, settings.epochs, settings.lr)]
