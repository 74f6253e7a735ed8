"""How much memory a run takes: 10,000 LeNet5 clients, 200 rounds of ten, scored at the end in chunks; and
whether it grows with rounds.

    python benchmarks/memory.py --out benchmarks/memory.json

Each run is a process of its own. Resident is the sum over the process and its workers of their proportional
share (Pss), so that pages that they share count once; its peak is sampled twice a second. The data are
random bytes that clients share."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute

SAMPLES, POOL = 10, 2000  # of a client, for training and again for testing; of all
EVERY = 0.5


def federation(clients: int) -> Federation:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (POOL, 3, 32, 32), dtype=np.uint8)
    data = DataSet("random", x, draw.integers(0, 10, POOL), tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)
    places = [draw.permutation(POOL)[: 2 * SAMPLES] for _ in range(clients)]
    return Federation(
        data, Partition(tuple(Split(p[:SAMPLES], p[SAMPLES:]) for p in places), {}, data.digest)
    )


def resident(pid: int) -> int:
    """Bytes of this process and of all below it."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return own + sum(resident(int(child)) for child in below)


def measured(clients: int, words: dict[str, Any], marks: tuple[int, ...] = ()) -> dict[str, Any]:
    """A run in a process of its own: its peak, and what was resident after the rounds in `marks`."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with tempfile.TemporaryDirectory() as place, os.fdopen(writing, "w") as pipe:
            execute(
                check(words),
                Path(place) / "run",
                federation(clients),
                lambda done: print(done.round, file=pipe, flush=True),
            )
            size = sum(p.stat().st_size for p in Path(place).rglob("*") if p.is_file())
            print(f"size {size}", file=pipe, flush=True)
        os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)
    peak, at, size, began, buffer = 0, {}, 0, time.monotonic(), b""
    while True:
        now = resident(child)
        peak = max(peak, now)
        try:
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                break
            buffer += chunk
        except BlockingIOError:
            time.sleep(EVERY)
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"size"):
                size = int(line.split()[1])
            elif int(line) in marks:
                at[int(line)] = now
    assert os.waitpid(child, 0)[1] == 0
    figures: dict[str, Any] = {
        "peak_mb": round(peak / 1e6),
        "folder_mb": round(size / 1e6),
        "seconds": round(time.monotonic() - began),
    }
    return figures | ({"after_round_mb": {k: round(v / 1e6) for k, v in at.items()}} if marks else {})


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--long", type=int, default=1000, help="rounds of the run that must not grow")
    options.add_argument("--only", default="", help="runs whose name holds this")
    options.add_argument(
        "--out", type=Path, help="a JSON file for the figures; those of other runs stay in it"
    )
    asked = options.parse_args()
    torch.set_num_threads(1)
    words = {"rounds": asked.rounds, "epochs": 1, "score": {"every": asked.rounds // 2, "finetune": 0}}
    long = {
        "rounds": asked.long,
        "epochs": 1,
        "method": "pfedsim(rho=0)",
        "join": 0.5,
        "score": {"every": asked.long // 10, "finetune": 0},
    }
    marks = tuple(range(asked.long // 5, asked.long + 1, asked.long // 5))
    runs: dict[str, tuple[Any, ...]] = {
        "pfedsim, 10000 clients": (10_000, {**words, "method": "pfedsim", "join": 0.001}),
        "feddyn, 10000 clients": (10_000, {**words, "method": "feddyn", "join": 0.001}),
        "fedfomo, 10000 clients": (10_000, {**words, "method": "fedfomo", "join": 0.001}),
        f"pfedsim, 20 clients, {asked.long} rounds": (20, long, marks),
        "pfedsim, 1000 clients": (1000, {**words, "method": "pfedsim", "join": 0.01}),
        "pfedsim, 100 clients": (100, {**words, "method": "pfedsim", "join": 0.1}),
    }
    for name, run in runs.items():
        if asked.only not in name:
            continue
        found = measured(*run)
        print(f"{name}: {found}", flush=True)
        if asked.out:
            others = json.loads(asked.out.read_text()) if asked.out.exists() else {}
            command = {"command": "python benchmarks/memory.py --out benchmarks/memory.json"}
            asked.out.write_text(json.dumps({**command, **others, name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
