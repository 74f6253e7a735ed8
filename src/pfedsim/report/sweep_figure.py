"""The picture of a sweep: a map for a grid over two settings, else a panel for each setting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pfedsim.experiments.sweep import Sweep
from pfedsim.experiments.trials import FINISHED, PRUNED, Trial
from pfedsim.report.figures import saved
from pfedsim.report.plots import panels, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL = "accuracy on the validation parts, %"
BLUE, RED, GREY = "#0072B2", "#D55E00", "#888888"
TALLEST = 12  # values of a setting beyond which a map's numbers would overlap
DECADES_ONLY = 200  # with a larger factor, only powers of ten are labelled
WIDE_RANGE = 8  # values that differ by more than this factor are drawn on a logarithmic axis


def draw(sweep: Sweep, path: Path, width: float = 7.5) -> Path:
    """Draw the sweep in the format of the path's suffix."""
    values = {name: _values(sweep, name) for name in sweep.over}
    counts = [len(v) for v in values.values()]
    is_map = len(counts) == 2 and counts[0] * counts[1] == len(sweep.trials) and max(counts) <= TALLEST
    return _map(sweep, values, path, width) if is_map else _panels(sweep, values, path, width)


def _values(sweep: Sweep, name: str) -> list[Any]:
    """The values that were tried, numbers in order."""
    found = list({repr(t.settings[name]): t.settings[name] for t in sweep.trials}.values())
    return sorted(found) if _numeric(found) else found


def _numeric(values: list[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _map(sweep: Sweep, values: dict[str, list[Any]], path: Path, width: float) -> Path:
    """A cell for each combination, its accuracy inside; pruned and diverged ones in grey."""
    (down, rows), (across, columns) = values.items()
    finished = np.full((len(rows), len(columns)), np.nan)
    figure, axes = plt.subplots(figsize=(width, max(2.2, 0.55 * len(rows) + 1.5)), layout="constrained")
    for t in sweep.trials:
        i, j = rows.index(t.settings[down]), columns.index(t.settings[across])
        if t.outcome == FINISHED and t.validation is not None:
            finished[i, j] = 100 * t.validation
    axes.set_facecolor("#dddddd")
    image = axes.imshow(finished, cmap="viridis", interpolation="nearest", aspect="auto")
    middle = (np.nanmin(finished) + np.nanmax(finished)) / 2
    for t in sweep.trials:
        i, j = rows.index(t.settings[down]), columns.index(t.settings[across])
        dark = np.isfinite(finished[i, j]) and finished[i, j] < middle
        axes.text(j, i, _said(t), ha="center", va="center", fontsize=9, color="white" if dark else "black")
    best = sweep.best.settings
    corner = columns.index(best[across]) - 0.47, rows.index(best[down]) - 0.46
    axes.add_patch(Rectangle(corner, 0.94, 0.92, fill=False, edgecolor=RED, linewidth=2.5))
    axes.set_xticks(range(len(columns)), [str(v) for v in columns])
    axes.set_yticks(range(len(rows)), [str(v) for v in rows])
    axes.set(xlabel=across, ylabel=down)
    axes.set_title("Best trial framed", loc="left", fontsize=10)
    figure.colorbar(image, ax=axes, label=LABEL)
    return saved(figure, path)


def _said(t: Trial) -> str:
    if t.outcome == FINISHED and t.validation is not None:
        return f"{100 * t.validation:.1f}"
    if t.outcome == PRUNED and t.validation is not None:
        return f"pruned\n({100 * t.validation:.1f})"
    return t.outcome


def _panels(sweep: Sweep, values: dict[str, list[Any]], path: Path, width: float) -> Path:
    """A panel for each setting with a point for each trial."""
    figure, axes = panels(len(values), width, 3.2)
    for ax, (name, tried) in zip(axes, values.items(), strict=True):
        numeric = _numeric(tried)
        looks: tuple[tuple[str, dict[str, Any]], ...] = (
            (FINISHED, {"marker": "o", "color": BLUE, "label": "finished"}),
            (PRUNED, {"marker": "o", "color": GREY, "mfc": "none", "label": "pruned, when it was"}),
        )
        for outcome, look in looks:
            found = [t for t in sweep.trials if t.outcome == outcome and t.validation is not None]
            points = [_point(t, name, tried, numeric) for t in found if t is not sweep.best]
            if points:
                ax.plot(*zip(*points, strict=True), linestyle="none", markersize=5, **look)
        star: dict[str, Any] = {
            "marker": "*",
            "color": RED,
            "markersize": 13,
            "linestyle": "none",
            "label": "best",
        }
        ax.plot(*zip(_point(sweep.best, name, tried, numeric), strict=True), **star)
        _scale(ax, tried, numeric)
        ax.set(xlabel=name)
        ax.grid(alpha=0.3)
    figure.supylabel(LABEL, fontsize=10)
    shared_legend(figure, axes, width, 3)
    return saved(figure, path)


def _point(t: Trial, name: str, tried: list[Any], numeric: bool) -> tuple[float, float]:
    value = t.settings[name]
    return float(value if numeric else tried.index(value)), 100 * (t.validation or 0.0)


def _scale(ax: Axes, tried: list[Any], numeric: bool) -> None:
    if not numeric:
        ax.set_xticks(range(len(tried)), [str(v) for v in tried])
        ax.set_xlim(-0.5, len(tried) - 0.5)
    elif min(tried) > 0 and max(tried) > WIDE_RANGE * min(tried):
        ax.set_xscale("log")
        decades = max(tried) > DECADES_ONLY * min(tried)
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades else (1.0, 3.0)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    elif all(isinstance(v, int) for v in tried):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
