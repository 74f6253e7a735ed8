"""Every method on both backends: accuracy over three seeds must agree within a point. `python
benchmarks/parity.py`; about ten minutes. With `--model mobilenetv2`, some hours.

The backends differ in the last bits of every step, and federated training on uneven data magnifies them: a
single FedAvg score swings by many points from round to round. So the federation is mild (Dir(1), every
client in every round), where a difference shows an error."""

import argparse
import sys
from dataclasses import replace
from statistics import mean

import numpy as np

import pfedsim
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition
from pfedsim.methods import METHODS, TWELVE


def coloured(grey: Federation) -> Federation:
    """The same samples with three equal channels, which every network takes."""
    data = grey.data
    data = replace(data, x=np.repeat(data.x, 3, axis=1), mean=3 * data.mean, std=3 * data.std)
    return Federation(data, Partition(grey.partition.clients, {}, data.digest), in_memory=True)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", default="lenet5")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    options.add_argument("--methods", nargs="+", default=list(TWELVE), choices=list(METHODS))
    asked = options.parse_args()
    federation = coloured(pfedsim.federate("digits", clients=10, alpha=1.0))
    worst = 0.0
    print(
        "| method | torch, served | native, served | apart | torch, tuned | native, tuned | apart "
        "|\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for method in asked.methods:
        found = {}
        for backend in ("torch", "native"):
            runs = [
                pfedsim.train(
                    federation,
                    method,
                    model=asked.model,
                    rounds=asked.rounds,
                    join=1.0,
                    seed=seed,
                    backend=backend,
                    score={"every": 0},
                )
                for seed in asked.seeds
            ]
            found[backend] = [
                mean(100 * run.summary[model]["micro"] for run in runs) for model in ("served", "finetuned")
            ]
        apart = [abs(a - b) for a, b in zip(found["torch"], found["native"], strict=True)]
        worst = max(worst, *apart)
        cells = [f"{found['torch'][k]:.2f} | {found['native'][k]:.2f} | {apart[k]:.2f}" for k in (0, 1)]
        print(f"| {method} | {cells[0]} | {cells[1]} |", flush=True)
    print(f"largest difference: {worst:.2f} points")
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
