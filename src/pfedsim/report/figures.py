"""Draw pictures of runs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from pfedsim import durable, escape
from pfedsim.core.rows import Pairs
from pfedsim.report.bands import draw_curve
from pfedsim.report.canvas import plt
from pfedsim.report.looks import SCATTERED, looks
from pfedsim.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME, ROOM = 16, 60  # characters of a client's name beside an axis, and of all names side by side


def as_written(figure: Figure) -> None:
    """Show every text of a figure as it is: a $ in a name begins no formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(escape.visible(text.get_text(), keep="\n"))


def saved(figure: Figure, path: Path, dpi: int = 130) -> Path:
    """Save the figure in the format of the path's suffix, and close it."""
    as_written(figure)
    content, form = io.BytesIO(), path.suffix.removeprefix(".")
    metadata = {"Date": None} if form == "svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "pfedsim"}):  # the same figure gives the same bytes
        figure.savefig(content, format=form, dpi=dpi, bbox_inches="tight", metadata=metadata)
    plt.close(figure)
    durable.make_folder(path.parent)
    durable.write(path, content.getvalue())
    return path


def curves(runs: Mapping[str, Sequence[Run]], path: Path, width: float = 7.5) -> Path:
    """Accuracy by round, as served. Several runs of one name are seeds: their mean is drawn, with the range
    shaded."""
    figure, axes = plt.subplots(figsize=(width, 4.2), layout="constrained")
    bands = any(len(several) > 1 for several in runs.values())
    styles = looks(runs)
    for name, several in runs.items():
        draw_curve(axes, name, [_curve(run) for run in several], styles[name])
    axes.set(xlabel="round", ylabel="accuracy over all test samples, %")
    said = "Accuracy after each round, as served" + (" (band: range over seeds)" if bands else "")
    axes.set_title(said, loc="left")
    _tick_rounds(axes)
    axes.grid(alpha=0.3)
    _mark_switches(axes, runs)
    _legend(axes, len(axes.get_legend_handles_labels()[0]))
    return saved(figure, path)


def _tick_rounds(axes: Axes) -> None:
    """Ticks at whole rounds, always at the first and the last; others that would touch these are left out."""
    drawn = [float(x) for line in axes.lines for x in np.asarray(line.get_xdata())]
    if not drawn:
        return
    first, last = min(drawn), max(drawn)
    near = (last - first) / 20
    between = MaxNLocator(integer=True).tick_values(first, last)
    inner = [t for t in between if first + near < t < last - near]
    axes.set_xticks(sorted({first, *inner, last}))


def _mark_switches(axes: Axes, runs: Mapping[str, Sequence[Run]]) -> None:
    """A thin line where the warm-up of a two-stage method ends."""
    ends: dict[int, list[str]] = {}
    for run in (run for several in runs.values() for run in several):
        switch = _switch(run)
        if switch is not None:
            ends.setdefault(switch, []).append(run.summary["method"])
    for switch, methods in sorted(ends.items()):
        label = f"warm-up ends after round {switch}:\n" + ",\n".join(dict.fromkeys(methods))
        axes.axvline(switch, color="#777777", linewidth=0.8, dashes=(5, 4), zorder=0, label=label)


def _switch(run: Run) -> int | None:
    """The last round of the warm-up; None if the run has no warm-up, or nothing after it."""
    switch = run.summary.get("warm_up", 0)
    return switch if 0 < switch < run.summary["rounds"] else None


def _curve(run: Run) -> dict[float, float]:
    return {
        m["round"]: 100 * m["micro"]
        for m in run.metrics()
        if m.get("model") == "served" and m["split"] == "test"
    }


def over_rounds(
    lines: Mapping[str, Mapping[int, float]], path: Path, ylabel: str, title: str, width: float = 7.5
) -> Path:
    """Lines over the rounds of a run, with a y axis from zero."""
    figure, axes = plt.subplots(figsize=(width, 3.2), layout="constrained")
    for name, style in looks(lines).items():
        axes.plot(list(lines[name]), list(lines[name].values()), label=name, **style)
    axes.set(xlabel="round", ylabel=ylabel, title=title)
    axes.set_ylim(0, 1.08 * max((v for values in lines.values() for v in values.values()), default=1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if len(lines) > 1:
        _legend(axes, len(lines))
    return saved(figure, path)


def _legend(axes: Axes, entries: int) -> None:
    if entries > 4:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    else:
        axes.legend(frameon=False)


def clients(
    values: Mapping[str, Sequence[float]],
    path: Path,
    title: str = "Each client's accuracy, as served",
    width: float = 0,
    who: Sequence[str] | None = None,
) -> Path:
    """Every client's accuracy, for each name: a column of points per client, ordered by the first name's
    accuracy. `who`: the clients' names."""
    names = list(values)
    order = np.argsort(values[names[0]], kind="stable")
    figure, axes = plt.subplots(
        figsize=(width or min(14, max(7.5, 0.12 * len(order) + 5)), 4.2), layout="constrained"
    )
    for name, style in looks(names).items():
        axes.plot(range(len(order)), 100 * np.asarray(values[name])[order], label=name, **style | SCATTERED)
    if len(order) <= 5.4 * figure.get_figwidth():  # if there is room for the numbers
        _name_clients(axes, range(len(order)), order.tolist(), who)
    else:
        axes.set_xticks([])
    axes.set(
        xlabel=f"client, ordered by {names[0]}", ylabel="accuracy on its own test part, %", title=title
    )
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3, axis="y")
    _legend(axes, len(names))
    return saved(figure, path)


def _name_clients(
    axes: Axes, places: Sequence[int], ids: Sequence[int], who: Sequence[str] | None, upright: bool = False
) -> None:
    """Write the clients' names, or their numbers, below the horizontal axis; `upright`: beside the vertical one."""
    words = [str(i) if who is None else escape.visible(who[i]) for i in ids]
    words = [
        word if who is None or len(word) <= LONGEST_NAME else f"{word[: LONGEST_NAME - 1]}…"
        for word in words
    ]
    if upright:
        axes.set_yticks(places, words, fontsize=8)
    else:
        axes.set_xticks(
            places, words, fontsize=8, rotation=90 if who is not None and sum(map(len, words)) > ROOM else 0
        )


def differ(pairs: Pairs) -> bool:
    """Whether there are different similarities, so that a picture shows something."""
    return len({value for _, row in pairs.rows() for value in row.values()}) > 1


def similarity(
    pairs: Pairs, clients: int, path: Path, title: str, width: float = 6.2, who: Sequence[str] | None = None
) -> Path:
    """The server's similarities of so many clients; pairs that never met are grey. `who`: the clients' names."""
    ids, matrix = range(clients), pairs.array(clients)
    figure, axes = plt.subplots(figsize=(width, 0.84 * width), layout="constrained")
    axes.set_facecolor("#dddddd")
    image = axes.imshow(matrix, cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="similarity of classifiers", shrink=0.85)
    step = -(-len(ids) // int(3.2 * width))  # label only as many as there is room for
    for upright in (False, True):
        _name_clients(axes, ids[::step], ids[::step], who, upright)
    axes.set(xlabel="client", ylabel="client", title=f"{title}\n(grey: never met, or itself)")
    return saved(figure, path)
