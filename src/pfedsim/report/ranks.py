"""Ranks of methods over several data sets, as Demsar (2006) compares classifiers: Friedman's test asks whether the
methods differ at all, Nemenyi's critical difference which of them do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedsim.report.looks import COLOURS
from pfedsim.report.plots import NARROW

LEVEL = 0.05
FEWEST = 3  # methods


@dataclass(frozen=True)
class Ranking:
    """Mean ranks over the data sets, 1 the best, methods in that order."""

    methods: tuple[str, ...]
    ranks: tuple[float, ...]
    sets: tuple[str, ...]
    p: float
    """of Friedman's test, that all methods are equal"""
    critical: float
    """Nemenyi's critical difference of two mean ranks at the 5% level"""

    @property
    def tested(self) -> bool:
        """Whether there are several data sets, without which ranks prove nothing."""
        return len(self.sets) > 1

    def groups(self) -> list[tuple[int, int]]:
        """The longest stretches of methods, first and last, that differ by less than the critical difference."""
        found: list[tuple[int, int]] = []
        for first, rank in enumerate(self.ranks):
            last = max(k for k, other in enumerate(self.ranks) if other - rank < self.critical)
            if last > first and not any(last <= end for _, end in found):
                found.append((first, last))
        return found


def ranking(scores: Mapping[str, Mapping[str, float]], share: float = 0.5) -> Ranking | None:
    """The ranking by these scores (method -> data set -> score, higher is better; what is missing is not there). A
    data set counts if at least this share of the methods has it, a method if it has all data sets that count. None if
    no data set or fewer than three methods are left."""
    sets = list(dict.fromkeys(name for row in scores.values() for name in row))
    sets = [s for s in sets if sum(s in row for row in scores.values()) >= share * len(scores)]
    methods = [m for m, row in scores.items() if all(s in row for s in sets)]
    if not sets or len(methods) < FEWEST:
        return None
    return _ranked(methods, sets, np.array([[scores[m][s] for m in methods] for s in sets]))


def _ranked(methods: Sequence[str], sets: Sequence[str], table: np.ndarray) -> Ranking:
    """`table`: data sets x methods."""
    from scipy import stats

    ranks = stats.rankdata(-table, axis=1)
    mean, (count, k) = ranks.mean(0), table.shape
    nothing = count < 2 or bool((ranks == ranks[:, :1]).all())
    p = 1.0 if nothing else float(stats.friedmanchisquare(*ranks.T).pvalue)
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, k, np.inf)) / np.sqrt(2)
    critical = quantile * np.sqrt(k * (k + 1) / (6 * count))
    order = np.argsort(mean, kind="stable")
    return Ranking(
        tuple(methods[j] for j in order),
        tuple(float(mean[j]) for j in order),
        tuple(sets),
        p,
        float(critical),
    )


def sentence(ranking: Ranking, by: str) -> str:
    """What the ranks say, in words."""
    best, count = ranking.methods[0], len(ranking.sets)
    alike = [
        m
        for m, r in zip(ranking.methods, ranking.ranks, strict=True)
        if r - ranking.ranks[0] < ranking.critical
    ]
    p = "below 0.001" if ranking.p < 0.001 else f"{ranking.p:.3f}"
    differ = "" if ranking.p < LEVEL else ", so the data sets do not show that the methods differ at all"
    return (
        f"Mean ranks over {count} data sets, {by}. {best} has the lowest mean rank, {ranking.ranks[0]:.2f} of "
        f"{len(ranking.methods)}. Friedman's test: p {p}{differ}. Mean ranks that differ by less than "
        f"{ranking.critical:.2f} (Nemenyi, 5%) cannot be told apart; that holds for {best} and "
        f"{len(alike) - 1} others."
    )


def diagram(ranking: Ranking, path: Path, width: float) -> Path:
    """The critical-difference diagram: the best methods on the left, bars over those that cannot be told apart."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from pfedsim.report.figures import saved

    k, groups = len(ranking.methods), ranking.groups()
    half, low, high = (k + 1) // 2, 1.0, float(k)
    size, row = (7, 0.19) if width < NARROW else (9, 0.22)
    top = 0.9 + 0.12 * len(groups)
    height = top + row * half
    figure, ax = plt.subplots(figsize=(width, height))
    letters = max(map(len, ranking.methods)) + 8  # of a name and its rank
    side = min(0.42, letters * 0.52 * size / 72 / width)
    figure.subplots_adjust(left=side, right=1 - side, top=1, bottom=0)
    ax.set(xlim=(low, high), ylim=(height, 0))
    ax.set_axis_off()
    axis = 0.55
    ax.plot([low, high], [axis, axis], color="black", linewidth=1, clip_on=False)
    for tick in range(1, k + 1):
        ax.plot([tick, tick], [axis - 0.06, axis], color="black", linewidth=1, clip_on=False)
        if k <= 12 or tick in (1, k) or tick % 4 == 0:
            ax.text(tick, axis - 0.1, str(tick), ha="center", va="bottom", fontsize=size)
    _critical(ax, ranking.critical, low, high, size)
    for n, (first, last) in enumerate(groups):
        y = axis + 0.12 * (n + 1)
        ends = (ranking.ranks[first] - 0.005 * k, ranking.ranks[last] + 0.005 * k)
        ax.plot(ends, [y, y], color=COLOURS[1], linewidth=3, solid_capstyle="butt", clip_on=False)
    for n, (name, rank) in enumerate(zip(ranking.methods, ranking.ranks, strict=True)):
        left = n < half
        y = top + row * (n if left else k - 1 - n)
        end = low - 0.02 * k if left else high + 0.02 * k
        ax.plot([rank, rank, end], [axis, y, y], color="#666666", linewidth=0.7, clip_on=False)
        words = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        ax.text(
            end, y, f" {words} ", ha="right" if left else "left", va="center", fontsize=size, clip_on=False
        )
    return saved(figure, path)


def _critical(ax: object, critical: float, low: float, high: float, size: int) -> None:
    """A ruler as long as the critical difference."""
    shown, y = min(critical, high - low), 0.12
    words = f"critical difference {critical:.2f}" + (
        " (longer than the axis)" if critical > high - low else ""
    )
    ax.plot([low, low + shown], [y, y], color="black", linewidth=1.2, clip_on=False)  # type: ignore[attr-defined]
    for x in (low, low + shown):
        ax.plot([x, x], [y - 0.04, y + 0.04], color="black", linewidth=1.2, clip_on=False)  # type: ignore[attr-defined]
    ax.text(low, y - 0.07, words, ha="left", va="bottom", fontsize=size, clip_on=False)  # type: ignore[attr-defined]
