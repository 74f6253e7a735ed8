"""Clients that drop out of a round or come late, as a simulation asks for; all else is another engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pfedsim.core.client import run_client
from pfedsim.core.job import Absent, Work
from pfedsim.core.seeds import generator
from pfedsim.core.server import Engine
from pfedsim.core.settings import Dropouts

NEVER, LATE = "dropped out", "late"


class Dropping:
    """Whether a client answers in a round is drawn by address, so that it changes no other draw. One that
    is late does its work, in vain; one that drops out does none. Scores are not concerned."""

    def __init__(self, engine: Engine, dropouts: Dropouts, seed: int):
        self._engine, self._dropouts, self._seed = engine, dropouts, seed
        self.events = engine.events

    def close(self) -> None:
        self._engine.close()

    def fate(self, round: int, client: int) -> str:
        """What becomes of this client in this round; nothing where it answers in time."""
        asked = self._dropouts
        if client in asked.never_clients:
            return NEVER
        if client in asked.late_clients:
            return LATE
        drawn = float(
            torch.rand((), generator=generator(self._seed, "dropout", round, client), dtype=torch.float64)
        )
        return NEVER if drawn < asked.never else LATE if drawn < asked.never + asked.late else ""

    def map(self, function: Callable[..., Any], works: Sequence[Work], *arguments: Any) -> Iterator[Any]:
        if function is not run_client:
            yield from self._engine.map(function, works, *arguments)
            return
        fates = [self.fate(work.round, work.client) for work in works]
        results = iter(
            self._engine.map(
                function, [w for w, fate in zip(works, fates, strict=True) if fate != NEVER], *arguments
            )
        )
        for work, fate in zip(works, fates, strict=True):
            if fate == NEVER:
                yield Absent(work.client, "it did not answer", fate)
                continue
            result = next(results)
            if fate == LATE and not isinstance(result, Absent):
                result = Absent(work.client, "its reply came too late", fate, result[0])
            yield result
