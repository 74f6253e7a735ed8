"""FedAvg with fine-tuning. Wang et al., Federated evaluation of on-device personalization, 2019 (arXiv 1910.10252);
the form in three steps is Kumar et al., Fine-tuning can distort pretrained features and underperform
out-of-distribution, ICLR 2022."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pfedsim.core.method import Count, Method, Phase, Weights

if TYPE_CHECKING:
    from pfedsim.core.job import Job


@dataclass(frozen=True)
class FedAvgFT(Method):
    """FedAvg whose common model every client tunes on its own samples before it is served. The tuned model is not
    kept: rounds go on from the common one."""

    title = "FedAvg-FT"
    paper = "Wang et al. 2019, section 3; five epochs as the FedBABU authors' option ft_ep"
    elsewhere = (
        "Many comparisons leave it out, or tune FedAvg for one epoch beside methods that train personal models "
        "for all rounds. Some tune in eval mode, so that norm statistics stay those of other clients."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {
        "part": ("all", "head", "head, then all"),
        "tune_epochs": (1, 5, 10),
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "head": {"part": "head"},
        "gradual": {"part": "head, then all"},
    }

    weights: Weights = "samples"
    part: Annotated[
        Literal["all", "head", "head, then all"],
        "what is tuned: everything, the classifier, or the classifier on the frozen body and then everything",
    ] = "all"
    tune_epochs: Annotated[Count, "epochs of tuning before the model is served, for each part"] = 5

    def phases(self, job: Job) -> list[Phase]:
        if job.message.task != "score":
            return super().phases(job)
        layout, lr = job.fed.layout, job.fed.settings.lr
        tuned = {
            "all": [layout.trainable],
            "head": [layout.head],
            "head, then all": [layout.head, layout.trainable],
        }
        return [Phase(part, self.tune_epochs, lr) for part in tuned[self.part]]
