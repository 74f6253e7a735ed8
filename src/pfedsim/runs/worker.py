"""A worker as a value: all that it needs, printed, sent, and opened wherever the data are."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.core.job import Worker
from pfedsim.data.federation import ClientData
from pfedsim.data.task import Task
from pfedsim.errors import Error
from pfedsim.runs.config import Config, check
from pfedsim.runs.setup import Distant, federate, plan

if TYPE_CHECKING:
    from pfedsim.runs.setup import Session

PLACE = ("data_dir", "device")  # what belongs to the machine, not to the run


@dataclass(frozen=True)
class WorkerSpec:
    """The task, and a configuration with nothing left open: network, method, settings, where the data are and
    how they are partitioned, each held to its digest. `own`: the clients whose samples are loaded (None: all).
    `simulated`: whoever asks may see these clients' labels, predictions and models."""

    config: Config
    task: Task
    clients: int
    unseen: int = 0
    own: tuple[int, ...] | None = None
    simulated: bool = False

    def open(self) -> Worker:
        """The worker, which trains the same bits wherever it is opened."""
        planned = plan(self.config, self.task, self.clients, self.unseen)
        return planned.worker(ClientData(federate(self.config), self.own), self.simulated)

    def text(self) -> str:
        """As JSON."""
        place = {name: getattr(self.config, name) for name in PLACE}
        content = {
            "config": {**self.config.plain(), **{k: v for k, v in place.items() if v is not None}},
            "task": self.task.plain(),
            "clients": self.clients,
            "unseen": self.unseen,
            "own": self.own,
            "simulated": self.simulated,
        }
        return json.dumps(content, indent=2)

    @classmethod
    def parse(cls, text: str) -> WorkerSpec:
        """The value that `text` gave."""
        try:
            content: dict[str, Any] = json.loads(text)
            config, task = content.pop("config"), content.pop("task")
            own = content.pop("own")
            return cls(check(config), Task.of(task), own=None if own is None else tuple(own), **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Error(f"this is not a worker's description: {type(error).__name__}: {error}") from error


def spec_of(session: Session, own: Collection[int] | None = None, *, simulated: bool = False) -> WorkerSpec:
    """The worker of this run, for these clients (None: all). Files are named by absolute paths."""
    federation = session.federation
    if isinstance(federation, Distant) or federation.in_memory or not federation.asked:
        raise Error(
            f"{federation.task.name} was given as arrays, which another machine cannot read: name a file or a "
            "data set instead (pfedsim data add keeps one)"
        )
    if own is not None and not own:
        raise Error("a worker needs at least one client of its own")
    strange = sorted(set(own or ()) - set(range(federation.clients)))
    if strange:
        raise Error(f"there is no client {strange[0]}: there are clients 0 to {federation.clients - 1}")
    return WorkerSpec(
        anchored(session.config).model_copy(
            update=dict.fromkeys(("workers", "time_limit", "track"))
        ),  # the server's business
        federation.task,
        federation.clients,
        federation.unseen,
        None if own is None else tuple(sorted(own)),
        simulated,
    )


def anchored(config: Config) -> Config:
    """The same with absolute paths: a worker may be opened in another directory."""
    paths = {}
    for name in ("data", "partition", "pretrained"):
        value = getattr(config, name)
        if value is not None and Path(value).suffix and Path(value).is_file():
            paths[name] = str(Path(value).resolve())
    for name in ("method", "model"):
        file, colon, kind = str(getattr(config, name)).partition(":")
        if colon and file.endswith(".py"):
            paths[name] = f"{Path(file).resolve()}:{kind}"
    if config.data_dir is not None:
        paths["data_dir"] = str(Path(config.data_dir).resolve())
    return config.model_copy(update=paths)
