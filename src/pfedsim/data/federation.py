"""A data set divided among clients, and each client's samples as tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim import escape
from pfedsim.data.dataset import DataSet
from pfedsim.data.partition import Partition, Split
from pfedsim.data.task import Task
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and its partition among clients."""

    data: DataSet
    partition: Partition
    asked: Mapping[str, Any] = field(default_factory=dict)
    """the settings it was made with"""
    in_memory: bool = False
    """whether the samples were given as arrays, which other processes cannot read"""

    @property
    def task(self) -> Task:
        """The description of the data."""
        return self.data.task

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.data.y)

    @property
    def clients(self) -> int:
        return len(self.partition.clients)

    @property
    def unseen(self) -> int:
        """The number of clients that never train; they are the last ones."""
        return int(self.partition.recipe.get("unseen", 0))

    @property
    def names(self) -> list[str]:
        """The names of the clients."""
        return [str(name) for name in self.partition.recipe.get("names", range(self.clients))]

    @property
    def divided(self) -> list[str]:
        """A sentence on how the samples were divided, if the data do not name their clients."""
        recipe = self.partition.recipe
        if self.data.client is not None or recipe.get("kind") in (None, "given", "imported"):
            return []
        how = f"{recipe['kind']}, alpha {recipe['alpha']:g}" if "alpha" in recipe else f"{recipe['kind']}"
        return [
            f"the data name no clients: divided among {self.clients} artificial ones ({how}, seed {recipe['seed']})"
        ]

    def __repr__(self) -> str:
        return f"Federation({self.data.name}, {len(self.data.y)} samples, {self.clients} clients)"

    def _repr_html_(self) -> str:
        """A table for notebooks: samples per class of the first twenty clients."""
        head = "".join(
            f"<th>{escape.html(c)}</th>" for c in ("client", "train", "test", *self.data.classes[:20])
        )
        rows = ""
        for i, counts in enumerate(self.label_counts()[:20]):
            split = self.partition.clients[i]
            cells = (escape.html(self.names[i]), len(split.train), len(split.test), *counts[:20])
            rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        more = ", the first 20 shown" if self.clients > 20 or len(self.data.classes) > 20 else ""
        caption = f"{escape.html(repr(self))}, {len(self.data.classes)} classes{more}"
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"

    def label_counts(self) -> np.ndarray:
        """The number of samples as an array (client, class), train and test together."""
        rows = [np.concatenate([s.train, s.test]) for s in self.partition.clients]
        return np.stack([np.bincount(self.data.y[row], minlength=len(self.data.classes)) for row in rows])


class ClientData:
    """The stored samples by client. `own`: load only the samples of these clients."""

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
        """The client's number of samples, by which engines estimate how long its work takes."""
        return sum(map(len, self._of(client)))

    def __len__(self) -> int:
        """The number of loaded samples."""
        return len(self._y)

    def _of(self, client: int) -> tuple[Tensor, Tensor]:
        if client not in self._clients:
            raise Error(f"client {client}'s samples are not loaded here")
        return self._clients[client]

    def part(self, client: int, name: str, validation: float = 0.0) -> tuple[Tensor, Tensor]:
        """Samples and labels of "train", "validation" (the first floor(v n) of the train part) or "test", with
        missing cells filled."""
        train, test = self._of(client)
        held_back = int(validation * len(train) + 1e-9)
        positions = {"train": train[held_back:], "validation": train[:held_back], "test": test}[name]
        x = self._x.index_select(0, positions)
        fill = self.fill(client, validation)
        return x if fill is None else x.where(~x.isnan(), fill), self._y[positions]

    def fill(self, client: int, validation: float = 0.0) -> Tensor | None:
        """The values for a client's missing cells: each channel's mean over its train part, or over the data set
        if the client has no value of that channel. None if nothing is missing."""
        if self._common is None:
            return None
        train, _ = self._of(client)
        x = self._x[train[int(validation * len(train) + 1e-9) :]].double().transpose(0, 1).flatten(1)
        mean, known = (v.reshape(self._common.shape) for v in (x.nanmean(1).float(), ~x.isnan().all(1)))
        return mean.where(known, self._common)


def _taken(data: DataSet, places: np.ndarray) -> DataSet:
    """The data set with only the samples at these positions."""
    return replace(data, x=np.ascontiguousarray(data.x[places]), y=data.y[places], client=None, domain=None)


def _renumbered(splits: Mapping[int, Split]) -> dict[int, Split]:
    """The same clients, with their samples stored one after another."""
    found, first = {}, 0
    for i, split in splits.items():
        middle = first + len(split.train)
        last = middle + len(split.test)
        found[i] = Split(np.arange(first, middle), np.arange(middle, last))
        first = last
    return found
