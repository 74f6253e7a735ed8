"""Tables and pictures of a federation's data: each client's samples and labels, and example samples."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from pfedsim import durable, escape
from pfedsim.data.federation import Federation
from pfedsim.report.canvas import plt
from pfedsim.report.figures import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfedsim.data.dataset import DataSet

MOST_ROWS, MOST_COLUMNS = 20, 12  # of a table on the screen and of a sheet of samples
FORMATS = ("png", "svg")


def statistics(federation: Federation) -> list[dict[str, Any]]:
    """For every client: its samples, its classes and the share of its largest class."""
    rows = []
    for i, (split, counts) in enumerate(
        zip(federation.partition.clients, federation.label_counts(), strict=True)
    ):
        largest = float(counts.max() / counts.sum()) if counts.sum() else 0.0
        rows.append(
            {
                "client": i,
                "name": federation.names[i],
                "train": len(split.train),
                "test": len(split.test),
                "samples": int(counts.sum()),
                "classes": int((counts > 0).sum()),
                "largest class, %": round(100 * largest, 1),
                "unseen": "yes" if i >= federation.clients - federation.unseen else "",
            }
        )
    return rows


def summary(federation: Federation) -> str:
    """The partition in one sentence. As in the paper's data table, std is the population's standard deviation."""
    sizes = np.array([row["samples"] for row in statistics(federation)])
    classes = np.mean([row["classes"] for row in statistics(federation)])
    data, kind = federation.data, federation.partition.recipe.get("kind", "a file")
    return (
        f"{data.name}: {len(data.y):,} samples of shape {' x '.join(map(str, data.shape))}, "
        f"{len(data.classes)} classes; partition {kind}: "
        f"{federation.clients} clients with {sizes.mean():.1f} samples each (std {sizes.std():.1f}, "
        f"{sizes.min():,} to {sizes.max():,}) "
        f"and {classes:.2f} classes"
    )


def client_table(federation: Federation) -> Table:
    """The statistics of the first clients."""
    rows = statistics(federation)
    shown = [
        key
        for key in rows[0]
        if (key != "unseen" or federation.unseen)
        and (key != "name" or "names" in federation.partition.recipe)
    ]
    return _table(shown, [[str(row[key]) for key in shown] for row in rows])


def label_table(federation: Federation) -> Table | None:
    """Samples of each class at each client; None if there are too many classes for a screen."""
    if len(federation.data.classes) > MOST_COLUMNS:
        return None
    counts = federation.label_counts()
    named = "names" in federation.partition.recipe
    who = federation.names if named else list(map(str, range(federation.clients)))
    rows = [[who[i], *map(str, row)] for i, row in enumerate(counts)]
    return _table(["name" if named else "client", *federation.data.classes], rows)


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(escape.visible(heading), justify="left" if heading == "name" else "right")
    for row in rows[:MOST_ROWS]:
        table.add_row(*map(escape.visible, row))
    if len(rows) > MOST_ROWS:
        table.add_row(*(["..."] * len(headings)))
    return table


def write_tables(federation: Federation, folder: Path) -> list[Path]:
    """Write clients.csv and labels.csv, with all clients."""
    rows = statistics(federation)
    named = "names" in federation.partition.recipe
    counts = [
        [i, *([federation.names[i]] if named else []), *map(int, row)]
        for i, row in enumerate(federation.label_counts())
    ]
    return [
        _csv(folder / "clients.csv", list(rows[0]), [list(row.values()) for row in rows]),
        _csv(
            folder / "labels.csv",
            ["client", *(["name"] if named else []), *federation.data.classes],
            counts,
        ),
    ]


def _csv(path: Path, heading: list[str], rows: list[list[Any]]) -> Path:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([escape.cell(value) for value in row] for row in [heading, *rows])
    durable.make_folder(path.parent)
    durable.write(path, text.getvalue().encode())
    return path


def bubbles(federation: Federation, folder: Path) -> list[Path]:
    """The paper's bubble plot: clients along x, classes along y, and circles with areas proportional to the number
    of samples."""
    counts = federation.label_counts()
    clients, classes = counts.shape
    who, what = counts.nonzero()
    many = counts[who, what]
    width, height = min(20, max(5, 0.16 * clients + 2)), min(14, max(3, 0.16 * classes + 1.5))
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    room = 72 * min((width - 1.2) / clients, (height - 1) / classes)  # points between two neighbours
    crowded = len(many) > counts.size / 2
    widest = min(36, (0.9 if crowded else 1.7) * room)  # if few clients have a class, circles may overlap
    areas = np.maximum(widest**2 * many / counts.max(), 0.3)
    axes.scatter(who, what, s=areas, color="#0072B2", alpha=0.65, linewidths=0)
    for count in sorted({max(1, int(counts.max()) // 4), int(counts.max())}):
        area = max(widest**2 * count / counts.max(), 0.3)
        label = f"{count:,} sample{'s' * (count != 1)}"
        axes.scatter([], [], s=area, color="#0072B2", alpha=0.65, linewidths=0, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, labelspacing=1.5)
    if "names" in federation.partition.recipe and clients <= 30:
        axes.set_xticks(range(clients), [*map(escape.visible, federation.names)], rotation=90, fontsize=8)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if classes <= 30:
        axes.set_yticks(range(classes), [*map(escape.visible, federation.data.classes)], fontsize=8)
    axes.set(
        xlabel="client",
        ylabel="class",
        xlim=(-1, clients),
        ylim=(-1, classes),
        title=f"{federation.data.name}: samples per class and client",
    )
    if federation.unseen:
        axes.axvline(clients - federation.unseen - 0.5, color="#D55E00", linewidth=1, linestyle="--")
        axes.annotate(
            "unseen", (clients - federation.unseen - 0.4, classes - 0.9), color="#D55E00", fontsize=8
        )
    axes.grid(alpha=0.2)
    return _saved(figure, folder / "labels")


def sheet(data: DataSet, folder: Path) -> list[Path]:
    """A sheet of example pictures, with a row for each class (or domain), or of signals. Tables have none."""
    if len(data.shape) == 1:
        return []
    return _signals(data, folder) if len(data.shape) == 2 else _pictures(data, folder)


def _pictures(data: DataSet, folder: Path) -> list[Path]:
    classes = _spread(len(data.classes), MOST_ROWS if data.domain is None else MOST_COLUMNS)
    if data.domain is None:
        rows = [(data.classes[c], [_places(data.y == c, 10)]) for c in classes]
        everything = len(classes) == len(data.classes)
        which = "each class" if everything else f"{len(classes)} of the {len(data.classes)} classes"
        title = f"{data.name}: ten samples of {which}"
    else:
        rows = [
            (str(d), [_places((data.y == c) & (data.domain == d), 2) for c in classes])
            for d in np.unique(data.domain)
        ]
        title = f"{data.name}: two of each class ({', '.join(data.classes[c] for c in classes)})"
    height, width = data.shape[1:]
    per_row = max(sum(len(places) for places in groups) for _, groups in rows)
    gap = max(1, width // 16)
    canvas = np.full((len(rows) * (height + gap) - gap, per_row * (width + gap) - gap, 3), 255, np.uint8)
    for r, (_, groups) in enumerate(rows):
        for k, place in enumerate(p for places in groups for p in places):
            top, left = r * (height + gap), k * (width + gap)
            canvas[top : top + height, left : left + width] = _shown(data, data.x[place])
    scale = 9 / canvas.shape[1]
    figure, axes = plt.subplots(
        figsize=(10.5, max(1.6, scale * canvas.shape[0] + 0.6)), layout="constrained"
    )
    axes.imshow(canvas, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks(
        [r * (height + gap) + height / 2 for r in range(len(rows))],
        [escape.visible(name) for name, _ in rows],
        fontsize=8,
    )
    axes.set_title(title, fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    return _saved(figure, folder / "samples")


def _shown(data: DataSet, sample: np.ndarray) -> np.ndarray:
    """One sample as bytes of shape (height, width, 3); floats are scaled to their range."""
    if sample.dtype != np.uint8:
        low, high = float(np.nanmin(sample)), float(np.nanmax(sample))
        sample = np.nan_to_num((sample - low) / (high - low or 1.0) * 255).astype(np.uint8)
    rgb = sample[:3] if len(sample) >= 3 else np.repeat(sample[:1], 3, axis=0)
    return rgb.transpose(1, 2, 0)


def _signals(data: DataSet, folder: Path) -> list[Path]:
    classes = _spread(len(data.classes), MOST_COLUMNS)
    figure, grid = plt.subplots(
        len(classes),
        4,
        figsize=(10, 1.1 * len(classes) + 0.8),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for row, c in zip(grid, classes, strict=True):
        for axes, place in zip(row, _places(data.y == c, 4), strict=False):
            axes.plot(data.x[place].T, linewidth=0.8)
        row[0].set_ylabel(data.classes[c], fontsize=8, rotation=0, ha="right")
    figure.suptitle(
        f"{data.name}: four samples of each class, a line for each of {data.shape[0]} channels", fontsize=9
    )
    return _saved(figure, folder / "samples")


def _spread(count: int, most: int) -> list[int]:
    """All indices below `count`, or `most` of them, evenly spaced."""
    return sorted({int(k) for k in np.linspace(0, count - 1, min(count, most))})


def _places(chosen: np.ndarray, count: int) -> list[int]:
    """The positions of up to `count` chosen samples, evenly spaced."""
    places = np.flatnonzero(chosen)
    return [int(places[k]) for k in _spread(len(places), count)] if len(places) else []


def _saved(figure: Figure, stem: Path) -> list[Path]:
    return [saved(figure, stem.with_suffix(f".{form}"), dpi=150) for form in FORMATS]
