"""One client after another, here, on one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pfedsim.core.engine import Absent, Done, HeldMemories, timed_out
from pfedsim.core.job import Work, Worker
from pfedsim.core.tasks import perform


class Serial:
    """The engine that needs nothing."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self.memories = HeldMemories()
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Nothing to end."""

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        """One after another. A reply after the deadline is late, and from then on nobody is asked."""
        began = time.monotonic()
        for work in works:
            if deadline is not None and time.monotonic() - began > deadline:
                yield timed_out(work, "it was not asked before the deadline")
                continue
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # sums split over threads have other bits
            try:
                done, memory = perform(self._worker, task, work, self.memories.of(work.client))
            finally:
                torch.set_num_threads(threads)
            if deadline is not None and time.monotonic() - began > deadline:
                yield timed_out(work, "its reply came after the deadline")
                continue
            if memory is not None:
                self.memories.offer(work.client, memory)
            yield done
