"""The description of a data set, without its samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from pfedsim.errors import Error

if TYPE_CHECKING:
    import numpy as np

QUANTITY_ALPHA = 2.0


@dataclass(frozen=True)
class Defaults:
    """Default settings for a data set. None means the setting's general default."""

    clients: int | None = 100
    partition: str = "dirichlet"
    alpha: float = 0.1
    minimum: int = 40
    join: float | None = 0.1
    rounds: int = 200
    model: str = "lenet5"

    def alpha_of(self, partition: str) -> float:
        """The default alpha of a partition. 'quantity' needs a larger one: with the default for labels, most
        clients would get almost no samples."""
        return QUANTITY_ALPHA if partition == "quantity" else self.alpha


def suiting(shape: tuple[int, ...], samples: int, client: np.ndarray | None = None) -> Defaults:
    """Defaults for a user's data set: its own clients if it names them, else about sixty samples per client, and
    a network for tables, signals or images."""
    model = {1: "mlp", 2: "cnn1d"}.get(len(shape), "lenet5")
    if client is not None:
        return Defaults(clients=None, partition="given", minimum=2, join=None, model=model)
    return Defaults(clients=max(2, min(100, samples // 60)), minimum=10, join=None, model=model)


@dataclass(frozen=True)
class Task:
    """What a server or a worker must know about the data, without holding any samples."""

    name: str
    shape: tuple[int, ...]
    """of one sample, channels first"""
    dtype: str
    """of the stored samples: uint8 pixels or float32 values"""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    defaults: Defaults = Defaults()
    columns: tuple[str, ...] | None = None
    """the names of a table's columns"""

    def plain(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Task:
        """The inverse of `plain`."""
        known = {field.name for field in fields(cls)}
        if strange := sorted(plain.keys() ^ known):
            raise Error(
                f"a task has the keys {', '.join(sorted(known))}; missing or unknown: {', '.join(strange)}"
            )
        defaults = Defaults(**plain["defaults"])
        lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list | tuple)}
        return cls(**{**plain, **lists, "defaults": defaults})
