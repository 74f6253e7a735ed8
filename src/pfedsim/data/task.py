"""What a data set is about, apart from its samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from pfedsim.errors import Error

if TYPE_CHECKING:
    import numpy as np

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


@dataclass(frozen=True)
class Task:
    """All that a server, a worker or whoever prepares a run must know of the data, without holding any."""

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
    """what the numbers of a table's row are called"""

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Task:
        """The task that `plain` gave."""
        known = {field.name for field in fields(cls)}
        if strange := sorted(plain.keys() ^ known):
            raise Error(
                f"a task is described by {', '.join(sorted(known))}; not so for {', '.join(strange)}"
            )
        defaults = Defaults(**plain["defaults"])
        lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list | tuple)}
        return cls(**{**plain, **lists, "defaults": defaults})
