"""One client after another, here, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pfedsim.core.job import Work, Worker, attempt


class Serial:
    """The engine that needs nothing."""

    def __init__(self, site: Worker):
        self._site = site
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Nothing is held."""

    def map(self, function: Callable[..., Any], works: Sequence[Work], *arguments: Any) -> Iterator[Any]:
        """`function(site, work, *arguments)` for each work, in order."""
        for work in works:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # sums split over threads have other bits
            try:
                result = attempt(function, self._site, work, *arguments)
            finally:
                torch.set_num_threads(threads)
            yield result
