"""Confidence intervals of differences between methods, by a paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
SEEDS_ENOUGH = 5  # with fewer seeds, clients and their test samples are resampled instead of seeds


@dataclass(frozen=True)
class Difference:
    """Mean difference in accuracy over all test samples, its 95% interval, and what was resampled."""

    mean: float
    low: float
    high: float
    over: str

    def negative(self) -> Difference:
        """The same difference with the methods swapped."""
        return Difference(-self.mean, -self.high, -self.low, self.over)


def paired_difference(
    ours: Sequence[Sequence[np.ndarray]], theirs: Sequence[Sequence[np.ndarray]], seed: int = 0
) -> Difference:
    """The difference between two methods, given their hits on the same test samples by seed and client. A client that
    one of them could not score with a seed does not count with that seed."""
    rng = np.random.default_rng(seed)
    gains_of = [
        [
            np.subtract(x, y, dtype=float) if len(x) == len(y) else np.zeros(0)
            for x, y in zip(a, b, strict=True)
        ]
        for a, b in zip(ours, theirs, strict=True)
    ]
    by_seed = np.array(
        [np.concatenate(gains).mean() if any(map(len, gains)) else np.nan for gains in gains_of]
    )
    if np.isnan(by_seed).any():
        return Difference(
            float("nan"), float("nan"), float("nan"), over="nothing: no client was scored by both"
        )
    if len(by_seed) >= SEEDS_ENOUGH:
        drawn = by_seed[rng.integers(len(by_seed), size=(DRAWS, len(by_seed)))].mean(1)
        return Difference(float(by_seed.mean()), *_interval(drawn), over="seeds")
    scored = ([g for g in of_client if len(g)] for of_client in zip(*gains_of, strict=True))
    gains = [np.mean(by, axis=0) for by in scored if by]
    sums = np.stack([_resampled_sums(g, rng) for g in gains])  # (client, draw): resampled test samples
    sizes = np.array([len(g) for g in gains])
    who = rng.integers(len(gains), size=(DRAWS, len(gains)))  # resampled clients
    which = rng.integers(DRAWS, size=who.shape)  # a client drawn twice uses two different draws
    drawn = sums[who, which].sum(1) / sizes[who].sum(1)
    return Difference(float(by_seed.mean()), *_interval(drawn), over="clients and test samples")


def _resampled_sums(gains: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`DRAWS` bootstrap sums of the gains. Gains have few distinct values, so a multinomial draw is enough."""
    values, counts = np.unique(gains, return_counts=True)
    drawn: np.ndarray = rng.multinomial(len(gains), counts / len(gains), size=DRAWS) @ values
    return drawn


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
