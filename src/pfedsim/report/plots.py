"""Charts: lines with bands, points, heat maps and bubbles. Each takes a path and a width in inches and returns
the path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from pfedsim.report.bands import draw_curve
from pfedsim.report.canvas import plt
from pfedsim.report.figures import saved
from pfedsim.report.looks import COLOURS, SCATTERED, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = tuple[Sequence[float], Sequence[float]]
NARROW = 5.0  # inches: narrower charts stack their panels


def panels(count: int, width: float, height: float, most: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes, at most `most` in a row."""
    across = 1 if width < NARROW else min(count, most)
    down = math.ceil(count / across)
    figure, grid = plt.subplots(
        down, across, figsize=(width, height * down), layout="constrained", squeeze=False
    )
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def lines(
    curves: Mapping[str, Mapping[str, Sequence[Points]]],
    path: Path,
    width: float,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """Panels of lines: each line is the mean of several, with their range shaded. `limits`: the range of a panel's
    y axis."""
    figure, axes = panels(len(curves), width, 3.6)
    styles = looks(name for panel in curves.values() for name in panel)
    for ax, (title, panel) in zip(axes, curves.items(), strict=True):
        for name, several in panel.items():
            draw_curve(ax, name, [dict(zip(x, y, strict=True)) for x, y in several], styles[name])
        ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if log:
            ax.set_xscale("log")
            ax.set_xticks(sorted({c for several in panel.values() for x, _ in several for c in x}))
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.xaxis.set_minor_formatter(NullFormatter())
        elif all(float(c).is_integer() for several in panel.values() for x, _ in several for c in x):
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if limits and title in limits:
            ax.set_ylim(limits[title])
        ax.grid(alpha=0.3)
    shared_legend(figure, axes, width, len(styles))
    return saved(figure, path)


def points(
    panels_: Mapping[str, Mapping[str, Points]],
    path: Path,
    width: float,
    xlabels: Sequence[str],
    ylabel: str,
    log: Sequence[bool] = (),
    legend: bool = True,
) -> Path:
    """A panel of points for each name."""
    figure, axes = panels(len(panels_), width, 3.4)
    styles = looks(name for panel in panels_.values() for name in panel)
    for k, (ax, (title, panel)) in enumerate(zip(axes, panels_.items(), strict=True)):
        for name, (x, y) in panel.items():
            ax.plot(x, y, label=name, **styles[name] | SCATTERED)
        ax.set(xlabel=xlabels[k], ylabel=ylabel, title=title)
        if log and log[k]:
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(alpha=0.3)
    if legend:
        shared_legend(figure, axes, width, len(styles))
    return saved(figure, path)


def scattered(
    values: Mapping[str, Mapping[str, Sequence[float]]], path: Path, width: float, ylabel: str
) -> Path:
    """A strip for each group, with a column of points for each name; the points of a column are spread sideways,
    in order, to avoid overlap."""
    figure, (ax,) = panels(1, width, 3.4)
    styles = looks(name for group in values.values() for name in group)
    room = 0.8 / len(styles)
    for at, group in enumerate(values.values()):
        for name, heights in group.items():
            middle = at + (list(styles).index(name) - (len(styles) - 1) / 2) * room
            several = len(heights) > 1
            across = middle + np.linspace(-0.35, 0.35, len(heights)) * room if several else [middle]
            ax.plot(across, heights, label=name, **styles[name] | SCATTERED)
    for at in range(1, len(values)):
        ax.axvline(at - 0.5, color="#cccccc", linewidth=0.8)
    ax.set_xticks(range(len(values)), list(values), rotation=30 if width < NARROW else 0)
    ax.tick_params(axis="x", length=0)
    ax.set(ylabel=ylabel, xlim=(-0.5, len(values) - 0.5))
    ax.grid(alpha=0.3, axis="y")
    shared_legend(figure, [ax], width, len(styles))
    return saved(figure, path)


def shared_legend(figure: Figure, axes: Sequence[Axes], width: float, entries: int) -> None:
    """One legend for all axes, below them."""
    handles: dict[str, Any] = {}
    for ax in axes:
        handles |= {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    columns = max(1, min(entries, int(width / 1.45)))
    style = {"ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", **style)


def heat_maps(
    maps: Mapping[str, np.ndarray],
    path: Path,
    width: float,
    label: str,
    names: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    low: float | Mapping[str, float] | None = None,
    high: float | None = None,
    decimals: int | Mapping[str, int] | None = None,
    most: int = 3,
    axis: str = "client",
    columns: Sequence[str] | None = None,
    height: float = 0.95,
) -> Path:
    """A matrix for each title, grey where there is no number. All share one scale, unless `low` gives the start of
    each one's scale, which its colour bar then names. `decimals`: write the numbers with so many decimals."""
    across = 1 if width < NARROW else min(len(maps), most)
    figure, axes = panels(len(maps), width, height * width / across, most)
    values = np.concatenate([m.ravel() for m in maps.values()])
    begin = {
        title: low[title] if isinstance(low, Mapping) else float(np.nanmin(values)) if low is None else low
        for title in maps
    }
    high = float(np.nanmax(values)) if high is None else high
    images = []
    for ax, (title, matrix) in zip(axes, maps.items(), strict=True):
        ax.set_facecolor("#dddddd")
        images.append(
            ax.imshow(matrix, cmap="viridis", interpolation="nearest", vmin=begin[title], vmax=high)
        )
        room = int(width / across * 3)
        rows = names[title] if isinstance(names, Mapping) else names
        for ticks, count, words in (
            (ax.set_xticks, matrix.shape[1], columns or rows),
            (ax.set_yticks, matrix.shape[0], rows),
        ):
            step = -(-count // max(1, room))
            shown = list(words) if words else [str(i) for i in range(count)]
            ticks(range(0, count, step), shown[::step], fontsize=8)
        ax.set(title=title)
        if axis:
            ax.set(xlabel=axis, ylabel=axis)
        if decimals is not None:
            _numbers(
                ax,
                matrix,
                (begin[title] + high) / 2,
                decimals[title] if isinstance(decimals, Mapping) else decimals,
            )
    shared = (
        [(axes, images[0])]
        if len(set(begin.values())) == 1
        else [([ax], image) for ax, image in zip(axes, images, strict=True)]
    )
    for over, image in shared:
        said = f"{label}, from {image.norm.vmin:.4g}" if isinstance(low, Mapping) else label
        figure.colorbar(image, ax=over, label=said, shrink=0.85)
    return saved(figure, path)


def _numbers(ax: Axes, matrix: np.ndarray, middle: float, decimals: int) -> None:
    """Write every number into its cell, light on dark."""
    for (i, j), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            colour = "white" if value < middle else "black"
            ax.text(j, i, f"{value:.{decimals}f}", ha="center", va="center", fontsize=8, color=colour)


def bubbles(counts: Mapping[str, np.ndarray], path: Path, width: float) -> Path:
    """Clients along x, classes along y, and circles with areas proportional to the number of samples."""
    figure, axes = panels(len(counts), width, 2.9, most=1)
    for ax, (title, table) in zip(axes, counts.items(), strict=True):
        clients, classes = np.nonzero(table)
        ax.scatter(
            clients,
            classes,
            s=table[clients, classes] / table.max() * 160 * width / 7.5,
            color=COLOURS[0],
            alpha=0.6,
            linewidth=0,
        )
        ax.set(
            xlabel="client",
            ylabel="class",
            title=title,
            xlim=(-1.5, len(table) + 0.5),
            ylim=(-0.8, table.shape[1] - 0.2),
        )
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    return saved(figure, path)


def by_cluster(matrix: np.ndarray) -> np.ndarray:
    """An order of the rows that puts similar ones side by side: average linkage, with the median for unknown
    entries."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    known = matrix[np.isfinite(matrix)]
    if len(matrix) < 3 or not len(known):
        return np.arange(len(matrix))
    filled = np.where(np.isfinite(matrix), matrix, np.median(known))
    apart = filled.max() - (filled + filled.T) / 2
    np.fill_diagonal(apart, 0.0)
    order: np.ndarray = leaves_list(
        linkage(squareform(apart, checks=False), "average", optimal_ordering=True)
    )
    return order
