"""The paper's data: how many samples, dealt how unevenly (Table 4), and who holds what (Figure 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.data import partition as partitions
from pfedsim.experiments import Cell, Store
from pfedsim.report import DAGGERS, Document, Entry, Figure, Section, Table, entries
from pfedsim.runs import Config
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import dealt, set_name
from pfedsim_paper.paper import paper, wrong
from pfedsim_paper.protocol import ALPHAS, Choice, words

EMNIST = (  # byclass: digits, capitals, small letters
    40363,
    44704,
    40072,
    41112,
    39154,
    36606,
    39937,
    41893,
    39579,
    39533,
    7469,
    4526,
    11833,
    5341,
    5785,
    10622,
    2964,
    3673,
    13994,
    4388,
    2850,
    5886,
    10487,
    9588,
    29139,
    9744,
    3018,
    5882,
    24272,
    11396,
    14604,
    5433,
    5501,
    3203,
    5541,
    3165,
    11677,
    6012,
    3286,
    11860,
    28723,
    2961,
    4276,
    10217,
    3152,
    2213,
    2957,
    17853,
    3109,
    13316,
    3215,
    2816,
    3499,
    16425,
    3136,
    21227,
    3312,
    3378,
    3164,
    3292,
    2746,
    3176,
)
COUNTS: dict[str, tuple[int, ...]] = {  # samples of each class, train and test pooled
    "cifar10": (6000,) * 10,
    "cinic10": (27000,) * 10,
    "emnist": EMNIST,
    "tiny-imagenet": (550,) * 200,
}


def sizes(data: str, alpha: float) -> np.ndarray:
    """How many samples each of 100 clients gets; the partition's draws depend on the class counts alone, so
    no data are needed."""
    y = np.repeat(np.arange(len(COUNTS[data])), COUNTS[data])
    dealt_ = partitions.make(
        "dirichlet", y, "", clients=100, alpha=alpha, classes_each=2, minimum=40, test=0.5, seed=42
    )
    return np.array([len(s.train) + len(s.test) for s in dealt_.clients])


def no_cells(choice: Choice) -> list[Cell]:
    """Nothing is trained."""
    return []


def report(store: Store, choice: Choice) -> Document:
    rows: list[list[Entry]] = []
    notes: list[str] = []
    for data in COUNTS:
        samples, classes, average, *spreads = paper()["datasets"]["cells"][data]
        why = wrong("datasets", data=data)
        notes += [f"{DAGGERS[len(notes)]} {why}"] if why else []
        mine = {alpha: sizes(data, alpha) for alpha in ALPHAS}
        ours = [f"{int(n.mean()):,} ({int(n.std())})" for n in mine.values()]
        rows.append(
            entries(
                set_name(data),
                f"{sum(COUNTS[data]):,}",
                f"{samples:,}" + (DAGGERS[len(notes) - 1] if why else ""),
                len(COUNTS[data]),
                classes,
                ours[0],
                f"{average:,} ({spreads[0]})",
                ours[1],
                f"{average:,} ({spreads[1]})",
            )
        )
    table = Table(
        "datasets",
        (
            "The paper's data sets on 100 clients: samples, classes, samples per client (std), both cut to "
            "whole numbers as the paper does"
        ),
        ["set", "ours", "paper", "ours", "paper", "ours", "paper", "ours", "paper"],
        rows,
        groups=[("samples", 2), ("classes", 2), (dealt(0.1), 2), (dealt(0.5), 2)],
        notes=notes,
    )
    note = (
        "Counted from the publishers' class counts with the real partition (seed 42, "
        "minimum 40); the partition depends on nothing else."
    )
    return Document("datasets", "The paper's data sets", [Section("", [note, table])])


def distribution(choice: Choice) -> list[Cell]:
    choice = choice.of(full_data=tuple(COUNTS))
    return [
        StudyCell(words(data, "local", alpha, choice.seeds[0], choice.settings, full=choice.full), "counts")
        for data in choice.data
        for alpha in choice.alphas
    ]


def measure(config: Config, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Who holds how many samples of which class."""
    from pfedsim.runs import federate

    federation = federate(config)
    return {"counts": federation.label_counts().tolist(), "partition": federation.partition.digest}, {}


def distribution_report(store: Store, choice: Choice) -> Document:
    sections = []
    for data in dict.fromkeys(str(c.words["data"]) for c in distribution(choice)):
        found = {c.words["alpha"]: store.find(c) for c in distribution(choice) if c.words["data"] == data}
        tables = {dealt(a): np.array(r.found["counts"]) for a, r in found.items() if r}
        if not tables:
            sections.append(Section(set_name(data), ["Not measured yet."]))
            continue
        rows = [
            entries(
                name,
                len(t),
                f"{t.sum(1).mean():.0f}",
                f"{t.sum(1).std():.0f}",
                t.sum(1).min(),
                t.sum(1).max(),
                f"{(t > 0).sum(1).mean():.2f}",
            )
            for name, t in tables.items()
        ]
        head = ["partition", "clients", "mean samples", "std", "fewest", "most", "mean classes"]
        figure = Figure(
            f"distribution-{data}",
            f"{set_name(data)}: samples by client and class; the circle's area is their number",
            _drawn(tables),
        )
        sections.append(
            Section(
                set_name(data), [Table(f"distribution-{data}", "Who holds how much", head, rows), figure]
            )
        )
    return Document("distribution", "Who holds which classes", sections)


def _drawn(tables: dict[str, np.ndarray]) -> Any:
    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import bubbles

        return bubbles(tables, path, width)

    return draw
