"""What robust means cost and save: accuracy of the honest clients with 0, 10 and 20% attackers, by attack and defence.

    python benchmarks/attacks.py --out benchmarks/attacks.json

Digits, 20 clients, all in every round, FedAvg, 50 rounds of five local epochs; once with mildly and once with strongly
uneven clients (Dirichlet, alpha 1 and 0.1). The accuracy is that of the common model as served, over all test
samples of the honest clients, mean over the seeds. Nothing is chosen by it: every defence expects 20% attackers, every
attack has the default strength. A second call computes only what the file does not hold yet."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import pfedsim
from pfedsim.core.robust import RULES
from pfedsim.core.settings import Attack
from pfedsim.engines.attacks import attackers
from pfedsim.errors import Notice

SEEDS = (42, 43, 44)
ALPHAS = (1.0, 0.1)
CLIENTS = 20
ATTACKS = ("sign-flip", "scaling", "noise", "label-flip")
SHARES = (0.1, 0.2)
SETTINGS: dict[str, Any] = {
    "rounds": 50,
    "join": 1.0,
    "score": {"every": 0, "finetune": 0},
    "workers": 1,
}


def accuracy(federation: Any, defence: str, attack: Mapping[str, Any] | None, seed: int) -> float:
    """In percent, over all test samples of the clients that do not attack."""
    words = {**SETTINGS, "seed": seed}
    if defence != "mean":
        words["defence"] = {"rule": defence, "share": 0.2}
    hostile: frozenset[int] = frozenset()
    if attack is not None:
        words["attack"] = dict(attack)
        hostile = attackers(Attack(**attack), seed, CLIENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        run = pfedsim.train(federation, "fedavg", **words)
    hits = [right for i, right in enumerate(run.hits()) if i not in hostile]
    return 100 * float(np.concatenate(hits).mean())


def table(found: Mapping[str, list[float]], alpha: float) -> str:
    """Defences by attack and share, as Markdown."""
    defences = ("mean", *RULES)
    lines = [
        "| attack | attackers | " + " | ".join(defences) + " |",
        "|---|---:|" + "---:|" * len(defences),
    ]
    for attack, share in [("none", 0.0), *((a, s) for a in ATTACKS for s in SHARES)]:
        values = (found.get(_key(alpha, attack, share, d)) for d in defences)
        shown = " | ".join("-" if not v else f"{mean(v):.1f}" for v in values)
        lines.append(f"| {attack} | {share:.0%} | {shown} |")
    return "\n".join(lines)


def _key(alpha: float, attack: str, share: float, defence: str) -> str:
    return f"alpha {alpha:g}, {attack} {share:g}, {defence}"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    found: dict[str, list[float]] = {}
    if asked.out and asked.out.is_file():
        found = json.loads(asked.out.read_text())["accuracy"]
    command = "python benchmarks/attacks.py " + " ".join(sys.argv[1:])
    for alpha in ALPHAS:
        federation = pfedsim.federate("digits", clients=CLIENTS, alpha=alpha)
        for attack, share in [("none", 0.0), *((a, s) for a in ATTACKS for s in SHARES)]:
            for defence in ("mean", *RULES):
                key = _key(alpha, attack, share, defence)
                if len(found.get(key, [])) == len(SEEDS):
                    continue
                words = {"kind": attack, "share": share} if share else None
                found[key] = [round(accuracy(federation, defence, words, seed), 2) for seed in SEEDS]
                print(f"{key}: {found[key]}", flush=True)
                if asked.out:
                    figures = {"command": command, "seeds": SEEDS, "settings": SETTINGS, "accuracy": found}
                    asked.out.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"\nalpha = {alpha:g}\n\n{table(found, alpha)}\n", flush=True)


if __name__ == "__main__":
    main()
