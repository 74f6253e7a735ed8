"""What a run costs beside the training steps, for models of 1.6 and 2.5 million entries.

    python benchmarks/around.py --out benchmarks/around.json

1. 50 clients of 50 samples, batch 10, W2's network (peers_loops/works.py) with and without dropout, all scored at the
   end, with one worker and with two: the share of a round outside local training; how many times as fast two workers
   are. On a busy machine the clock says little, so `speed_by_cpu` is twice the processor seconds of one worker through
   those of two: the speed that two free cores would give.
2. pFedSim with 100 stored rows of MobileNetV2, ten clients of 100 images (3 x 64 x 64) a round, five epochs: processor
   seconds of mixing, sealing, guarding and saving, and of the whole round."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfedsim.core import server as loop
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.wire import Wire
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.runs.checkpoint import Saver
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute
from pfedsim.runs.reader import lines

LOOPS = Path(__file__).parent / "peers_loops"
PARTS = {
    "mixing": [(Rows, "mixes")],
    "sealing": [(Wire, "sealed_messages"), (Wire, "sealed")],
    "guarding": [(loop, "_looked_at"), (loop, "_usable"), (loop, "_judge"), (loop, "_checked")],
    "saving": [(Saver, "_commit"), (Saver, "save")],
}


def federation(clients: int, train: int, test: int, side: int) -> Federation:
    """Random images, as many for each client."""
    draw = np.random.default_rng(0)
    count = clients * (train + test)
    x = draw.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    data = DataSet(
        "random", x, draw.integers(0, 10, count), tuple("0123456789"), mean=(0.5,) * 3, std=(0.25,) * 3
    )
    parts = np.split(np.arange(count), clients)
    splits = tuple(Split(part[:train], part[train:]) for part in parts)
    return Federation(data, Partition(splits, {}, data.digest), in_memory=True)


def processor() -> float:
    """Seconds of this process and of its workers that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def around_steps(network: str, backend: str, clients: int, rounds: int) -> dict[str, Any]:
    """The same run with one and with two workers."""
    where, found = federation(clients, 50, 10, 32), {}
    for workers in (1, 2):
        words: dict[str, Any] = {
            "model": f"{LOOPS}/works.py:{network}",
            "method": "fedavg",
            "backend": backend,
        }
        words |= {"rounds": rounds, "join": 50 / clients, "epochs": 1, "batch": 10, "workers": workers}
        with tempfile.TemporaryDirectory() as folder:
            before = processor()
            execute(check({**words, "score": {"every": 0, "finetune": 0}}), Path(folder) / "run", where)
            cpu = processor() - before
            times = lines(Path(folder) / "run" / "timings.jsonl")
        trained = [line for line in times if "training" in line][1:]  # the first starts the workers
        seconds, training = (sum(line[key] for line in trained) for key in ("seconds", "training"))
        scoring = next(line["seconds"] for line in times if "scoring" in line)
        found[workers] = {"cpu": cpu, "round": seconds / len(trained), "scoring": scoring}
        found[workers]["outside_steps"] = 1 - training / workers / seconds
    one, two = found[1], found[2]
    speeds = {key: one[key] / two[key] for key in ("round", "scoring")}
    return {"workers": found, "speed_by_clock": speeds, "speed_by_cpu": 2 * one["cpu"] / two["cpu"]}


@contextmanager
def timed() -> Iterator[Counter[str]]:
    """Processor seconds of each part, in whatever thread it runs."""
    spent: Counter[str] = Counter()
    before = [(owner, name, getattr(owner, name)) for uses in PARTS.values() for owner, name in uses]

    def counted(part: str, function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                spent[part] += time.thread_time() - began

        return call

    for part, uses in PARTS.items():
        for owner, name in uses:
            setattr(owner, name, counted(part, getattr(owner, name)))
    try:
        yield spent
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def stored_rows(backend: str, rounds: int, clients: int = 100) -> dict[str, Any]:
    """Rounds of pFedSim in which every client has a row and has met all others."""
    begin = loop.Coordinator.begin

    def met(self: loop.Coordinator) -> loop.ServerState:
        server = begin(self)
        assert server.personal is not None
        rows = {i: self.wire.sealed_model(server.personal.default.clone()) for i in range(clients)}
        pairs = Pairs({i: {j: 1.0 for j in range(clients) if j != i} for i in range(clients)})
        return replace(server, personal=server.personal.put(rows), extra={"similarity": pairs})

    words = {
        "model": "mobilenetv2",
        "method": "pfedsim(rho=0)",
        "rounds": rounds,
        "join": 0.1,
        "workers": 1,
    }
    words |= {"epochs": 5, "backend": backend, "score": {"every": 0, "finetune": 0}, "state": False}
    marks: list[tuple[float, Counter[str]]] = []
    loop.Coordinator.begin = met  # type: ignore[method-assign]
    try:
        with timed() as spent, tempfile.TemporaryDirectory() as folder:
            where = federation(clients, 100, 2, 64)
            execute(
                check(words),
                Path(folder) / "run",
                where,
                lambda now: marks.append((processor(), Counter(spent))) if not now.note else None,
            )
    finally:
        loop.Coordinator.begin = begin  # type: ignore[method-assign]
    marks = marks[:-1]  # the last comes after the scores
    number = len(marks) - 1
    parts = {part: (marks[-1][1][part] - marks[0][1][part]) / number for part in PARTS}
    whole = (marks[-1][0] - marks[0][0]) / number
    return {"rounds": number, "round_cpu": whole, "parts_cpu": parts, "share": sum(parts.values()) / whole}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--backend", default="auto")
    options.add_argument("--clients", type=int, default=400)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    torch.set_num_threads(1)
    figures = {"command": "python benchmarks/around.py " + " ".join(sys.argv[1:])}
    for network in ("Research", "Dry"):
        figures[network] = around_steps(network, asked.backend, asked.clients, asked.rounds)  # type: ignore[assignment]
        print(json.dumps(figures[network]), file=sys.stderr)
    figures["stored rows"] = stored_rows(asked.backend, asked.rounds)  # type: ignore[assignment]
    text = json.dumps(figures, indent=1) + "\n"
    print(text)
    if asked.out:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
