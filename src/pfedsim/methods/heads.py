"""The classifiers that FedCP and GPFL put in the place of the network's own."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pfedsim.core.layout import Layout


def inside(layout: Layout, part: str) -> Tensor:
    """The entries of one of the classifier's parts below."""
    return layout.inside(name(layout, part))


def name(layout: Layout, part: str) -> str:
    """A part's full name; `own` is the last part of both classifiers, and holds the last linear layer."""
    return f"{layout.last.rpartition('.own.')[0]}.{part}"


class Separated(nn.Module):
    """FedCP: a policy splits the features of every sample among two heads. `context` is set by the method."""

    def __init__(self, head: nn.Module):
        super().__init__()
        width = _linear(head)[0].in_features
        self.policy = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())
        self.context = _Given(width)
        self.common, self.own = head, deepcopy(head)

    def forward(self, z: Tensor) -> Tensor:
        a = self.policy(z * self.context.v).unflatten(1, (2, -1))
        r, s = a.softmax(1).unbind(1)
        scores: Tensor = self.own(r * z) + self.common(s * z)
        return scores


class Valved(nn.Module):
    """GPFL: features pass a valve that a condition sets, and one embedding per class guides them. `condition` is set by
    the method."""

    def __init__(self, head: nn.Module):
        super().__init__()
        width, classes = _linear(head)[0].in_features, _linear(head)[-1].out_features
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(2)
        )
        self.embeddings = nn.Embedding(classes, width)
        self.condition = _Given(width)
        self.own = head

    def valve(self, z: Tensor, condition: Tensor) -> Tensor:
        """ReLU((1 + gamma) z + beta)."""
        return torch.relu((1 + self.gamma(condition)) * z + self.beta(condition))

    def forward(self, z: Tensor) -> Tensor:
        scores: Tensor = self.own(self.valve(z, self.condition.v))
        return scores


class _Given(nn.Module):
    """A vector that no training moves."""

    def __init__(self, width: int):
        super().__init__()
        self.v = nn.Parameter(torch.zeros(width), requires_grad=False)


def _linear(head: nn.Module) -> list[nn.Linear]:
    return [m for m in head.modules() if isinstance(m, nn.Linear)]
