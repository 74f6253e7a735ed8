"""Charts with a row for each name, which leaves room for long names: bars, means with spreads, distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from pfedsim.report.figures import saved
from pfedsim.report.looks import COLOURS
from pfedsim.report.plots import NARROW, panels, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 0.24  # inches


def bars(
    rows: Mapping[str, Mapping[str, float]], path: Path, width: float, xlabel: str, line: float
) -> Path:
    """A bar of each kind in each row, labelled with its value; `line`: a reference value."""
    kinds = _kinds(rows)
    figure, (ax,) = panels(1, width, 1.1 + ROW * len(rows) * len(kinds))
    for k, kind in enumerate(kinds):
        have = [
            (y + _beside(k, len(kinds)), row[kind]) for y, row in enumerate(rows.values()) if kind in row
        ]
        at, values = zip(*have, strict=True)
        drawn = ax.barh(at, values, height=0.72 / len(kinds), color=COLOURS[k], label=kind)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
        ax.bar_label(drawn, fmt="%.2f", padding=4, fontsize=8, bbox=box)
    ax.axvline(line, color="black", linestyle="--", linewidth=1)
    _rows(ax, list(rows))
    ax.margins(x=0.1)
    ax.set(xlabel=xlabel)
    shared_legend(figure, [ax], width, len(kinds))
    return saved(figure, path)


def spreads(
    panels_: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]],
    path: Path,
    width: float,
    xlabel: str,
) -> Path:
    """The mean of each kind in each row of a panel, with error bars of one standard deviation (ddof 1), and a line
    at zero."""
    names = _kinds(panels_)
    kinds = list(dict.fromkeys(kind for rows in panels_.values() for kind in _kinds(rows)))
    figure, axes = panels(len(panels_), width, 1.1 + ROW * len(names) * len(kinds))
    for n, (ax, (title, rows)) in enumerate(zip(axes, panels_.items(), strict=True)):
        for k, kind in enumerate(kinds):
            have = [
                (names.index(name) + _beside(k, len(kinds)), row[kind])
                for name, row in rows.items()
                if row.get(kind)
            ]
            at, values = [y for y, _ in have], [v for _, v in have]
            error = [stdev(v) if len(v) > 1 else 0 for v in values]
            ax.errorbar(
                [mean(v) for v in values],
                at,
                xerr=error,
                fmt="os"[k % 2],
                color=COLOURS[k],
                capsize=3,
                markersize=5,
                label=kind,
            )
        ax.axvline(0, color="black", linewidth=1)
        _rows(ax, names, named=n == 0 or width < NARROW)
        ax.set(xlabel=xlabel, title=title)
    _one_scale(axes)
    shared_legend(figure, axes, width, len(kinds))
    return saved(figure, path)


@dataclass(frozen=True)
class Distance:
    """A row's distance from its target, and (`then`) where an attempted fix would move it."""

    at: float
    kind: str
    then: float | None = None


def distances(
    panels_: Mapping[str, Mapping[str, Distance]],
    path: Path,
    width: float,
    xlabel: str,
    near: float,
    kinds: Sequence[str],
) -> Path:
    """A point in each row, an arrow to where it would move, and a band for what counts as near. `kinds`: at most
    three."""
    looks = dict(zip(kinds, ((COLOURS[0], "o"), (COLOURS[2], "s"), (COLOURS[1], "X")), strict=False))
    names = _kinds(panels_)
    figure, axes = panels(len(panels_), width, 1.1 + 1.1 * ROW * len(names))
    for n, (ax, (title, rows)) in enumerate(zip(axes, panels_.items(), strict=True)):
        ax.axvspan(-near, near, color="#0072B2", alpha=0.1, linewidth=0, label=f"within {near:g}")
        ax.axvline(0, color="black", linewidth=1)
        for name, d in rows.items():
            y, (colour, marker) = names.index(name), looks[d.kind]
            if d.then is not None:
                ax.annotate(
                    "",
                    (d.then, y),
                    (d.at, y),
                    arrowprops={"arrowstyle": "->", "color": "#555555", "shrinkA": 3, "shrinkB": 0},
                )
            ax.plot([d.at], [y], marker, color=colour, markersize=6, label=d.kind)
        _rows(ax, names, named=n == 0 or width < NARROW)
        ax.set(xlabel=xlabel, title=title)
    _one_scale(axes)
    shared_legend(figure, axes, width, 2)
    return saved(figure, path)


def _kinds(rows: Mapping[str, Mapping[str, object]]) -> list[str]:
    """All kinds that occur in any row."""
    return list(dict.fromkeys(kind for row in rows.values() for kind in row))


def _beside(k: int, kinds: int) -> float:
    """The offset of the k-th of several kinds from the middle of its row."""
    return (k - (kinds - 1) / 2) * 0.8 / kinds


def _one_scale(axes: Sequence[Axes]) -> None:
    """Give all panels the same scale."""
    limits = [ax.get_xlim() for ax in axes]
    for ax in axes:
        ax.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))


def _rows(ax: Axes, names: Sequence[str], named: bool = True) -> None:
    ax.set_yticks(range(len(names)), names if named else [""] * len(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    for y in range(1, len(names)):
        ax.axhline(y - 0.5, color="#dddddd", linewidth=0.8)
    ax.grid(alpha=0.3, axis="x")
    ax.set_axisbelow(True)
