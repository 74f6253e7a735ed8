"""Clients that attack, as a simulation asks for; all else is another engine's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfedsim.core.engine import Absent, Done, Engine, Wrapping
from pfedsim.core.job import Work
from pfedsim.core.method import Reply
from pfedsim.core.seeds import generator
from pfedsim.core.settings import LABEL_FLIP, Attack

if TYPE_CHECKING:
    from pfedsim.data.federation import ClientData


def attackers(attack: Attack, seed: int, clients: int) -> frozenset[int]:
    """Who attacks: the clients by number, and a share of all, drawn from the seed, rounded to the nearest number."""
    drawn = torch.randperm(clients, generator=generator(seed, "attackers")).tolist()
    return frozenset({*attack.clients, *drawn[: round(attack.share * clients)]})


class Attacking(Wrapping):
    """The attackers train as everybody else, but send another model: `strength` times their own step away from the
    model that they were sent; forwards (scaling), backwards (sign-flip) or in a random direction (noise). What they
    remember and their scores are honest."""

    def __init__(self, engine: Engine, attack: Attack, seed: int, clients: int):
        super().__init__(engine)
        self._attack, self._seed = attack, seed
        self._hostile = attackers(attack, seed, clients)

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        asked = {work.client: work for work in works}
        for done in self._engine.run(task, works, deadline):
            reply = None if isinstance(done, Absent) else done.result
            if done.client in self._hostile and isinstance(done, Done) and isinstance(reply, Reply):
                yield replace(done, result=self._poisoned(asked[done.client], reply))
            else:
                yield done

    def _poisoned(self, work: Work, reply: Reply) -> Reply:
        if reply.model is None or self._attack.kind == LABEL_FLIP:
            return reply
        sent, step = work.message.model, reply.model - work.message.model
        if self._attack.kind == "noise":
            step = self._as_long_as(step, work)
        sign = -1 if self._attack.kind == "sign-flip" else 1
        return replace(reply, model=sent + sign * self._attack.strength * step)

    def _as_long_as(self, step: Tensor, work: Work) -> Tensor:
        """A random step of the same length; NaN where the step is, which does not travel."""
        stream = generator(self._seed, "attack", work.round, work.client)
        noise = torch.randn(step.shape, generator=stream).where(step.isfinite(), 0.0)
        length = float(step.nan_to_num(0.0).double().norm()) / max(float(noise.double().norm()), 1e-12)
        return (noise * length).where(step.isfinite(), step)


class FlippedLabels:
    """Clients' samples, in which the attackers' labels for training are turned round: class c becomes the c-th from
    the end."""

    def __init__(self, samples: ClientData, hostile: frozenset[int], classes: int):
        self._samples, self._hostile, self._classes = samples, hostile, classes

    def __len__(self) -> int:
        return len(self._samples)

    def size(self, client: int) -> int:
        return self._samples.size(client)

    def fill(self, client: int, validation: float = 0.0) -> Tensor | None:
        return self._samples.fill(client, validation)

    def part(self, client: int, name: str, validation: float = 0.0) -> tuple[Tensor, Tensor]:
        x, y = self._samples.part(client, name, validation)
        return x, y if client not in self._hostile or name == "test" else self._classes - 1 - y
