"""FedAvg. McMahan et al., Communication-efficient learning of deep networks from decentralized data,
AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass

from pfedsim.core.method import Method, Weights


@dataclass(frozen=True)
class FedAvg(Method):
    """One common model: the mean of what the round's clients trained. All of it is the interface's
    default."""

    title = "FedAvg"
    paper = "McMahan et al. 2017, Algorithm 1"
    elsewhere = (
        "Norm statistics are averaged in some code bases, kept by each client in others, or taken from "
        "the first client, and the "
        "score depends on that choice. Here it is the setting `buffers`."
    )

    weights: Weights = "samples"
