"""FedPer. Arivazhagan et al., Federated learning with personalization layers, 2019 (arXiv 1912.00818)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfedsim.core.method import Method, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class FedPer(Method):
    """FedAvg of the body; every client keeps its own classifier."""

    title = "FedPer"
    paper = "Arivazhagan et al. 2019, Algorithms 1 and 2"
    elsewhere = (
        "Versions of one benchmark differ in whether they score before or after an epoch of fine-tuning, and the "
        "table in its paper does not say which. Here both scores are shown side by side."
    )

    weights: Weights = "samples"

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head
