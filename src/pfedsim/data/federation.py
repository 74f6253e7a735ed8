"""Clients with their samples: data dealt by a partition, as tensors that a client's job can take whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.partition import Partition

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and who holds what of it."""

    data: DataSet
    partition: Partition
    asked: Mapping[str, Any] = field(default_factory=dict)
    """the settings it was made with"""

    @property
    def clients(self) -> int:
        return len(self.partition.clients)

    @property
    def unseen(self) -> int:
        """How many clients, the last ones, never train."""
        return int(self.partition.recipe.get("unseen", 0))

    @property
    def names(self) -> list[str]:
        """What the clients are called."""
        return [str(name) for name in self.partition.recipe.get("names", range(self.clients))]

    def __repr__(self) -> str:
        return f"Federation({self.data.name}, {len(self.data.y)} samples, {self.clients} clients)"

    def label_counts(self) -> np.ndarray:
        """(client, class) number of samples, train and test together."""
        rows = [np.concatenate([s.train, s.test]) for s in self.partition.clients]
        return np.stack([np.bincount(self.data.y[row], minlength=len(self.data.classes)) for row in rows])


class ClientData:
    """The stored samples by client: what a site reads its own from."""

    def __init__(self, federation: Federation):
        import torch

        data = federation.data
        self._x, self._y = torch.from_numpy(data.x), torch.from_numpy(data.y)
        self._clients = [
            (torch.from_numpy(s.train), torch.from_numpy(s.test)) for s in federation.partition.clients
        ]
        gaps = data.x.dtype != np.uint8 and bool(np.isnan(data.x).any())
        self._common = torch.tensor(data.mean).reshape(-1, *[1] * (len(data.shape) - 1)) if gaps else None

    def size(self, client: int) -> int:
        """How many samples this client holds: how long its work will take."""
        return sum(map(len, self._clients[client]))

    def part(self, client: int, name: str, validation: float = 0.0) -> tuple[Tensor, Tensor]:
        """Samples and labels of "train", "validation" (the first floor(v n) of the train part) or "test".
        Missing cells are filled."""
        train, test = self._clients[client]
        held_back = int(validation * len(train) + 1e-9)
        positions = {"train": train[held_back:], "validation": train[:held_back], "test": test}[name]
        x = self._x.index_select(0, positions)
        fill = self.fill(client, validation)
        return x if fill is None else x.where(~x.isnan(), fill), self._y[positions]

    def fill(self, client: int, validation: float = 0.0) -> Tensor | None:
        """What stands for a client's missing cells: each channel's mean over its own train part, or the
        set's where it has no value of that channel; None where nothing is missing."""
        if self._common is None:
            return None
        train = self._clients[client][0]
        x = self._x[train[int(validation * len(train) + 1e-9) :]].double().transpose(0, 1).flatten(1)
        return (
            x.nanmean(1)
            .reshape(self._common.shape)
            .float()
            .where(~x.isnan().all(1).reshape(self._common.shape), self._common)
        )
