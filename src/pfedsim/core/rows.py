"""Tables over clients that hold only what differs: `Rows` of vectors, `Pairs` of numbers. Both are values:
changing gives a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, repeat
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Row = TypeVar("Row")
WORTH = 1 << 20  # entries of all rows for which another thread is worth its start
_cores: ContextVar[int] = ContextVar("_cores", default=1)


class Rows:
    """One vector per client with one default; only the rows that differ are held, so absent clients cost
    nothing."""

    def __init__(self, default: Tensor, own: Mapping[int, Tensor] | None = None):
        self.default = default
        self._own = dict(own or {})

    def __getitem__(self, client: int) -> Tensor:
        return self._own.get(client, self.default)

    def __contains__(self, client: int) -> bool:
        return client in self._own

    @property
    def ids(self) -> list[int]:
        """The clients with a row of their own, ascending."""
        return sorted(self._own)

    def some(self, count: int, turn: int) -> list[tuple[int, Tensor]]:
        """About `count` of the rows that are held, other ones with every turn."""
        return _some(self._own, count, turn)

    def put(self, rows: Mapping[int, Tensor]) -> Rows:
        """The same table with these rows in place of the old ones."""
        return Rows(self.default, self._own | dict(rows))

    def mix(self, weights: Mapping[int, float]) -> Tensor:
        """The weighted mean of these clients' rows: in client order, in float64, those without a row
        counted together as one default, so that the bits depend on nothing but the rows and weights that
        matter."""
        return self.mixes({0: weights})[0]

    def mixes(self, weights: Mapping[int, Mapping[int, float]]) -> dict[int, Tensor]:
        """`mix` for each of several: every row is read once for all of them."""
        held = [i for i in self.ids if any(row.get(i, 0) != 0 for row in weights.values())]
        table = []
        for row in weights.values():
            others = sum(row[i] for i in sorted(row.keys() - self._own.keys()))
            table.append([*map(row.get, held, repeat(0.0)), others])
        return dict(
            zip(weights, weighted_means([*(self._own[i] for i in held), self.default], table), strict=True)
        )


def _some(rows: Mapping[int, Row], count: int, turn: int) -> list[tuple[int, Row]]:
    step = max(1, len(rows) // count)
    return list(islice(rows.items(), turn % step, None, step))


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Means use so many cores meanwhile, each for some of the entries, which changes no bit."""
    token = _cores.set(count)
    try:
        yield
    finally:
        _cores.reset(token)


def weighted_mean(terms: Iterable[tuple[float, Tensor]]) -> Tensor:
    """sum(w v) / sum(w), term by term in the given order, in float64; float32 out."""
    terms = list(terms)
    return weighted_means([v for _, v in terms], [[w for w, _ in terms]])[0]


def weighted_means(vectors: Sequence[Tensor], table: Sequence[Sequence[float]]) -> list[Tensor]:
    """The weighted mean for each row of weights; what weighs nothing is left out."""
    import torch

    from pfedsim.backends import native

    if any(not any(weights) for weights in table):
        raise ValueError("a mean of nothing")
    if native.available() and all(v.dtype == torch.float32 and v.device.type == "cpu" for v in vectors):
        entries = sum(v.numel() for v in vectors) * len(table)
        return native.mix(vectors, table, max(1, min(_cores.get(), entries // WORTH)))
    means = []
    for weights in table:
        total, weight = torch.zeros_like(vectors[0], dtype=torch.float64), 0.0
        for w, vector in zip(weights, vectors, strict=True):
            if w != 0:
                total.add_(vector.double(), alpha=w)
                weight += w
        means.append((total / weight).float())
    return means


class Pairs:
    """A number for each ordered pair of clients that has one; never n x n."""

    def __init__(self, rows: Mapping[int, Mapping[int, float]] | None = None):
        self._rows = {i: dict(row) for i, row in (rows or {}).items()}

    def row(self, client: int) -> dict[int, float]:
        """{other: number} of this client, in the order of ids."""
        row = self._rows.get(client, {})
        return {j: row[j] for j in sorted(row)}

    @property
    def ids(self) -> list[int]:
        """The clients that appear in any pair, ascending."""
        return sorted(set(self._rows) | {j for row in self._rows.values() for j in row})

    def rows(self) -> list[tuple[int, Mapping[int, float]]]:
        """Every client's row, ascending; a row that `put` left alone is the same object in both tables."""
        return sorted(self._rows.items())

    def some(self, count: int, turn: int) -> list[tuple[int, Mapping[int, float]]]:
        """About `count` clients' rows, other ones with every turn."""
        return _some(self._rows, count, turn)

    def put(self, values: Mapping[tuple[int, int], float]) -> Pairs:
        """The same table with these pairs in place of the old ones."""
        new = Pairs()
        new._rows = dict(self._rows)
        for i in {i for i, _ in values}:
            new._rows[i] = dict(self._rows.get(i, {}))
        for (i, j), value in values.items():
            new._rows[i][j] = float(value)
        return new

    def array(self, clients: int) -> np.ndarray:
        """As an array of shape (clients, clients), NaN where a pair has no number."""
        import numpy as np

        matrix = np.full((clients, clients), np.nan)
        for i, row in self._rows.items():
            for j, value in row.items():
                matrix[i, j] = value
        return matrix

    def __repr__(self) -> str:
        return f"Pairs({sum(map(len, self._rows.values()))} pairs of {len(self.ids)} clients)"

    def tensors(self) -> dict[str, Tensor]:
        """As three tensors `i`, `j`, `value`, sorted: how files hold it."""
        import torch

        items = [(i, j, row[j]) for i, row in sorted(self._rows.items()) for j in sorted(row)]
        columns = list(zip(*items, strict=True)) or [(), (), ()]
        return {
            "i": torch.tensor(columns[0], dtype=torch.int64),
            "j": torch.tensor(columns[1], dtype=torch.int64),
            "value": torch.tensor(columns[2], dtype=torch.float64),
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Pairs:
        """The table that `tensors()` gave."""
        lists = (tensors[name].tolist() for name in ("i", "j", "value"))
        return cls().put({(i, j): value for i, j, value in zip(*lists, strict=True)})
