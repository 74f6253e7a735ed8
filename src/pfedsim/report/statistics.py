"""How sure a difference between two methods is: one interval over test samples, training seeds and splits.

The gain on a sample is what one method scored on it minus what the other did, with the same seed and split. Let
m_s be the mean gain in repetition s of S (a split, its seeds averaged; with a single split, a seed). Two
repetitions share randomness only through the samples that both of them tested, so the mean of all m_s has variance

    V = var(m_s) / S + sum over clients of q^2 c o

with c the covariance of a sample's gains in two repetitions, o the mean overlap of two test parts,
|T_s and T_t| / (|T_s| |T_t|), and q the client's weight. The first term holds what retraining, another split and
other test samples change from one repetition to the next, the second what they have in common. The interval is
Student's t with Satterthwaite's degrees of freedom. Half a won and half a lost sample are added, as
for paired proportions (Agresti and Min, 2005), so that a handful of samples on which both agree prove nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

LEVEL = 0.95
Weighting = Literal["samples", "clients"]


@dataclass(frozen=True)
class Difference:
    """A mean difference, its 95% interval, and what the interval covers."""

    mean: float
    low: float
    high: float
    over: str

    def negative(self) -> Difference:
        """The same difference with the methods swapped."""
        return Difference(-self.mean, -self.high, -self.low, self.over)


NOTHING = Difference(float("nan"), float("nan"), float("nan"), over="nothing: no client was scored by both")


@dataclass(frozen=True)
class Scored:
    """A client's gains in one split: which of its samples were tested, and their gains, seeds x samples."""

    samples: np.ndarray
    gains: np.ndarray


def interval(splits: Sequence[Sequence[Scored]], weighting: Weighting = "samples") -> Difference:
    """The mean gain of the clients and its interval, given what was tested in each split, client by client. By
    `weighting`, every test sample or every client counts alike. Clients without gains in some split are left out."""
    common = [c for c in range(len(splits[0])) if all(by[c].gains.size for by in splits)]
    if not common:
        return NOTHING
    seeds = splits[0][common[0]].gains.shape[0]
    if len(splits) > 1:
        over = "test samples, splits and seeds" if seeds > 1 else "test samples and splits"
        repeated = [[Scored(by[c].samples, by[c].gains.mean(0)) for c in common] for by in splits]
    else:
        over = "test samples and seeds" if seeds > 1 else "test samples"
        repeated = [
            [Scored(splits[0][c].samples, splits[0][c].gains[k]) for c in common] for k in range(seeds)
        ]
    sizes = np.array(
        [[len(t.samples) if weighting == "samples" else 1 for t in by] for by in repeated], float
    )
    weights = sizes / sizes.sum(1, keepdims=True)
    means = (weights * [[t.gains.mean() for t in by] for by in repeated]).sum(1)
    # a single sample has no variance: clients that scored only one count as one client together
    one = [c for c in range(len(common)) if min(len(by[c].samples) for by in repeated) < 2]
    groups = [[c] for c in range(len(common)) if c not in one] + ([one] if one else [])
    parts = [_Client.of([_together([by[c] for c in group]) for by in repeated]) for group in groups]
    half = _half_width(means, np.array([weights[:, group].sum(1).mean() for group in groups]), parts)
    mean = float(means.mean())
    return Difference(mean, mean - half, mean + half, over)


def paired_difference(
    ours: Sequence[Sequence[np.ndarray]], theirs: Sequence[Sequence[np.ndarray]]
) -> Difference:
    """The difference between two methods on one split, given their hits on the same test samples by seed and client.
    A client that one of them could not score with some seed does not count."""
    tested = []
    for mine, other in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
        sizes = {len(hits) for hits in (*mine, *other)}
        size = sizes.pop() if len(sizes) == 1 else 0
        gains = np.array(
            [np.subtract(a[:size], b[:size], dtype=float) for a, b in zip(mine, other, strict=True)]
        )
        tested.append(Scored(np.arange(size), gains))
    return interval([tested])


@dataclass(frozen=True)
class _Client:
    """What one client's test samples contribute: `shared`, the covariance c of a sample's gains in two repetitions;
    `own`, a sample's variance beyond that; `overlap`, o; `effective`, the sum of the samples' squared shares of the
    overall mean."""

    shared: float
    own: float
    overlap: float
    effective: float
    samples: int
    tested: float

    @classmethod
    def of(cls, repeated: Sequence[Scored]) -> _Client:
        every, where = np.unique(np.concatenate([t.samples for t in repeated]), return_inverse=True)
        places = np.split(where, np.cumsum([len(t.samples) for t in repeated])[:-1])
        centred, present, share = (np.zeros((len(repeated), len(every))) for _ in range(3))
        for s, (t, at) in enumerate(zip(repeated, places, strict=True)):
            centred[s, at] = t.gains - t.gains.mean()
            present[s, at] = 1
            share[s, at] = 1 / len(at)
        freedom = max(
            1 - 1 / present.sum(1).mean(), 1e-9
        )  # centring takes one degree of freedom from each test part
        total = (centred**2).sum() / present.sum() / freedom
        pairs = _between(present)
        shared = max(0.0, _between(centred) / pairs / freedom) if pairs else total
        repetitions = len(repeated)
        overlap = _between(share) / (repetitions * (repetitions - 1)) if repetitions > 1 else 1 / len(every)
        return cls(
            min(shared, total),
            max(0.0, total - shared),
            overlap,
            float((share.mean(0) ** 2).sum()),
            len(every),
            float(present.sum(1).mean()),
        )


def _between(table: np.ndarray) -> float:
    """The sum over all pairs of different rows of their inner product."""
    return float((table.sum(0) ** 2 - (table**2).sum(0)).sum())


def _together(clients: Sequence[Scored]) -> Scored:
    """Several clients as one."""
    if len(clients) == 1:
        return clients[0]
    apart = 1 + max(int(t.samples.max()) for t in clients)
    samples = [t.samples + k * apart for k, t in enumerate(clients)]
    return Scored(np.concatenate(samples), np.concatenate([t.gains for t in clients]))


def _half_width(means: np.ndarray, weights: np.ndarray, clients: Sequence[_Client]) -> float:
    """Half of the interval's width."""
    from scipy import stats

    repetitions = len(means)
    between = float(means.var(ddof=1)) / repetitions if repetitions > 1 else 0.0
    common = weights**2 * [c.shared * c.overlap for c in clients]
    freedoms = np.maximum([c.samples - 1 for c in clients], 1)
    # repetitions that agree by chance prove no more than their test samples do
    least = sum(
        w**2 * (c.shared * c.effective + c.own / c.tested / repetitions)
        for w, c in zip(weights, clients, strict=True)
    )
    variance = max(between + float(common.sum()), least)
    parts = (common**2 / freedoms).sum() + (between**2 / (repetitions - 1) if repetitions > 1 else 0.0)
    freedom = max(1.0, variance**2 / parts) if parts > 0 else float(freedoms.sum())
    added = 1 / sum(c.samples for c in clients) ** 2
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance + added))
