"""Do the intervals of pfedsim.report.statistics cover the truth? Simulated federations whose gains are known.

    python benchmarks/coverage.py --out benchmarks/coverage.json

A federation has five parties of 30 to 300 samples with ten features, whose labels follow logistic models that differ
between parties by nothing, a little or a lot. "Alone" is a ridge classifier fitted on half of a party's samples,
"joined" a mix of it with one fitted on everybody's halves; a seed disturbs both. The truth of a party is its mean
gain over many further splits and seeds, on thousands of new samples: what it may expect from joining with as many
samples as it has. With a single split the truth is that of this split. The intervals see the test halves only."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedsim.report.statistics import Difference, Scored, interval

PARTIES, FEATURES, NEW = 5, 10, 2000
DESIGNS = ((5, 3), (3, 2), (10, 1), (1, 3), (1, 5), (1, 1))  # splits, seeds


@dataclass(frozen=True)
class Party:
    """Its samples, and how it makes more of them."""

    w: np.ndarray
    x: np.ndarray
    y: np.ndarray

    @classmethod
    def drawn(cls, w: np.ndarray, samples: int, rng: np.random.Generator) -> Party:
        x = rng.normal(size=(samples, FEATURES))
        return cls(w, x, rng.random(samples) < 1 / (1 + np.exp(-x @ w)))


def federation(rng: np.random.Generator) -> list[Party]:
    common = rng.normal(size=FEATURES) * rng.choice([0.3, 1.0, 2.0])
    apart = rng.choice([0.0, 0.3, 1.0])
    sizes = rng.choice([30, 60, 120, 300], size=PARTIES)
    return [Party.drawn(common + apart * rng.normal(size=FEATURES), int(n), rng) for n in sizes]


def ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    fitted: np.ndarray = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ (2.0 * y - 1))
    return fitted


def disturbed(w: np.ndarray, by: float, rng: np.random.Generator) -> np.ndarray:
    moved: np.ndarray = w + by * np.linalg.norm(w) / np.sqrt(len(w)) * rng.normal(size=len(w))
    return moved


def gain(x: np.ndarray, y: np.ndarray, joined: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """What joining changes on each sample: -1, 0 or 1."""
    wins: np.ndarray = ((x @ joined > 0) == y).astype(float) - ((x @ alone > 0) == y)
    return wins


Split = list[np.ndarray]  # for each party its samples in random order: the first half trains


def split(parties: Sequence[Party], rng: np.random.Generator) -> Split:
    return [rng.permutation(len(p.y)) for p in parties]


def models(
    parties: Sequence[Party], order: Split, noise: float, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Joined and alone, for each party, with one seed."""
    halves = [(p.x[o[: len(o) // 2]], p.y[o[: len(o) // 2]]) for p, o in zip(parties, order, strict=True)]
    together = ridge(np.concatenate([x for x, _ in halves]), np.concatenate([y for _, y in halves]))
    shared = disturbed(together, noise, rng)
    own = [disturbed(ridge(x, y), noise / 2, rng) for x, y in halves]
    return [(0.7 * shared + 0.3 * alone, alone) for alone in own]


def tested(
    parties: Sequence[Party], order: Split, seeds: int, noise: float, rng: np.random.Generator
) -> list[Scored]:
    trained = [models(parties, order, noise, rng) for _ in range(seeds)]
    found = []
    for c, (p, o) in enumerate(zip(parties, order, strict=True)):
        test = o[len(o) // 2 :]
        found.append(Scored(test, np.array([gain(p.x[test], p.y[test], *by[c]) for by in trained])))
    return found


def truth(
    parties: Sequence[Party], orders: Sequence[Split], noise: float, rng: np.random.Generator
) -> np.ndarray:
    """Each party's mean gain over these splits on new samples."""
    new = [Party.drawn(p.w, NEW, rng) for p in parties]
    every = [models(parties, order, noise, rng) for order in orders]
    return np.array([np.mean([gain(p.x, p.y, *by[c]) for by in every]) for c, p in enumerate(new)])


def covered(
    splits: int, seeds: int, federations: int, seed: int = 0, further: int = 40
) -> dict[str, float]:
    """The shares of intervals that cover the truth: of parties, over all samples, and of the mean over parties."""
    rng = np.random.default_rng([seed, splits, seeds])
    party, samples, mean = [], [], []

    def holds(found: Difference, true: float) -> bool:
        return bool(found.low <= true <= found.high)

    for _ in range(federations):
        parties, noise = federation(rng), float(rng.choice([0.0, 0.2, 0.6]))
        orders = [split(parties, rng) for _ in range(splits)]
        by = [tested(parties, order, seeds, noise, rng) for order in orders]
        others = [split(parties, rng) for _ in range(further)] if splits > 1 else orders * further
        true = truth(parties, others, noise, rng)
        party += [holds(interval([[one[c]] for one in by]), true[c]) for c in range(PARTIES)]
        sizes = np.array([len(t.samples) for t in by[0]], dtype=float)
        samples.append(holds(interval(by), float(true @ sizes / sizes.sum())))
        mean.append(holds(interval(by, "clients"), float(true.mean())))
    return {
        "party": float(np.mean(party)),
        "samples": float(np.mean(samples)),
        "mean": float(np.mean(mean)),
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--federations", type=int, default=500)
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    figures = {}
    for splits, seeds in DESIGNS:
        found = covered(splits, seeds, asked.federations)
        figures[f"{splits} x {seeds}"] = found
        shares = ", ".join(f"{name} {100 * share:.1f}%" for name, share in found.items())
        print(f"{splits} splits x {seeds} seeds: {shares}", flush=True)
    command = "python benchmarks/coverage.py " + " ".join(sys.argv[1:])
    if asked.out:
        asked.out.write_text(
            json.dumps({"command": command, "federations": asked.federations, "covered": figures}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
