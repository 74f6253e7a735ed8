"""From a configuration to everything that a run needs in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pfedsim import backends, models
from pfedsim import data as datasets
from pfedsim.core import seeds
from pfedsim.core.client import hook
from pfedsim.core.engine import Engine
from pfedsim.core.job import Worker
from pfedsim.core.layout import Layout, layout_of
from pfedsim.core.method import Fed, Method, ServerState
from pfedsim.core.server import Coordinator, Observer, Round, run_rounds
from pfedsim.core.settings import Settings
from pfedsim.core.wire import Wire
from pfedsim.data import partition as partitions
from pfedsim.data.cache import Tell, quiet
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import ClientData, Federation
from pfedsim.engines.dropouts import Dropping
from pfedsim.engines.pool import Pool
from pfedsim.engines.serial import Serial
from pfedsim.errors import Error
from pfedsim.models import pretrained
from pfedsim.plugin import source_digest
from pfedsim.runs.config import Config, Digests

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Session:
    """One run in memory: the server's side, the worker that simulates its clients, and the resolved
    configuration."""

    config: Config
    federation: Federation
    worker: Worker
    side: Coordinator
    schedule: list[list[int]]
    notice: str
    """why a slower backend runs than the fastest, or nothing"""

    @property
    def method(self) -> Method:
        return self.side.method

    @property
    def fed(self) -> Fed:
        return self.side.fed

    @property
    def engine(self) -> Engine:
        return self.side.engine

    def begin(self) -> ServerState:
        """The server before the first round."""
        return self.side.begin()

    def rounds(self, server: ServerState) -> Iterator[Round]:
        """The rounds that are left."""
        return run_rounds(self.side, self.schedule, server)

    def observed(self, *observers: Observer) -> Session:
        """The same run, with these told of every client's work and result."""
        return replace(self, side=replace(self.side, observers=observers))


def federate(
    config: Config, dealt: Path | None = None, data: DataSet | None = None, tell: Tell = quiet
) -> Federation:
    """The data read (or given) and dealt; `dealt`: a partition's file to take in place of dealing; `tell`
    hears how far a long reading is."""
    data = data or datasets.read(config.data, config.data_dir, config.size, tell)
    _as_stated("data", config.digests.data, data.digest)
    defaults = data.defaults
    kind = str(dealt) if dealt else config.partition or defaults.partition
    if kind.endswith(".json"):
        partition = partitions.load(Path(kind), data.digest, len(data.y))
        if config.clients not in (None, len(partition.clients)):
            raise Error(f"clients = {config.clients}: {kind} has {len(partition.clients)} clients")
    else:
        partition = partitions.make(
            kind,
            data.y,
            data.digest,
            clients=config.clients
            or (None if kind == "given" or config.clients_each else defaults.clients),
            alpha=config.alpha or defaults.alpha_of(kind),
            classes_each=config.classes_each,
            shards_each=config.shards_each or 2,
            clients_each=config.clients_each,
            minimum=config.minimum or defaults.minimum,
            test=config.test,
            seed=config.partition_seed,
            owner=data.client,
            domain=data.domain,
        )
    if config.unseen is not None:
        partition = partitions.hold_out(partition, config.unseen, config.partition_seed)
    _as_stated("partition", config.digests.partition, partition.digest)
    words = (
        *(
            "data",
            "data_dir",
            "size",
            "clients",
            "partition",
            "alpha",
            "classes_each",
            "shards_each",
            "clients_each",
            "unseen",
        ),
        *("minimum", "test", "partition_seed"),
    )
    return Federation(data, partition, {word: getattr(config, word) for word in words})


def _as_stated(name: str, stated: str | None, found: str) -> None:
    if stated is not None and stated != found:
        raise Error(
            f"digests.{name} = {stated[:12]}...: this {name} has {found[:12]}..., so the run would not "
            "be the same one"
        )


def prepare(config: Config, federation: Federation | None = None, method: Method | None = None) -> Session:
    """Everything but the rounds themselves; `method`: this very object in place of the one that the
    configuration describes."""
    federation = federation or federate(config)
    stated = config.digests
    config = config.resolved(federation.data.defaults, federation.clients)
    method = method or config.method_made()
    device = _device(config.device)
    data, settings = federation.data, config.settings()
    assert config.model is not None
    module, layout, initial = initial_model(
        config.model, config.head, data.shape, len(data.classes), settings.seed
    )
    weights = None
    if config.pretrained is not None:
        file = pretrained.find(
            config.pretrained, Path(config.data_dir) if config.data_dir else datasets.data_dir()
        )
        initial = pretrained.into(layout, initial, pretrained.load(file), file)
        weights = hashlib.sha256(initial[~layout.head].numpy().tobytes()).hexdigest()
    digests = Digests(
        data=federation.data.digest,
        partition=federation.partition.digest,
        method=source_digest(type(method)),
        model=source_digest(type(module)),
        pretrained=weights,
    )
    for name in ("method", "model", "pretrained"):
        if getattr(stated, name) not in (None, getattr(digests, name)):
            what = (
                "these weights are others"
                if name == "pretrained"
                else f"the source of this {name} has changed"
            )
            raise Error(f"digests.{name}: {what}, so the run would not be the same one")
    config = config.model_copy(update={"digests": digests})
    over = (-1, *[1] * (len(data.shape) - 1))
    mean, std = torch.tensor(data.mean).reshape(over), torch.tensor(data.std).reshape(over)
    backend, net, notice = backends.make(
        config.backend, module, layout, config.head, mean, std, data.shape, device
    )
    config = config.model_copy(update={"backend": backend})
    fed = Fed(federation.clients - federation.unseen, len(data.classes), layout, net, initial, settings)
    kept = _kept(method, layout, settings)
    there = replace(fed, layout=layout.to(device), initial=initial.to(device))
    worker = Worker(method, there, net, ClientData(federation), Wire(kept.to(device)), simulated=True)
    declared = [len(split.train) for split in federation.partition.clients]
    side = Coordinator(method, fed, Wire(kept), _engine(config, worker), declared)
    plan = seeds.schedule(settings.seed, fed.clients, settings.join, settings.rounds)
    return Session(config, federation, worker, side, plan, notice)


def _kept(method: Method, layout: Layout, settings: Settings) -> Tensor:
    """What never leaves a client: the method's entries and, with buffers = local, the norm statistics."""
    with hook(method, "keeps"):
        kept = method.keeps(layout)
        if getattr(kept, "shape", None) != layout.head.shape:
            raise TypeError(f"it gave {type(kept).__name__}, expected a mask of {layout.size} entries")
    return kept | (layout.buffers & (settings.buffers == "local"))


def _engine(config: Config, worker: Worker) -> Engine:
    """Where the clients work, as the configuration asks."""
    workers = config.workers or len(os.sched_getaffinity(0))
    on_cpu = worker.net.device.type == "cpu"
    engine: Engine = Pool(worker, workers) if workers > 1 and on_cpu else Serial(worker)
    if config.dropouts is None:
        return engine
    named = (*config.dropouts.never_clients, *config.dropouts.late_clients)
    strange = [i for i in named if i >= worker.fed.clients]
    if strange:
        raise Error(f"dropouts names client {strange[0]}: there are clients 0 to {worker.fed.clients - 1}")
    return Dropping(engine, config.dropouts, worker.fed.settings.seed)


def initial_model(
    name: str, head: str, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[nn.Module, Layout, Tensor]:
    """The network, its layout and the vector that every client starts from."""
    with seeds.torch_seeded(seed, "model"):
        module = models.build(name, shape, classes)
    layout = layout_of(module, head)
    state = module.state_dict()
    return module, layout, layout.flat({k: state[k] for k in layout.names})


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Error(
            f"device {name!r}: torch finds {torch.cuda.device_count()} CUDA devices here; use --device cpu"
        )
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Server hooks run on one thread, so that no sum's bits depend on the machine's cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
