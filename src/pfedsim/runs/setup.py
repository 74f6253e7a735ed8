"""From a configuration to everything that a run needs in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pfedsim import data as datasets
from pfedsim import memory
from pfedsim.core import robust, seeds
from pfedsim.core.augment import refuse_unfit
from pfedsim.core.engine import Engine
from pfedsim.core.hooks import hook
from pfedsim.core.job import Worker
from pfedsim.core.layout import Layout
from pfedsim.core.method import Fed, Method, ServerState
from pfedsim.core.server import Coordinator, Observer, Round, last_wave, run_rounds
from pfedsim.core.settings import LABEL_FLIP, Settings
from pfedsim.core.wire import Wire
from pfedsim.data import partition as partitions
from pfedsim.data.cache import Tell, quiet
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import ClientData, Federation
from pfedsim.data.partition import Partition
from pfedsim.data.task import Task
from pfedsim.engines.attacks import Attacking, FlippedLabels, attackers
from pfedsim.engines.dropouts import Dropping
from pfedsim.engines.pool import LIMIT, Pool
from pfedsim.engines.serial import Serial
from pfedsim.errors import Error
from pfedsim.models import pretrained
from pfedsim.plugin import source_digest
from pfedsim.runs.config import OF_FEDERATION, Config, Digests, Stop
from pfedsim.runs.network import Network
from pfedsim.runs.unused import refuse_unused_by_default

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.backends.base import Backend


class Nowhere:
    """The samples of clients that are elsewhere: nobody here has any."""

    def part(self, client: int, name: str, validation: float = 0.0) -> tuple[Tensor, Tensor]:
        raise Error(f"client {client}'s samples are elsewhere")


@dataclass(frozen=True, eq=False)
class Distant:
    """A federation whose samples others hold. `connect`: the engine that reaches them, and a list of how many train
    samples each client says it has, which fills as they are reached."""

    task: Task
    partition: Partition
    connect: Callable[[Plan], tuple[Engine, Sequence[float]]]
    deadline: float | None = None
    """seconds after which a wave ends without those who have not answered"""

    @property
    def samples(self) -> int:
        """Unknown here."""
        return 0

    @property
    def clients(self) -> int:
        return len(self.partition.clients)

    @property
    def unseen(self) -> int:
        """All clients train."""
        return 0


@dataclass(frozen=True, eq=False)
class Session:
    """One run in memory: the server's side, the worker that simulates its clients (if they are here), and the
    resolved configuration."""

    config: Config
    federation: Federation | Distant
    worker: Worker
    side: Coordinator
    schedule: list[list[int]]
    notice: str
    """why a slower backend runs than the fastest, and whom a cluster trusts; or nothing"""

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

    def last(self, server: ServerState) -> Round | None:
        """What the method asks all clients after the last round, if anything."""
        return last_wave(self.side, server)

    def observed(self, *observers: Observer) -> Session:
        """The same run, with these told of every client's work and result."""
        return replace(self, side=replace(self.side, observers=observers))


def federate(
    config: Config, dealt: Path | None = None, data: DataSet | None = None, tell: Tell = quiet
) -> Federation:
    """The data read (or given) and dealt; `dealt`: a partition's file to take in place of dealing; `tell`
    hears how far a long reading is."""
    in_memory = data is not None
    data = data or datasets.read(config.data, config.data_dir, config.size, tell, config.digests.data)
    if data.table is None:
        _as_stated("data", config.digests.data, data.digest)
    refuse_unused_by_default(config, data.defaults.partition)
    suited = config.suited(data.defaults)
    assert suited.alpha is not None
    assert suited.minimum is not None
    kind = str(dealt or suited.partition)
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
            or (None if kind == "given" or config.clients_each else data.defaults.clients),
            alpha=suited.alpha,
            classes_each=config.classes_each,
            shards_each=config.shards_each or 2,
            clients_each=config.clients_each,
            minimum=suited.minimum,
            test=config.test,
            seed=config.partition_seed,
            owner=data.client,
            domain=data.domain,
        )
    if config.unseen is not None:
        partition = partitions.hold_out(partition, config.unseen, config.partition_seed)
    unseen = int(partition.recipe.get("unseen", 0))
    if data.table is not None:
        data = data.dealt([split.train for split in partition.clients[: len(partition.clients) - unseen]])
        _as_stated("data", config.digests.data, data.digest)
    _as_stated("partition", config.digests.partition, partition.digest)
    asked = {word: getattr(config, word) for word in ("data", *OF_FEDERATION)}
    return Federation(data, partition, asked, in_memory)


def _as_stated(name: str, stated: str | None, found: str) -> None:
    if stated is not None and stated != found:
        raise Error(
            f"digests.{name} = {stated[:12]}...: this {name} has {found[:12]}..., so the run would not "
            "be the same one"
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """A run as far as it can be prepared by someone who holds no data."""

    config: Config
    """with nothing left open"""
    task: Task
    method: Method
    fed: Fed
    wire: Wire
    net: Backend
    notice: str

    def worker(self, samples: ClientData, simulated: bool = False) -> Worker:
        """Who trains and scores the clients of these samples."""
        fed, device, attack = self.fed, self.net.device, self.config.attack
        if attack is not None and attack.kind == LABEL_FLIP:
            hostile = attackers(attack, fed.settings.seed, fed.clients)
            samples = FlippedLabels(samples, hostile, fed.classes)  # type: ignore[assignment]
        there = replace(fed, layout=fed.layout.to(device), initial=fed.initial.to(device))
        return Worker(self.method, there, self.net, samples, Wire(self.wire.kept.to(device)), simulated)

    def schedule(self) -> list[list[int]]:
        """Who is asked to train in each round."""
        settings, rounds = self.fed.settings, self.config.rounds
        assert rounds is not None
        each = seeds.per_round(self.fed.clients, settings.join)
        memory.need(f"a schedule of {rounds:,} rounds", rounds * (64 + 8 * each))
        return seeds.schedule(settings.seed, self.fed.clients, settings.join, rounds)


def plan(config: Config, task: Task, clients: int, unseen: int = 0, method: Method | None = None) -> Plan:
    """Everything that is known without a sample. `clients`: all of them, those that never train included;
    `method`: this very object in place of the one that the configuration describes."""
    config = config.resolved(task.defaults, clients)
    method = method or config.method_made()
    if method.buffers:
        config = config.model_copy(update={"buffers": method.buffers})
    if method.last and config.stop not in (None, Stop()):
        raise Error(
            f"stop: {type(method).__name__} asks all clients {method.last!r} after the last round, which validation "
            "scores of earlier rounds do not see; leave stop out"
        )
    settings = config.settings()
    assert config.model is not None
    network = Network(
        config.model,
        config.head,
        task.shape,
        len(task.classes),
        task.mean,
        task.std,
        config.backend,
        config.device,
        method if method.reshapes() or method.autograd() else None,
    )
    each = seeds.per_round(clients - unseen, settings.join)
    if settings.augment is not None:
        refuse_unfit(settings.augment, task.shape)
    defence = settings.defence
    if defence is not None and (why := robust.objection(defence, each)):
        raise Error(
            f"defence.rule = {defence.rule!r}: {why}; raise join or change defence.share ({defence.share})"
        )
    module, layout, initial = network.build(settings.seed)
    weights = None
    if config.pretrained is not None:
        file = pretrained.find(
            config.pretrained, Path(config.data_dir) if config.data_dir else datasets.data_dir()
        )
        initial = pretrained.into(layout, initial, pretrained.load(file), file)
        weights = hashlib.sha256(initial[~layout.head].numpy().tobytes()).hexdigest()
    digests = config.digests.model_copy(
        update={
            "data": task.digest,
            "method": source_digest(type(method)),
            "model": source_digest(type(module)),
            "pretrained": weights,
        }
    )
    _unchanged(config.digests, digests)
    backend, net, notice = network.on_backend(module, layout)
    config = config.model_copy(update={"digests": digests, "backend": backend})
    fed = Fed(clients - unseen, len(task.classes), layout, net, initial, settings)
    return Plan(config, task, method, fed, Wire(_kept(method, layout, settings)), net, notice)


def _unchanged(stated: Digests, found: Digests) -> None:
    """Refuses other data, sources or weights than the configuration names."""
    _as_stated("data", stated.data, found.data or "")
    for name in ("method", "model", "pretrained"):
        if getattr(stated, name) not in (None, getattr(found, name)):
            what = (
                "these weights are others"
                if name == "pretrained"
                else f"the source of this {name} has changed"
            )
            raise Error(f"digests.{name}: {what}, so the run would not be the same one")


def prepare(
    config: Config,
    federation: Federation | Distant | None = None,
    method: Method | None = None,
    allow_drift: bool = False,
) -> Session:
    """Everything but the rounds themselves; `method`: this very object in place of the one that the
    configuration describes; `allow_drift`: nodes of a cluster may differ from this machine."""
    federation = federation or federate(config)
    dealt = config.digests.model_copy(update={"partition": federation.partition.digest})
    config = config.model_copy(update={"digests": dealt})
    planned = plan(config, federation.task, federation.clients, federation.unseen, method)
    if isinstance(federation, Distant):
        return _distant(planned, federation)
    worker = planned.worker(ClientData(federation), simulated=True)
    declared = [len(split.train) for split in federation.partition.clients]
    engine, cores, notice = _engine(planned, worker, federation, allow_drift)
    notices = "; ".join(filter(None, [planned.notice, notice]))
    side = Coordinator(planned.method, planned.fed, planned.wire, engine, declared, cores=cores)
    return Session(planned.config, federation, worker, side, planned.schedule(), notices)


def _distant(planned: Plan, federation: Distant) -> Session:
    """The run of clients that are elsewhere."""
    for name in ("attack", "dropouts"):
        if getattr(planned.config, name) is not None:
            raise Error(f"[{name}] simulates clients, and these are real; leave it out")
    worker = planned.worker(Nowhere())  # type: ignore[arg-type]
    engine, declared = federation.connect(planned)
    cores = len(os.sched_getaffinity(0))
    whole = planned.method, planned.fed, planned.wire, engine, declared
    side = Coordinator(*whole, deadline=federation.deadline, cores=cores)
    return Session(planned.config, federation, worker, side, planned.schedule(), planned.notice)


def _kept(method: Method, layout: Layout, settings: Settings) -> Tensor:
    """What never leaves a client: the method's entries and, with buffers = local, the norm statistics."""
    with hook(method, "keeps"):
        kept = method.keeps(layout)
        if getattr(kept, "shape", None) != layout.head.shape:
            raise TypeError(f"it gave {type(kept).__name__}, expected a mask of {layout.size} entries")
    return kept | (layout.buffers & (settings.buffers == "local"))


def _engine(
    planned: Plan, worker: Worker, federation: Federation, allow_drift: bool
) -> tuple[Engine, int, str]:
    """Where the clients work, as the configuration asks; how many cores of this machine are the server's while they
    do not; and what a user should know of it, or nothing."""
    config = planned.config
    here = len(os.sched_getaffinity(0))
    workers = config.workers or here
    on_cpu = worker.net.device.type == "cpu"
    apart = workers > 1 or config.time_limit  # only a process of its own can be ended
    kind = config.engine or ("pool" if on_cpu and apart else "serial")
    if kind != "serial" and not on_cpu:
        raise Error(f"engine = {kind!r}: the device {config.device!r} uses a single process")
    notice, cores = "", 1
    engine: Engine = Serial(worker)
    if kind == "pool":
        engine, cores = Pool(worker, workers, config.time_limit or LIMIT), workers
    elif kind == "ray":
        from pfedsim.runs.cluster import on_ray

        engine, notice = on_ray(planned, worker, federation, allow_drift)
        cores = here if config.address else workers
    clients, seed = worker.fed.clients, worker.fed.settings.seed
    if (attack := config.attack) is not None:
        _known("attack", attack.clients, clients)
        engine = Attacking(engine, attack, seed, clients)
    if (dropouts := config.dropouts) is not None:
        _known("dropouts", (*dropouts.never_clients, *dropouts.late_clients), clients)
        engine = Dropping(engine, dropouts, seed)
    return engine, cores, notice


def _known(table: str, named: tuple[int, ...], clients: int) -> None:
    for strange in (i for i in named if i >= clients):
        raise Error(f"{table} names client {strange}: there are clients 0 to {clients - 1}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Server hooks run on one thread, so that no sum's bits depend on the machine's cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
