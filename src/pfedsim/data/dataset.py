"""A labelled data set in memory, and what a federation of it looks like by default."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pfedsim.errors import Error

QUANTITY_ALPHA = 2.0


@dataclass(frozen=True)
class Defaults:
    """What suits a data set where the user says nothing. None: the setting's own default."""

    clients: int | None = 100
    partition: str = "dirichlet"
    alpha: float = 0.1
    minimum: int = 40
    join: float | None = 0.1
    rounds: int = 200
    model: str = "lenet5"

    def alpha_of(self, partition: str) -> float:
        """Sizes alone must not differ as much as labels may: with the labels' alpha most clients would have
        next to nothing."""
        return QUANTITY_ALPHA if partition == "quantity" else self.alpha


def suiting(shape: tuple[int, ...], samples: int, client: np.ndarray | None = None) -> Defaults:
    """What suits a set of the user's own: its clients where it names them, else as many as leave each about
    sixty samples; a network for tables, signals or images."""
    model = {1: "mlp", 2: "cnn1d"}.get(len(shape), "lenet5")
    if client is not None:
        return Defaults(clients=None, partition="given", minimum=2, join=None, model=model)
    return Defaults(clients=max(2, min(100, samples // 60)), minimum=10, join=None, model=model)


def moments(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of pixels, brought to 0..1; exact, and a few samples at a time."""
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)
    for first in range(0, len(x), 1024):
        for c, channel in enumerate(counts):
            channel += np.bincount(x[first : first + 1024, c].reshape(-1), minlength=256)
    values, total = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples (uint8 pixels or float32 values), labels 0..C-1, and perhaps a client or domain for each
    sample. A NaN is a missing cell: a client fills it in from its own train part (`federation.Samples`)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    client: np.ndarray | None = None
    domain: np.ndarray | None = None
    defaults: Defaults = field(default_factory=Defaults)
    columns: tuple[str, ...] | None = None
    """what the numbers of a table's row are called, in their order"""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise Error(f"{self.name}: {len(self.x)} samples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise Error(f"{self.name} holds no sample")
        if self.y.min() < 0 or self.y.max() >= len(self.classes):
            raise Error(
                f"{self.name}: labels run from {self.y.min()} to {self.y.max()}, but there are "
                f"{len(self.classes)} classes"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape, channels first."""
        return tuple(self.x.shape[1:])

    @cached_property
    def digest(self) -> str:
        """sha256 over all that training can see."""
        h = hashlib.sha256()
        for array in (self.x, self.y, self.client, self.domain):
            if array is not None:
                h.update(f"{array.dtype}{array.shape}".encode())
                h.update(np.ascontiguousarray(array).data)
        h.update(repr((self.mean, self.std)).encode())
        return h.hexdigest()
