"""Every method on both backends: accuracy over three seeds must agree within a point. `python
benchmarks/parity.py`; about ten minutes.

The backends differ in the last bits of every step, and federated training on uneven data magnifies them: a
single FedAvg score swings by many points from round to round. So the federation is mild (Dir(1), every
client in every round), where a difference shows an error."""

import sys
from statistics import mean

import pfedsim
from pfedsim.methods import TWELVE

SEEDS = (42, 43, 44)


def main() -> int:
    federation = pfedsim.federate("digits", clients=10, alpha=1.0)
    worst = 0.0
    print(
        "| method | torch, served | native, served | apart | torch, tuned | native, tuned | apart "
        "|\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for method in TWELVE:
        found = {}
        for backend in ("torch", "native"):
            runs = [
                pfedsim.train(
                    federation, method, rounds=20, join=1.0, seed=seed, backend=backend, score={"every": 0}
                )
                for seed in SEEDS
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
