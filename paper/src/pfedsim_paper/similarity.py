"""Classifier similarity between four label subsets, class by class (Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from pfedsim.experiments import Cell, Record, Store
from pfedsim.report import Document, Entry, Figure, Section, Table, entries
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import dealt, set_name
from pfedsim_paper.lengths import LENGTHS, alone, trained
from pfedsim_paper.likeness import SUBSETS
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import Choice

NAMES = list(SUBSETS)
PAIRS = ((0, 1), (0, 2), (2, 3), (0, 3))  # (i, i'), (i, j), (j, k), (i, k): the paper's
CLOSE = 0.1  # values that differ by less are all alike to two decimals and on a scale from 0 to 1
DIVIDED = (
    "Subsets i and i' hold labels 0-4, j 2-6 and k 5-9; no sample is in two subsets. A class that "
    "belongs to several subsets is divided evenly among them (the paper does not say how it did this). "
    "One half of each subset is for training, the other for testing. All four networks start from the "
    "same initial model."
)


def plan(choice: Choice) -> list[Cell]:
    """Shared with the study `metrics`."""
    choice = choice.of()
    return [
        StudyCell(
            alone(data, choice, length, None, seed, clients=4, partition="given", minimum=2),
            "likeness",
            (("clients", "four"), ("trained", length)),
        )
        for data in choice.data
        for seed in choice.seeds
        for length in LENGTHS
    ]


def name(a: int, b: int) -> str:
    return f"({NAMES[a]}, {NAMES[b]})"


def heading(cell: Cell) -> str:
    dealt_ = f", {dealt(cell.words['alpha'])}" if "alpha" in cell.words else ""
    return f"{set_name(str(cell.words['data']))}{dealt_}, trained for {trained(cell)}, seed {cell.words['seed']}"


def report(store: Store, choice: Choice) -> Document:
    sections = [Section("The four subsets", [DIVIDED])]
    for cell in plan(choice):
        record = store.find(cell)
        parts = ["Not measured yet."] if record is None else _parts(record, cell)
        sections.append(Section(heading(cell), parts))
    return Document("similarity", "Classifiers of four label subsets", sections)


def decimals(values: np.ndarray) -> int:
    """How many tell the values apart."""
    return 4 if np.ptp(values) < CLOSE else 2


def _begins(maps: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Where each one's colours begin: at nothing in common or, where all values are close, at the lowest of
    them."""
    return {
        name: float(m.min()) if np.ptp(m) < CLOSE else -1.0 if m.min() < 0 else 0.0
        for name, m in maps.items()
    }


def _parts(record: Record, cell: Cell) -> list[str | Table | Figure]:
    label = f"similarity-{cell.words['data']}-{dict(cell.extra)['trained']}-{cell.words['seed']}"
    found = record.found
    matrix = np.array([found["cosines"][f"{a}{b}"] for a, b in combinations(range(4), 2)])
    digits, digits_cs = decimals(matrix), decimals(np.array(found["CS"]))
    theirs = dict(zip(PAIRS, paper()["metrics"]["CS"], strict=True))
    rows: list[list[Entry]] = []
    for a, b in combinations(range(4), 2):
        per_class = [Entry(f"{v:.{digits}f}", value=v) for v in found["cosines"][f"{a}{b}"]]
        both = theirs.get((a, b))
        rows.append(
            [
                *entries(name(a, b), f"{found['data'][a][b]:.2f}"),
                Entry(f"{found['CS'][a][b]:.{digits_cs}f}", value=found["CS"][a][b]),
                *entries("-" if both is None else f"{both:.2f}"),
                *per_class,
            ]
        )
    classes = [str(c) for c in range(len(rows[0]) - 4)]
    table = Table(
        label,
        (
            "Cosine of the two classifiers' rows, class by class; CS is their mean; the data's similarity is "
            "1 - Eq. 1"
        ),
        ["pair", "data", "CS ours", "CS paper", *classes],
        rows,
        groups=[("", 3), ("cosine of class", len(classes))],
    )

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import heat_maps

        maps, pairs = {"cosine of the rows, by pair and class": matrix}, [row[0].text for row in rows]
        return heat_maps(
            maps,
            path,
            width,
            "cosine",
            names=pairs,
            columns=classes,
            low=_begins(maps),
            high=1.0,
            decimals=digits if width > 5 else None,
            most=1,
            axis="",
            height=0.62,
        )

    def draw_pairs(path: Path, width: float) -> Path:
        from pfedsim.report import heat_maps

        maps = {"data (1 - Eq. 1)": np.array(found["data"]), "classifiers (CS)": np.array(found["CS"])}
        written = {name: decimals(values) for name, values in maps.items()}
        return heat_maps(
            maps,
            path,
            width,
            "similarity",
            names=NAMES,
            low=_begins(maps),
            high=1.0,
            decimals=written,
            most=2,
            axis="",
        )

    return [
        table,
        Figure(f"{label}-classes", "Cosine of the decision boundaries, by pair and class", draw),
        Figure(f"{label}-pairs", "Similarity of data and of classifiers, by pair", draw_pairs),
    ]
