"""What a Ray cluster costs the driver, in seconds and memory, against clients a round and the size of the model; and
two Ray workers against the pool.

    python benchmarks/scaling.py --out benchmarks/scaling.json [--times 2]
        [--only driver|many|rate|train|checks|mixes|idle]
    python benchmarks/scaling.py --show benchmarks/scaling.json

The clients of `driver` and `many` do not train (benchmarks/echo.py), so that the time is that of the server and the
engine. Each measurement is a process of its own, and all are repeated in turn. Processor seconds count all threads of
the driver; `others` are the workers, with Ray also its own processes, which `daemons` count apart: they work by the
clock, whatever the run does."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
MODELS = {"0.25 MB": ("lenet5", (1, 28, 28)), "9 MB": ("mobilenetv2", (3, 32, 32))}
MB = {"0.25 MB": 0.25, "9 MB": 9.0}


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
    """What each round took, without the first, which opens the workers."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"seconds": [], "driver_cpu": [], "others_cpu": [], "daemons_cpu": []}
    peak = 0.0
    server = s.begin()
    steps = s.rounds(server)
    next(steps)
    for _ in range(count):
        there = descendants()
        hosts = {pid for pid, name in there.items() if "ray::Host" in name}
        daemons = there.keys() - hosts if hosts else ()
        wall, driver, other, own = time.perf_counter(), time.process_time(), used(there), used(daemons)
        done = next(steps)
        found["seconds"].append(round(time.perf_counter() - wall, 3))
        found["driver_cpu"].append(round(time.process_time() - driver, 4))
        found["others_cpu"].append(round(used(there) - other, 3))
        found["daemons_cpu"].append(round(used(daemons) - own, 3))
        peak = max(peak, own_memory())
        del done
    actors = [own_memory(pid) for pid, name in descendants().items() if "ray::Host" in name]
    s.engine.close()
    return {**found, "driver_mb": round(peak), "actor_mb": round(max(actors, default=0))}


def driver(asked: dict[str, Any]) -> dict[str, Any]:
    """Rounds of clients that do not train."""
    name, shape = MODELS[asked["model"]]
    clients, each = asked["clients"], asked["each_round"]
    settings = {
        "model": name,
        "join": each / clients,
        "rounds": asked["rounds"] + 1,
        "engine": asked["engine"],
    }
    if asked["engine"] != "serial":
        settings["workers"] = 2
    s = session(f"{HERE / 'echo.py'}:{asked['server']}", federation(clients, shape), **settings)
    return rounds(s, asked["rounds"])


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
    return {"ms": [round(ms, 3) for ms in took]}


def rate(asked: dict[str, Any]) -> dict[str, Any]:
    """Clients of 300 samples, five epochs of LeNet5, on two workers."""
    where = federation(40, (3, 32, 32), each=600)
    words = {"model": "lenet5", "join": 1.0, "epochs": 5, "workers": 2, "engine": asked["engine"]}
    return rounds(session("fedavg", where, rounds=asked["rounds"] + 1, **words), asked["rounds"])


def idle(_: dict[str, Any]) -> dict[str, Any]:
    """Processor seconds that two open actors, Ray's own processes and the driver use in a second without work."""
    s = session(
        "fedavg", federation(4, (1, 28, 28)), model="lenet5", join=1.0, rounds=2, engine="ray", workers=2
    )
    next(s.rounds(s.begin()))
    there = descendants()
    hosts = {pid for pid, name in there.items() if "ray::Host" in name}
    began, before = time.perf_counter(), (used(hosts), used(there.keys() - hosts), time.process_time())
    time.sleep(20)
    took, after = (
        time.perf_counter() - began,
        (used(hosts), used(there.keys() - hosts), time.process_time()),
    )
    actors, daemons, own = (round((b - a) / took, 4) for a, b in zip(before, after, strict=True))
    s.engine.close()
    return {"actors": actors, "daemons": daemons, "driver": own}


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
        used_up.append(round((time.process_time() - began) / (2 * samples) * 300 * 5, 4))
    return {"client_cpu": used_up}


def mixes(asked: dict[str, Any]) -> dict[str, Any]:
    """Nanoseconds of a core that a mean takes for each row and entry, when many means are taken at once."""
    import torch

    from pfedsim.backends import native

    rows = list(torch.randn(asked["rows"], asked["entries"]))
    table = (torch.rand(asked["means"], asked["rows"]) + 0.1).tolist()
    took = []
    for _ in range(5):
        began = time.thread_time()
        native.mix(rows, table)
        took.append(
            (time.thread_time() - began) * 1e9 / (asked["rows"] * asked["means"] * asked["entries"])
        )
    return {"ns": [round(ns, 4) for ns in took]}


KINDS = {"driver": driver, "rate": rate, "train": train, "checks": checks, "mixes": mixes, "idle": idle}


def measured(what: str, asked: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([what, asked])]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-3000:]
    found = {**asked, **json.loads(out.stdout.splitlines()[-1])}
    print(what, json.dumps(found), flush=True)
    return found


def plan() -> list[tuple[str, dict[str, Any]]]:
    """Everything to measure once."""
    cells: list[tuple[str, dict[str, Any]]] = []
    for server, most in (("Echo", 1000), ("EchoSim", 200)):
        for model in MODELS:
            for each in (10, 100, 1000) if server == "Echo" else (100, 1000):
                each = min(each, most) if model == "9 MB" else each  # rows, mixes and replies must fit
                count = 2 if each * MB[model] > 1000 else 5
                what = {
                    "server": server,
                    "model": model,
                    "clients": each,
                    "each_round": each,
                    "rounds": count,
                }
                engines = ("ray", "pool", "serial") if server == "Echo" else ("ray",)
                cells += [("driver", {**what, "engine": engine}) for engine in engines]
    for server in ("Echo", "EchoSim"):
        what = {"server": server, "model": "0.25 MB", "clients": 10_000, "each_round": 1000, "rounds": 4}
        engines = ("ray", "pool") if server == "Echo" else ("ray",)
        cells += [("many", {**what, "engine": engine}) for engine in engines]
    clients = (("lenet5", "native", 960), ("lenet5", "torch", 960), ("mobilenetv2", "torch", 96))
    cells += [("train", {"model": m, "backend": b, "samples": n}) for m, b, n in clients]
    cells += [("checks", {"model": model, "clients": 40 if model == "9 MB" else 300}) for model in MODELS]
    sizes = ((1000, 1, 62_006), (1000, 64, 62_006), (200, 1, 2_236_682), (200, 64, 2_236_682))
    cells += [("mixes", {"rows": r, "means": m, "entries": n}) for r, m, n in sizes]
    cells.append(("idle", {}))
    cells += [("rate", {"engine": engine, "rounds": 4}) for engine in ("pool", "ray")]
    return cells


def best_and_median(found: Sequence[float]) -> str:
    return f"{min(found):.3g} ({sorted(found)[len(found) // 2]:.3g})"


def lines(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Each setting with the best and the median round of all repetitions."""
    facts = (
        "seconds",
        "driver_cpu",
        "others_cpu",
        "daemons_cpu",
        "driver_mb",
        "actor_mb",
        "client_cpu",
        "ms",
        "ns",
    )
    by: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by.setdefault(", ".join(str(v) for k, v in cell.items() if k not in facts), []).append(cell)
    for name, same in by.items():
        said = []
        for word in facts:
            values = [cell[word] for cell in same if word in cell]
            flat = [x for value in values for x in (value if isinstance(value, list) else [value])]
            if flat and any(flat):
                said.append(f"{word} {max(flat) if word.endswith('mb') else best_and_median(flat)}")
        yield f"{name}: {', '.join(said)}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path)
    options.add_argument("--only", choices=["many", *KINDS])
    options.add_argument("--times", type=int, default=2, help="repetitions, in turn")
    options.add_argument("--show", type=Path, help="print the best and median of earlier measurements")
    options.add_argument("--one", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        what, cell = json.loads(asked.one)
        print(json.dumps(KINDS["driver" if what == "many" else what](cell)))
        return
    report: dict[str, Any] = {"cores": os.cpu_count()}
    for earlier in (asked.show, asked.out if asked.only else None):
        report |= json.loads(earlier.read_text()) if earlier and earlier.is_file() else {}
    fresh: dict[str, list[Any]] = {}
    for _ in range(0 if asked.show else asked.times):
        for what, cell in plan():
            if asked.only in (None, what):
                fresh.setdefault(what, []).append(measured(what, cell))
                if asked.out:
                    asked.out.write_text(json.dumps({**report, **fresh}, indent=1) + "\n")
    for what, cells in ({**report, **fresh}).items():
        if isinstance(cells, list):
            print(f"{what}: best (median)", *lines(cells), sep="\n  ")


if __name__ == "__main__":
    main()
