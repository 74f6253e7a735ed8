"""A labelled data set in memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pfedsim.data.task import Defaults, Task
from pfedsim.errors import Error

if TYPE_CHECKING:
    from pfedsim.data.tables.recipe import Recipe
    from pfedsim.data.tables.table import Table

PART = 1 << 20  # numbers in one part of `parts`
PICTURE = 8  # a signal with at least this many channels and steps could be a picture


def moments(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact mean and standard deviation of each channel of pixels, scaled to 0..1, a few samples at a time."""
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)
    for first in range(0, len(x), 1024):
        for c, channel in enumerate(counts):
            channel += np.bincount(x[first : first + 1024, c].reshape(-1), minlength=256)
    values, total = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """A few samples at a time, so that what is computed from them stays small."""
    step = max(1, PART // max(1, math.prod(x.shape[1:])))
    for first in range(0, len(x), step):
        yield x[first : first + step]


def deviation(x: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The standard deviation of each channel, given its mean. The bits are those of `np.std` in float64, which
    needs eight bytes for every pixel: we add in the same order, a few samples at a time."""
    if x.shape[1] == 1:
        squares = np.array([_pairwise(x.reshape(-1), float(mean[0]))])
    else:
        squares = np.zeros(len(mean))
        around = mean.reshape(-1, *[1] * (x.ndim - 2))
        for part in parts(x):
            far = part - around
            far *= far
            each = far.reshape(len(part), len(mean), -1).sum(2)
            squares = np.add.reduce(np.concatenate([squares[None], each]))
    return np.asarray(np.sqrt(squares / (x.size // len(mean))))


def _pairwise(x: np.ndarray, mean: float) -> float:
    """The sum of (x - mean)^2, halved as NumPy does: the parts are multiples of eight."""
    if len(x) <= PART:
        far = x - np.float64(mean)
        return float(np.add.reduce(far * far))
    half = len(x) // 2
    half -= half % 8
    return _pairwise(x[:half], mean) + _pairwise(x[half:], mean)


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples (uint8 pixels or float32 values), labels 0..C-1, and optionally a client or domain for each
    sample. NaN marks a missing cell, which each client fills from its train part (`federation.ClientData`)."""

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
    """the names of a table's columns, in order"""
    table: Table | None = None
    """the cells from which each partition makes its own numbers"""
    recipe: Recipe | None = None
    """how the numbers were made of the cells"""
    notes: tuple[str, ...] = ()
    """what a user should know of how it was read"""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise Error(f"{self.name}: {len(self.x)} samples but {len(self.y)} labels")
        if len(self.y) == 0:
            raise Error(f"{self.name} has no samples")
        if self.y.min() < 0:
            raise Error(f"{self.name}: labels must start at 0; found {self.y.min()}")
        if self.y.max() >= len(self.classes):
            raise Error(
                f"{self.name}: labels run from {self.y.min()} to {self.y.max()}, but there are "
                f"{len(self.classes)} classes"
            )

    def dealt(self, train: Sequence[np.ndarray]) -> DataSet:
        """The data set when it is known which samples are each client's train part: the numbers of a table are
        made by a recipe that only they decide."""
        return self if self.table is None else self.table.made(self.name, train, self.defaults)

    @property
    def said(self) -> list[str]:
        """What a user should know of how it was read, and of what became of it."""
        return [*self.notes, *(self.recipe.said if self.recipe is not None else [])]

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape, channels first."""
        return tuple(self.x.shape[1:])

    def described(self) -> str:
        """How the samples were read (as rows, signals or pictures, by their shape). Signals that could be
        pictures get a hint on how to store them as pictures."""
        count, sides = f"{len(self.y):,}", " x ".join(map(str, self.shape))
        kinds = {1: f"rows of {sides} numbers", 3: f"images of {sides} (channels x height x width)"}
        if len(self.shape) == 2:
            kinds[2] = f"signals of {self.shape[0]} channels x {self.shape[1]} steps"
        text = f"{count} {kinds.get(len(self.shape), f'samples of {sides}')}, {len(self.classes)} classes"
        if self.client is not None:
            text += f", {len(np.unique(self.client))} clients"
        if len(self.shape) == 2 and min(self.shape) >= PICTURE:
            text += f" (if they are grey images, save x with the shape {(len(self.y), 1, *self.shape)})"
        return text

    @cached_property
    def task(self) -> Task:
        """The description of this data set, without its samples."""
        facts = self.name, self.shape, str(self.x.dtype), self.classes, self.mean, self.std, self.digest
        return Task(*facts, self.defaults, self.columns)

    @cached_property
    def digest(self) -> str:
        """sha256 of everything that training can see."""
        h = hashlib.sha256()
        for array in (self.x, self.y, self.client, self.domain):
            if array is not None:
                h.update(f"{array.dtype}{array.shape}".encode())
                h.update(np.ascontiguousarray(array).data)
        h.update(repr((self.mean, self.std)).encode())
        return h.hexdigest()
