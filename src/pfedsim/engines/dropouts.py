"""Clients that drop out of a round or come late, as a simulation asks for; all else is another engine's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pfedsim.core.engine import Absent, Done, Engine, Wrapping
from pfedsim.core.job import Work
from pfedsim.core.method import Reply
from pfedsim.core.seeds import generator
from pfedsim.core.settings import Dropouts

NEVER, LATE = "dropped out", "late"


class Dropping(Wrapping):
    """Whether a client answers in a round is drawn by address, which changes no other draw. One that is late
    does its work in vain; one that drops out does none. Scores are not concerned."""

    def __init__(self, engine: Engine, dropouts: Dropouts, seed: int):
        super().__init__(engine)
        self._dropouts, self._seed = dropouts, seed

    def fate(self, round: int, client: int) -> str:
        """What becomes of this client in this round; nothing where it answers in time."""
        asked = self._dropouts
        if client in asked.never_clients:
            return NEVER
        if client in asked.late_clients:
            return LATE
        stream = generator(self._seed, "dropout", round, client)
        drawn = float(torch.rand((), generator=stream, dtype=torch.float64))
        return NEVER if drawn < asked.never else LATE if drawn < asked.never + asked.late else ""

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        if task != "train":
            yield from self._engine.run(task, works, deadline)
            return
        fates = {work.client: self.fate(work.round, work.client) for work in works}
        for work in works:
            if fates[work.client] == NEVER:
                yield Absent(work.client, "it did not answer", NEVER)
        asked = {work.client: work for work in works if fates[work.client] != NEVER}
        for done in self._engine.run(task, list(asked.values()), deadline):
            if fates[done.client] == LATE and isinstance(done, Done):
                assert isinstance(done.result, Reply)
                yield Absent(done.client, "its reply came too late", LATE, done.result)
            else:
                yield done
