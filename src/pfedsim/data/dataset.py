"""A labelled data set in memory, and what a federation of it looks like by default."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pfedsim.errors import Error


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


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples (uint8 pixels or float32 values), labels 0..C-1, and perhaps a client or domain for each sample."""

    name: str
    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    client: np.ndarray | None = None
    domain: np.ndarray | None = None
    defaults: Defaults = field(default_factory=Defaults)

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise Error(f"{self.name}: {len(self.x)} samples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise Error(f"{self.name} holds no sample")
        if self.y.min() < 0 or self.y.max() >= len(self.classes):
            raise Error(f"{self.name}: labels run from {self.y.min()} to {self.y.max()}, but there are {len(self.classes)} classes")

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
