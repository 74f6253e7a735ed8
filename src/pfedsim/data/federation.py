"""Clients with their samples: data dealt by a partition, as tensors that a client's job can take whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.partition import Partition, Split
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and who holds what of it."""

    data: DataSet
    partition: Partition
    asked: Mapping[str, Any] = field(default_factory=dict)
    """the settings it was made with"""
    in_memory: bool = False
    """whether the samples were given as arrays, which nobody else can read"""

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

    def _repr_html_(self) -> str:
        """How notebooks show it: who holds how many samples of which class, at most twenty clients."""
        head = "".join(
            f"<th>{escape(c)}</th>" for c in ("client", "train", "test", *self.data.classes[:20])
        )
        rows = ""
        for i, counts in enumerate(self.label_counts()[:20]):
            split = self.partition.clients[i]
            cells = (escape(self.names[i]), len(split.train), len(split.test), *counts[:20])
            rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        more = ", the first 20 shown" if self.clients > 20 or len(self.data.classes) > 20 else ""
        caption = f"{escape(repr(self))}, {len(self.data.classes)} classes{more}"
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"

    def label_counts(self) -> np.ndarray:
        """(client, class) number of samples, train and test together."""
        rows = [np.concatenate([s.train, s.test]) for s in self.partition.clients]
        return np.stack([np.bincount(self.data.y[row], minlength=len(self.data.classes)) for row in rows])


class ClientData:
    """The stored samples by client. `own`: of these clients alone; nothing of the others is loaded."""

    def __init__(self, federation: Federation, own: Collection[int] | None = None):
        import torch

        data, splits = federation.data, federation.partition.clients
        here = {i: split for i, split in enumerate(splits) if own is None or i in own}
        if own is not None:
            places = np.concatenate([np.concatenate([s.train, s.test]) for s in here.values()])
            data, here = _taken(data, places), _renumbered(here)
        self._x, self._y = torch.from_numpy(data.x), torch.from_numpy(data.y)
        self._clients = {i: (torch.from_numpy(s.train), torch.from_numpy(s.test)) for i, s in here.items()}
        gaps = data.x.dtype != np.uint8 and bool(np.isnan(data.x).any())
        self._common = torch.tensor(data.mean).reshape(-1, *[1] * (len(data.shape) - 1)) if gaps else None

    def size(self, client: int) -> int:
        """How many samples this client holds: how long its work will take."""
        return sum(map(len, self._of(client)))

    def __len__(self) -> int:
        """How many samples are loaded."""
        return len(self._y)

    def _of(self, client: int) -> tuple[Tensor, Tensor]:
        if client not in self._clients:
            raise Error(f"client {client}'s samples are not loaded here")
        return self._clients[client]

    def part(self, client: int, name: str, validation: float = 0.0) -> tuple[Tensor, Tensor]:
        """Samples and labels of "train", "validation" (the first floor(v n) of the train part) or "test".
        Missing cells are filled."""
        train, test = self._of(client)
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
        train, _ = self._of(client)
        x = self._x[train[int(validation * len(train) + 1e-9) :]].double().transpose(0, 1).flatten(1)
        return (
            x.nanmean(1)
            .reshape(self._common.shape)
            .float()
            .where(~x.isnan().all(1).reshape(self._common.shape), self._common)
        )


def _taken(data: DataSet, places: np.ndarray) -> DataSet:
    """The set with the samples at these places alone."""
    return replace(data, x=np.ascontiguousarray(data.x[places]), y=data.y[places], client=None, domain=None)


def _renumbered(splits: Mapping[int, Split]) -> dict[int, Split]:
    """The same clients where their samples lie one after another."""
    found, first = {}, 0
    for i, split in splits.items():
        middle = first + len(split.train)
        last = middle + len(split.test)
        found[i] = Split(np.arange(first, middle), np.arange(middle, last))
        first = last
    return found
