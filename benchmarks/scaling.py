"""What a Ray cluster costs the driver, in seconds and memory, against clients a round and the size of the model; and
two Ray workers against the pool.

    python benchmarks/scaling.py --out benchmarks/scaling.json [--only driver|many|rate|train|profile|checks]

The clients of `driver` and `many` do not train (benchmarks/echo.py), so that the time is that of the server and the
engine. Each measurement is a process of its own. Processor seconds count all threads of the driver; those of Ray are
the actors and Ray's own processes together."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
MODELS = {"0.25 MB": ("lenet5", (1, 28, 28)), "9 MB": ("mobilenetv2", (3, 32, 32))}


def federation(clients: int, shape: tuple[int, ...], each: int = 6) -> Any:
    """Random pictures, so many for each client."""
    import pfedsim
    from pfedsim.data import DataSet

    draw = np.random.default_rng(0)
    n = clients * each
    x = draw.integers(0, 256, (n, *shape), dtype=np.uint8)
    y = draw.integers(0, 10, n)
    owner = np.repeat(np.arange(clients), each)
    facts = tuple("0123456789"), (0.5,) * shape[0], (0.3,) * shape[0]
    data = DataSet("random", x, y, *facts, client=owner)
    return pfedsim.federate(data, partition="given", minimum=2)


def descendants() -> dict[int, str]:
    """The processes that this one has started, directly or not, with their names."""
    parents, names = {}, {}
    for place in Path("/proc").iterdir():
        try:
            stat = (place / "stat").read_text()
            parents[int(place.name)] = int(stat.rpartition(")")[2].split()[1])
            names[int(place.name)] = (place / "cmdline").read_bytes().split(b"\0")[0].decode()
        except (OSError, ValueError, IndexError):
            continue
    ours = {os.getpid()}
    for _ in range(9):
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    return {pid: names[pid] for pid in ours - {os.getpid()}}


def used(pids: Any) -> float:
    """Processor seconds of these processes."""
    total = 0
    for pid in pids:
        try:
            total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        except OSError:
            continue
    return total / TICKS


def own_memory(pid: int | str = "self") -> float:
    """MB that this process alone uses: what it shares, as the object store, is left out."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(status[k].split()[0]) for k in ("RssAnon", "RssFile")) / 1024


def session(method: str, where: Any, **settings: Any) -> Any:
    from pfedsim.runs import check
    from pfedsim.runs.setup import prepare

    words = {"method": method, **settings, "score": {"every": 0, "finetune": 0}}
    return prepare(check(words), where)


def rounds(s: Any, count: int) -> dict[str, Any]:
    """Seconds a round, without the first, which opens the workers."""
    import torch

    torch.set_num_threads(1)
    walls, drivers, others = [], [], []
    peak = 0.0
    server = s.begin()
    steps = s.rounds(server)
    next(steps)
    for _ in range(count):
        there = descendants()
        wall, driver, other = time.perf_counter(), time.process_time(), used(there)
        done = next(steps)
        walls.append(time.perf_counter() - wall)
        drivers.append(time.process_time() - driver)
        others.append(used(there) - other)
        peak = max(peak, own_memory())
        del done
    actors = [own_memory(pid) for pid, name in descendants().items() if "ray::Host" in name]
    s.engine.close()
    return {
        "seconds": round(min(walls), 3),
        "driver_cpu": round(min(drivers), 3),
        "others_cpu": round(min(others), 3),
        "driver_mb": round(peak),
        "driver_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "actor_mb": round(max(actors, default=0)),
    }


def driver(asked: dict[str, Any]) -> dict[str, Any]:
    """A round of clients that do not train."""
    name, shape = MODELS[asked["model"]]
    clients, each = asked["clients"], asked["each_round"]
    settings = {"model": name, "join": each / clients, "rounds": 4, "engine": asked["engine"]}
    if asked["engine"] != "serial":
        settings["workers"] = 2
    s = session(f"{HERE / 'echo.py'}:Echo", federation(clients, shape), **settings)
    return rounds(s, asked["rounds"])


def profile(asked: dict[str, Any]) -> dict[str, Any]:
    """In which functions the driver spends such a round, as shares of its processor time."""
    import cProfile
    import pstats

    import torch

    torch.set_num_threads(1)
    name, shape = MODELS[asked["model"]]
    where = federation(asked["clients"], shape)
    s = session(f"{HERE / 'echo.py'}:Echo", where, model=name, join=1.0, rounds=4, engine="ray", workers=2)
    steps = s.rounds(s.begin())
    next(steps)
    next(steps)
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(next, steps)
    s.engine.close()
    found = pstats.Stats(profiler)
    total = found.total_tt  # type: ignore[attr-defined]
    shares: Counter[str] = Counter()
    for (_, _, function), facts in found.stats.items():  # type: ignore[attr-defined]
        shares[function] += facts[2] / total
    return {"seconds": round(total, 3), "shares": {k: round(v, 3) for k, v in shares.most_common(10)}}


def checks(asked: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a processor that the checks of one reply take, without engine and mean."""
    import torch

    from pfedsim.core import server
    from pfedsim.core.engine import Done
    from pfedsim.core.job import Work
    from pfedsim.core.method import Reply

    torch.set_num_threads(1)
    name, shape = MODELS[asked["model"]]
    clients = range(asked["clients"])
    s = session("fedavg", federation(len(clients), shape), model=name, join=1.0, rounds=4, engine="serial")
    before = s.begin()
    works = [Work(i, 0, m, "train") for i, m in server.send(s.side, before, clients, "train").items()]
    replies = [Reply(w.client, 1.0, w.message.model * 0.999, round=0, task="train") for w in works]
    took = []
    for _ in range(5):
        began = time.thread_time()
        wave = [
            server._looked_at(s.side, w, Done(w.client, reply))
            for w, reply in zip(works, replies, strict=True)
        ]
        good = server._usable(s.side, wave, {}, [])
        server._judge(s.side, before, wave, good, [])
        took.append((time.thread_time() - began) / len(works) * 1000)
        assert len(good) == len(works)
    return {"ms_best": round(min(took), 3), "ms_median": round(sorted(took)[2], 3)}


def rate(asked: dict[str, Any]) -> dict[str, Any]:
    """Clients of 300 samples, five epochs of LeNet5, on two workers."""
    where = federation(40, (3, 32, 32), each=600)
    words = {
        "model": "lenet5",
        "join": 1.0,
        "rounds": 4,
        "epochs": 5,
        "workers": 2,
        "engine": asked["engine"],
    }
    found = rounds(session("fedavg", where, **words), asked["rounds"])
    return {**found, "clients_a_second": round(40 / found["seconds"], 2)}


def train(asked: dict[str, Any]) -> dict[str, Any]:
    """Processor seconds of a client of 300 samples and five epochs, from one epoch of fewer samples."""
    import torch

    torch.set_num_threads(1)
    samples = asked["samples"]
    where = federation(2, (3, 32, 32), each=2 * samples)
    words = {"model": asked["model"], "backend": asked["backend"], "join": 1.0, "rounds": 4, "epochs": 1}
    s = session("fedavg", where, **words, engine="serial")
    steps, used_up = s.rounds(s.begin()), []
    for _ in range(3):
        began = time.process_time()
        next(steps)
        used_up.append(time.process_time() - began)
    return {"client_cpu": round(min(used_up) / (2 * samples) * 300 * 5, 3)}


KINDS = {"driver": driver, "rate": rate, "train": train, "profile": profile, "checks": checks}


def measured(what: str, asked: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([what, asked])]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-3000:]
    found = {**asked, **json.loads(out.stdout.splitlines()[-1])}
    print(what, json.dumps(found), flush=True)
    return found


def plan(only: str) -> list[tuple[str, dict[str, Any]]]:
    """Everything to measure."""
    cells: list[tuple[str, dict[str, Any]]] = []
    for model in MODELS if only in ("", "driver") else ():
        for each in (10, 100, 1000):
            for engine in ("ray", "pool", "serial"):
                few = model == "9 MB" and each == 1000
                what = {"model": model, "clients": each, "each_round": each, "engine": engine}
                cells.append(("driver", {**what, "rounds": 1 if few else 2}))
    for engine in ("ray", "pool") if only in ("", "many") else ():
        what = {"model": "0.25 MB", "clients": 10_000, "each_round": 1000, "engine": engine, "rounds": 2}
        cells.append(("driver", what))
    clients = (("lenet5", "native", 960), ("lenet5", "torch", 960), ("mobilenetv2", "torch", 96))
    for model, backend, samples in clients if only in ("", "train") else ():
        cells.append(("train", {"model": model, "backend": backend, "samples": samples}))
    for model in MODELS if only in ("", "profile") else ():
        cells.append(("profile", {"model": model, "clients": 100 if model == "9 MB" else 1000}))
    for model in MODELS if only in ("", "checks") else ():
        cells.append(("checks", {"model": model, "clients": 40 if model == "9 MB" else 300}))
    for engine in ("pool", "ray") * 3 if only in ("", "rate") else ():
        cells.append(("rate", {"engine": engine, "rounds": 2}))
    return cells


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path)
    options.add_argument("--only", default="", choices=["", *KINDS, "many"])
    options.add_argument("--one", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        what, cell = json.loads(asked.one)
        print(json.dumps(KINDS[what](cell)))
        return
    report: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out and asked.out.is_file() else {}
    report["cores"] = os.cpu_count()
    fresh: dict[str, list[Any]] = {}
    for what, cell in plan(asked.only):
        name = "many" if cell.get("clients") == 10_000 else what
        fresh.setdefault(name, []).append(measured(what, cell))
        if asked.out:
            asked.out.write_text(json.dumps({**report, **fresh}, indent=1) + "\n")


if __name__ == "__main__":
    main()
