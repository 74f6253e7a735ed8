"""Networks whose classifier is one linear layer: with shifted features, or with a second one beside it, it computes
what one linear layer computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.layout import Layout


def refuse_deep(method: str, layout: Layout, beside: Tensor | None = None) -> None:
    """Refuse a classifier that has more parameters than a weight and a bias, or no bias. `beside`: entries that the
    method itself has added to it."""
    rest = layout.head & ~layout.bias
    layout.rows(rest).fill_(False)
    if beside is not None:
        rest = rest & ~beside
    if bool(rest.any()):
        name = layout.where(int(rest.nonzero()[0]))
        raise Error(f"{method} needs a classifier that is one linear layer; this one also holds {name!r}")
    if not bool(layout.bias.any()):
        raise Error(f"{method} needs a classifier with a bias; {layout.last!r} has none beside it")
