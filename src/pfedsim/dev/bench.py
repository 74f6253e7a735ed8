"""How fast this machine trains, in one run: every way in turns, best and median, wall time and CPU time.
`pfedsim bench` prints it.

The data are random bytes: speed does not depend on what the pictures show. All figures are ratios or rates
of this run; the machine may be shared, so absolute numbers of two runs must not be compared."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from pfedsim.backends import native
from pfedsim.core import scoring
from pfedsim.core.job import Work
from pfedsim.core.method import Message
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.dev import network_bench
from pfedsim.dev.network_bench import peak_gflops
from pfedsim.methods import METHODS
from pfedsim.models.lenet5 import LeNet5
from pfedsim.runs import config as configs
from pfedsim.runs.setup import Session, one_thread, prepare

EPOCHS, SAMPLES, POOL = 5, 300, 6000
MFLOP: dict[tuple[int, ...], float] = {
    (3, 32, 32): 3.20,
    (1, 28, 28): 1.54,
}  # forward and backward of LeNet5, a sample
Say = Callable[[str], None]


@dataclass(frozen=True)
class Rate:
    """Things a second: of the best repetition and of the median one, by wall time and by CPU time."""

    best: float
    median: float
    cpu_best: float
    cpu_median: float


@dataclass
class Report:
    """Everything measured, as JSON holds it."""

    machine: dict[str, Any] = field(default_factory=dict)
    peak_gflops: float = 0.0
    networks: list[dict[str, Any]] = field(default_factory=list)
    training: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    cores: dict[str, Any] = field(default_factory=dict)
    scoring: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, Any] = field(default_factory=dict)
    scale: dict[str, Any] = field(default_factory=dict)
    whole_run: dict[str, Any] = field(default_factory=dict)
    peak_memory_mb: float = 0.0

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def bench(repetitions: int = 5, rounds: int = 20, say: Say = print) -> Report:
    """All measurements, each printed when it is done; `rounds` of the whole run."""
    report = Report(machine=_machine())
    with one_thread():
        say(f"machine: {report.machine}")
        _matrix(report, say)
        for shape, classes, batch in (
            ((3, 32, 32), 10, 32),
            ((1, 28, 28), 62, 32),
            ((3, 32, 32), 10, 17),
            ((1, 28, 28), 62, 17),
        ):
            _training(report, shape, classes, batch, repetitions, say)
        report.networks = network_bench.measure(repetitions, report.peak_gflops, say)
        _sizes(report, repetitions, say)
        _cores(report, repetitions, say)
        _scoring(report, repetitions, say)
        _rounds(report, say)
        _scale(report, say)
        _whole_run(report, rounds, say)
    used = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    )
    report.peak_memory_mb = used / 1024
    say(f"peak memory of this process and its largest worker: {report.peak_memory_mb:.0f} MB")
    return report


def federation(clients: int, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> Federation:
    """Clients with 300 train and 300 test samples of random bytes; they share a pool, so that many clients
    need little memory."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (POOL, *shape), dtype=np.uint8)
    data = DataSet(
        "random",
        x,
        draw.integers(0, classes, POOL),
        tuple(map(str, range(classes))),
        (0.5,) * shape[0],
        (0.25,) * shape[0],
    )
    places = [draw.permutation(POOL)[: 2 * SAMPLES] for _ in range(clients)]
    return Federation(
        data, Partition(tuple(Split(p[:SAMPLES], p[SAMPLES:]) for p in places), {}, data.digest)
    )


def session(where: Federation, method: str = "fedavg", **settings: Any) -> Session:
    return prepare(
        configs.check({"method": method, "rounds": 4, "join": 0.1, "epochs": EPOCHS, **settings}), where
    )


def in_turns(ways: dict[str, Callable[[], float]], repetitions: int) -> dict[str, Rate]:
    """Every way once, then every way again: what else the machine does hits all alike. A way returns how
    many things it did."""
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():  # to warm up
        way()
    for _ in range(repetitions):
        for name, way in ways.items():
            began, used = time.perf_counter(), time.process_time()
            done = way()
            wall[name].append(done / (time.perf_counter() - began))
            cpu[name].append(done / max(1e-9, time.process_time() - used))
    return {n: Rate(max(wall[n]), median(wall[n]), max(cpu[n]), median(cpu[n])) for n in ways}


def plain_loop(module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> float:
    """What people write: tensors preloaded, no DataLoader."""
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    for _ in range(EPOCHS):
        for xs, ys in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(xs), ys))
            optimizer.step()
    return EPOCHS * len(y)


class _PerSample(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Normalises each sample when it is asked for, as peers' data sets do: tensors behind the operations of
    the usual Normalize (a copy, mean and deviation made tensors and checked, then in place)."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y
        self.mean, self.std = [0.5] * x.shape[1], [0.25] * x.shape[1]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        sample = self.x[k].clone()
        mean, std = (torch.as_tensor(c, dtype=sample.dtype) for c in (self.mean, self.std))
        if (std == 0).any():
            raise ValueError("a deviation of zero")
        return sample.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1)), self.y[k]


def loader_loop(module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> float:
    """The same with a client's Subset, a DataLoader and per-sample normalising."""
    everybody = _PerSample(x, y)
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.Subset(everybody, list(range(len(y)))), batch_size=batch
    )
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    for _ in range(EPOCHS):
        for xs, ys in loader:
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(xs), ys))
            optimizer.step()
    return EPOCHS * len(y)


def _machine() -> dict[str, Any]:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernels": native.kernel_set(),
        "torch": torch.__version__,
    }


def _matrix(report: Report, say: Say) -> None:
    """What this core can do: the yardstick of all shares."""
    report.peak_gflops = peak_gflops()
    say(f"one core does {report.peak_gflops:.0f} GFLOP/s at most")


def _training(
    report: Report, shape: tuple[int, ...], classes: int, batch: int, repetitions: int, say: Say
) -> None:
    where = federation(1, shape=shape, classes=classes)
    split, data = where.partition.clients[0], where.data
    raw, y = torch.from_numpy(data.x[split.train]).float() / 255, torch.from_numpy(data.y[split.train])
    x = (raw - 0.5) / 0.25
    ways: dict[str, Callable[[], float]] = {
        "plain PyTorch loop": lambda: plain_loop(LeNet5(shape, classes), x, y, batch),
        "DataLoader loop": lambda: loader_loop(LeNet5(shape, classes), raw, y, batch),
    }
    for backend in ("torch", "native") if native.available() else ("torch",):
        s = session(where, join=1.0, batch=batch, backend=backend, workers=1)
        ways[f"{backend} backend"] = _client(s)
    rates = in_turns(ways, repetitions)
    name = f"{'x'.join(map(str, shape))}, {classes} classes, batch {batch}"
    mflop, plain, loader = MFLOP[shape], rates["plain PyTorch loop"], rates["DataLoader loop"]
    table: dict[str, Any] = {}
    for way, rate in rates.items():
        table[way] = asdict(rate) | {
            "times_plain_best": rate.best / plain.best,
            "times_plain_median": rate.median / plain.median,
            "times_plain_cpu_median": rate.cpu_median / plain.cpu_median,
            "times_loader_best": rate.best / loader.best,
            "times_loader_median": rate.median / loader.median,
            "share_of_matrix_best": rate.best * mflop / 1e3 / report.peak_gflops,
            "share_of_matrix_median": rate.median * mflop / 1e3 / report.peak_gflops,
        }
        say(
            f"{name}: {way}: {rate.best:.0f} samples/s (median {rate.median:.0f}), {rate.median / plain.median:.2f} "
            "x plain by the median"
        )
    report.training[name] = table


class Wide(nn.Module):
    """Two hidden layers on the pixels of a picture."""

    hidden = 750

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        pixels = shape[0] * shape[1] * shape[2]
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(pixels, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden // 4),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(self.hidden // 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(x))  # type: ignore[no-any-return]


class Wider(Wide):
    """The same with about four times as many entries."""

    hidden = 2560


def _sizes(report: Report, repetitions: int, say: Say) -> None:
    """What a client and a round cost on the torch backend by CPU time, against plain loops over the same
    samples, as networks grow."""
    shape = (3, 32, 32)
    where = federation(4, shape=shape)
    split, data = where.partition.clients[0], where.data
    x = (torch.from_numpy(data.x[split.train]).float() / 255 - 0.5) / 0.25
    y = torch.from_numpy(data.y[split.train])
    for kind in (LeNet5, Wide, Wider):
        words: dict[str, Any] = {"model": f"{kind.__module__}:{kind.__qualname__}", "backend": "torch"}
        words |= {"workers": 1, "join": 1.0, "batch": 32}
        one = session(where, **words)
        several = session(where, "pfedsim(rho=0)", rounds=10_000, **words)
        ways: dict[str, Callable[[], float]] = {
            "plain PyTorch loop": lambda kind=kind: plain_loop(kind(shape, 10), x, y, 32),  # type: ignore[misc]
            "a client": _client(one),
            "a round of pFedSim": _next_round(several),
        }
        rates = in_turns(ways, repetitions)
        plain, entries = rates.pop("plain PyTorch loop"), one.fed.layout.size
        costs = {
            way: {"cpu_best": plain.cpu_best / r.cpu_best, "cpu_median": plain.cpu_median / r.cpu_median}
            for way, r in rates.items()
        }
        report.sizes[str(entries)] = costs
        for way, times in costs.items():
            say(
                f"{entries / 1e6:.2f} million entries, torch backend: {way} costs {times['cpu_median']:.2f} x a "
                f"plain loop by CPU time (best {times['cpu_best']:.2f})"
            )


def _next_round(s: Session) -> Callable[[], float]:
    """One round more of a run, on and on: sending, training, guard and aggregation."""
    rounds = s.rounds(s.begin())

    def once() -> float:
        return float(EPOCHS * SAMPLES * len(next(rounds).asked))

    return once


def _client(s: Session) -> Callable[[], float]:
    """One client's local training through the real loop."""
    work = Work(0, 0, Message("train", s.fed.initial), "train")

    def once() -> float:
        list(s.engine.run("train", [work]))
        return EPOCHS * SAMPLES

    return once


def _cores(report: Report, repetitions: int, say: Say) -> None:
    """Eight clients on one worker and on all cores; a pool's CPU time is its workers', so wall time
    only."""
    where = federation(8)
    cores = len(os.sched_getaffinity(0))
    ways: dict[str, Callable[[], float]] = {}
    sessions = []
    for backend in ("torch", "native") if native.available() else ("torch",):
        for workers in (1, cores):
            s = session(where, backend=backend, workers=workers)
            sessions.append(s)
            ways[f"{backend}, {workers} worker{'s' * (workers > 1)}"] = _wave(s)
    rates = in_turns(ways, repetitions)
    for s in sessions:
        s.engine.close()
    report.cores = {name: {"best": r.best, "median": r.median} for name, r in rates.items()}
    for name, rate in rates.items():
        say(f"eight clients, {name}: {rate.best:.0f} samples/s (median {rate.median:.0f})")


def _wave(s: Session) -> Callable[[], float]:
    works = [Work(i, 0, Message("train", s.fed.initial), "train") for i in range(s.fed.clients)]

    def once() -> float:
        list(s.engine.run("train", works))
        return EPOCHS * SAMPLES * len(works)

    return once


def _scoring(report: Report, repetitions: int, say: Say) -> None:
    """100 clients' 300 test images, each with its own model: torch at its best batch size, and native, one
    core."""
    where = federation(100)
    x = torch.from_numpy(where.data.x)
    ways: dict[str, Callable[[], float]] = {}
    theta = None
    for backend in ("torch", "native") if native.available() else ("torch",):
        s = session(where, backend=backend, workers=1)
        net = s.worker.net
        theta = s.fed.initial if theta is None else theta
        images = [net.ready(x[split.test]) for split in where.partition.clients]
        for chunk in (32, 64, 128, 300) if backend == "torch" else (300,):
            name = f"torch, batch {chunk}" if backend == "torch" else "native"
            ways[name] = _scored(net, theta, images, chunk)
    rates = in_turns(ways, max(3, repetitions // 2))
    best_torch = max((r for n, r in rates.items() if n != "native"), key=lambda r: r.best)
    report.scoring = {name: asdict(rate) for name, rate in rates.items()}
    if "native" in rates:
        ratio = (
            rates["native"].best / best_torch.best,
            rates["native"].median / max(r.median for n, r in rates.items() if n != "native"),
        )
        report.scoring["native_times_best_torch"] = {"best": ratio[0], "median": ratio[1]}
        say(
            f"scoring 100 x 300 images: native {rates['native'].best:.0f} images/s, {ratio[0]:.2f} x "
            f"torch's best (median {ratio[1]:.2f})"
        )


def _scored(
    net: Any, theta: torch.Tensor, images: Iterable[torch.Tensor], chunk: int
) -> Callable[[], float]:
    held = list(images)

    def once() -> float:
        for x in held:
            for part in torch.split(x, chunk):
                net.logits(theta, part)
        return float(sum(map(len, held)))

    return once


def _rounds(report: Report, say: Say) -> None:
    """Seconds of a round of every method, ten of 100 clients, all cores: the median of four rounds; of
    two-stage methods the second stage's, where all clients have met."""
    where = federation(100)
    for name in METHODS:
        s = session(where, name, rounds=8)
        report.rounds[name] = _round_seconds(s)[0]
        say(f"a round of {name}: {report.rounds[name]:.3f} s")


def _round_seconds(s: Session) -> tuple[float, float]:
    """Median and best of the last rounds."""
    seconds, began = [], time.perf_counter()
    for _ in s.rounds(s.begin()):
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    s.engine.close()
    later = seconds[len(seconds) // 2 + 1 :]
    return median(later), min(later)


def _scale(report: Report, say: Say) -> None:
    """pFedSim, ten clients a round: 10,000 clients against 100."""
    found = {}
    for clients in (100, 10_000):
        s = session(federation(clients), "pfedsim", rounds=20, join=10 / clients)
        found[clients] = _round_seconds(s)
        began = time.perf_counter()
        if clients == 100:
            scoring.score(s.side, s.begin())
            report.scale["seconds_to_score_100"] = time.perf_counter() - began
            s.engine.close()
    report.scale |= {
        "seconds_a_round": {str(n): {"median": m, "best": b} for n, (m, b) in found.items()},
        "ratio_median": found[10_000][0] / found[100][0],
        "ratio_best": found[10_000][1] / found[100][1],
    }
    say(
        f"pFedSim, a round at 10,000 clients: {report.scale['ratio_median']:.2f} x one at 100 (best "
        f"{report.scale['ratio_best']:.2f})"
    )


def _whole_run(report: Report, rounds: int, say: Say) -> None:
    """Ten of 100 clients a round: FedAvg by default against the serial torch engine, and what FedAvg and
    pFedSim lose outside steps."""
    where = federation(100)
    serial = {"backend": "torch", "workers": 1}
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "FedAvg": ("fedavg", {}),
        "FedAvg, serial torch": ("fedavg", serial),
        "pFedSim": ("pfedsim", {}),
    }
    took: dict[str, float] = {}
    lost: dict[str, float] = {}
    for name, (method, settings) in ways.items():
        s = session(where, method, rounds=rounds, **settings)
        steps, began = 0.0, time.perf_counter()
        for round in s.rounds(s.begin()):
            steps += sum(r.info["seconds"] for r in round.replies)
        took[name] = time.perf_counter() - began
        lost[name] = 1 - steps / (took[name] * settings.get("workers", len(os.sched_getaffinity(0))))
        s.engine.close()
    times = took["FedAvg, serial torch"] / took["FedAvg"]
    report.whole_run = {
        "rounds": rounds,
        "seconds": took,
        "times_serial_torch": times,
        "lost_outside_steps": lost,
    }
    shares = ", ".join(f"{name} {100 * lost[name]:.1f}%" for name in ("FedAvg", "pFedSim"))
    say(f"{rounds} rounds: FedAvg {times:.2f} x the serial torch engine; lost outside steps: {shares}")
