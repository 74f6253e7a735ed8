"""FedAvg. McMahan et al., Communication-efficient learning of deep networks from decentralized data,
AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass

from pfedsim.core.method import Method, Weights


@dataclass(frozen=True)
class FedAvg(Method):
    """Federated averaging: one common model, the weighted mean of the models trained by the round's clients. All
    hooks are the defaults of `Method`."""

    title = "FedAvg"
    paper = "McMahan et al. 2017, Algorithm 1"
    elsewhere = (
        "Some code bases average norm statistics, others keep them at each client or take those of the first "
        "client, and the score depends on that choice. Here it is the setting `buffers`."
    )

    weights: Weights = "samples"
