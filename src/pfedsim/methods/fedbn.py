"""FedBN. Li et al., FedBN: Federated learning on non-IID features via local batch normalization, ICLR
2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfedsim.core.method import Method, Weights
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class FedBN(Method):
    """FedAvg, except that every client keeps the weights and statistics of its norm layers, whatever their type and
    name."""

    title = "FedBN"
    paper = "Li et al. 2021, Algorithm 1"
    elsewhere = (
        "Two code bases find norm layers by the substring `bn` in their name. MobileNetV2 has no such names, so "
        "FedBN silently becomes FedAvg."
    )

    weights: Weights = "samples"

    def keeps(self, layout: Layout) -> Tensor:
        if not layout.norm.any():
            raise Error(
                f"{self.title} keeps norm layers at the clients, but this network has none: use fedavg or "
                "another network"
            )
        return layout.norm
