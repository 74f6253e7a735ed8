"""The paper's own numbers."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

SETS = {
    "cifar10": "CIFAR-10",
    "cinic10": "CINIC-10",
    "tiny-imagenet": "Tiny-ImageNet",
    "emnist": "EMNIST",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "digits": "scikit-learn's digits",
    "domainnet": "DomainNet",
    "pacs": "PACS",
    "digit-domains": "digit domains",
    "heart": "heart disease, four hospitals",
    "watch": "smartwatch, ten people",
}


@cache
def paper() -> dict[str, Any]:
    """paper.toml."""
    return tomllib.loads((resources.files("pfedsim_paper") / "paper.toml").read_text(encoding="utf-8"))


def printed(table: str, row: str, data: str, alpha: float | None) -> tuple[float, float] | None:
    """Mean and standard deviation in %, as the paper prints them; None where it has no such cell."""
    content = paper()[table]
    if row not in content["cells"] or data not in content["data"] or alpha not in content["alphas"]:
        return None
    place = content["data"].index(data) * len(content["alphas"]) + content["alphas"].index(alpha)
    mean, std = content["cells"][row][place]
    return mean, std


def wrong(table: str, **where: Any) -> str | None:
    """Why this cell of the paper is known to be wrong."""
    for entry in paper()[table].get("wrong", []):
        if all(entry.get(key, value) == value for key, value in where.items()):
            return str(entry["why"])
    return None
