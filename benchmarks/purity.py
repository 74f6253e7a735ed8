"""What it costs to check at run time that hooks change nothing they are given: processor time, as a share of a run.

    python benchmarks/purity.py --out benchmarks/purity.json

Runs in one process with the time of every digest added up: pFedSim from its first round on, 100 clients with LeNet5
on 3 x 32 x 32, ten a round, five epochs on 300 samples, so that every client's model is on the server; and digits
with each of four methods."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import pfedsim
from pfedsim.core import purity
from pfedsim.dev.bench import federation
from pfedsim.errors import Notice
from pfedsim.runs.setup import one_thread


class Timed:
    """The digests, with their processor time and number."""

    def __init__(self) -> None:
        self.seconds, self.count, self._digests = 0.0, 0, purity._digests

    def __call__(self, value: Any, where: str, *rest: Any) -> Iterator[tuple[str, int]]:
        if where:  # a part of one that is timed already
            return self._digests(value, where, *rest)
        began = time.thread_time()
        found = list(self._digests(value, where, *rest))
        self.seconds, self.count = self.seconds + time.thread_time() - began, self.count + 1
        return iter(found)


def share(where: Any, method: str, **words: Any) -> dict[str, Any]:
    """Digests' processor time over that of the run."""
    timed = Timed()
    purity._digests = timed  # type: ignore[assignment]
    began = time.thread_time()
    try:
        pfedsim.train(where, method, workers=1, score={"every": 0, "finetune": 0}, **words)
    finally:
        purity._digests = timed._digests
    total = time.thread_time() - began
    found = {"digests": timed.count, "seconds": timed.seconds, "of": total, "share": timed.seconds / total}
    print(f"{method}: {found}", flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Notice)
    with one_thread():
        large = {
            "pfedsim(rho=0), 100 clients": share(federation(100), "pfedsim(rho=0)", rounds=12, join=0.1)
        }
        digits = pfedsim.federate("digits")
        small = {f"{m}, digits": share(digits, m) for m in ("fedavg", "pfedsim", "fedgen", "fedfomo")}
    command = "python benchmarks/purity.py " + " ".join(sys.argv[1:])
    figures = {"command": command, "processor_time": {**large, **small}}
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
