"""Sites in this process: a link that calls them, and a hub on top."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from pfedsim.core.job import Worker
from pfedsim.core.scoring import ClientScore
from pfedsim.runs.setup import Session
from pfedsim.sites.engine import Sites
from pfedsim.sites.files import bound
from pfedsim.sites.messages import Opening
from pfedsim.sites.site import Site

RUN = "0123456789abcdef"


@dataclass
class Here:
    """A site's premises on a session's own data."""

    name: str
    clients: Collection[int]
    folder: Path
    worker: Worker
    shares_scores: bool = True
    refuses: str = ""
    models: dict[int, Tensor] = field(default_factory=dict)

    def open(self, opening: Opening) -> tuple[Worker, list[str]]:
        if self.refuses:
            from pfedsim.errors import Error

            raise Error(self.refuses)
        return self.worker, []

    def deliver(self, run: str, client: int, model: Tensor, score: ClientScore) -> None:
        self.models[client] = model


class Loopback:
    """A link whose sites answer when the hub listens. Its clock moves only while the hub waits
    in vain. `away`: sites that are not there. `bend` may change, drop or multiply what a site answers: it maps a site
    and its answer to answers."""

    def __init__(self, premises: Sequence[Here]):
        self.premises = {one.name: one for one in premises}
        self.sites = {one.name: Site(one) for one in premises}
        self.queue: deque[tuple[str, bytes]] = deque()
        self.away: set[str] = set()
        self.bend: Callable[[str, bytes], list[tuple[str, bytes | str]]] = lambda site, answer: [
            (site, answer)
        ]
        self.posted: list[tuple[str, bytes]] = []
        self.clock = 0.0

    def here(self) -> Collection[str]:
        return self.sites.keys() - self.away

    def post(self, site: str, packet: bytes, seconds: float | None) -> None:
        self.posted.append((site, packet))
        self.queue.append((site, packet))

    def receive(self, seconds: float) -> list[tuple[str, bytes | str]]:
        if not self.queue:
            self.clock += seconds
            return []
        site, packet = self.queue.popleft()
        return self.bend(site, self.sites[site].handle(packet))

    def restart(self, site: str) -> None:
        """The site's process dies and starts again; its disk stays."""
        self.sites[site] = Site(self.premises[site])

    def close(self) -> None:
        """Nothing to end."""


def federation(
    s: Session, folder: Path, places: Sequence[Sequence[int]], **more: Any
) -> tuple[Sites, Loopback]:
    """The engine for a session's clients at sites "a", "b", ..."""
    names = {chr(ord("a") + k): own for k, own in enumerate(places)}
    worker = s.worker
    link = Loopback([Here(name, own, folder / name, worker) for name, own in names.items()])
    return hub(s, link, names, **more), link


def hub(s: Session, link: Loopback, names: dict[str, Sequence[int]], **more: Any) -> Sites:
    """A hub on this link, as after a start."""
    opening = Opening(config={}, data={}, clients=s.fed.clients, made_with={})
    return Sites(
        link, s.side.wire, s.fed.classes, bound(names), opening, RUN, now=lambda: link.clock, **more
    )
