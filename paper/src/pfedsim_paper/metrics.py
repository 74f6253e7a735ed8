"""Four measures of how alike clients are, against how alike their data are (Table 2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pfedsim.experiments import Cell, Record, Store
from pfedsim.report import Document, Entry, Figure, Section, Table, entries
from pfedsim_paper import as_printed, similarity
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import decimal
from pfedsim_paper.lengths import LENGTHS, alone
from pfedsim_paper.likeness import MEASURES, correlations
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import Choice
from pfedsim_paper.similarity import PAIRS, heading, name

WHAT = (
    "WDB is 1 / f-FedAP's distance (mean and deviation at each norm layer's input, each client's own "
    "model on its own train part). MDB is the cosine of the two models' changes. LDB is FedFomo's "
    "weight for the second client's model on the first client's held-out half. CS is the mean cosine of"
    " the classifiers' rows. WDB and LDB have no fixed scale, so only their order and correlation can "
    "be compared with the paper's."
)


def over_all(choice: Choice) -> list[Cell]:
    """All pairs of a Dirichlet federation."""
    choice = choice.of(alphas=(0.1,))
    return [
        StudyCell(
            alone(data, choice, length, alpha, seed), "likeness", (("clients", "all"), ("trained", length))
        )
        for data in choice.data
        for alpha in choice.alphas
        for seed in choice.seeds
        for length in LENGTHS
    ]


def plan(choice: Choice) -> list[Cell]:
    return similarity.plan(choice) + over_all(choice)


def report(store: Store, choice: Choice) -> Document:
    sections = [Section("What is measured", [WHAT, similarity.DIVIDED])]
    tables: dict[str, Table] = {}
    for cell in similarity.plan(choice):
        record = store.find(cell)
        parts: list[str | Table | Figure] = ["Not measured yet."]
        if record is not None:
            tables[heading(cell)] = four = _four(record, cell)
            parts = [four]
        sections.append(Section(f"Four pairs: {heading(cell)}", parts))
    for cell in over_all(choice):
        record = store.find(cell)
        parts = ["Not measured yet."] if record is None else _all(record, cell)
        sections.append(Section(f"All pairs of {cell.words['clients']} clients: {heading(cell)}", parts))
    return Document(
        "metrics", "How well four measures detect similar clients", [*sections, *as_printed.metrics(tables)]
    )


def _number(value: float) -> str:
    if 0.995 <= abs(value) < 1:
        return f"{value:.4f}"
    return f"{value:.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def _four(record: Record, cell: Cell) -> Table:
    rows: list[list[Entry]] = []
    printed = paper()["metrics"]
    data = {"ours": [record.found["data"][a][b] for a, b in PAIRS], "paper": printed["data_similarity"]}
    for measure in ("data", *MEASURES):
        table = record.found[measure]
        theirs = printed["data_similarity" if measure == "data" else measure]
        mine, six = [table[a][b] for a, b in PAIRS], record.found["correlation"].get(measure, {})
        four = [
            correlations(np.array(data[who]), np.array(v))["pearson"]
            for who, v in (("ours", mine), ("paper", theirs))
        ]
        rows.append(
            [
                *entries("data similarity" if measure == "data" else measure),
                *(Entry(_number(v), value=v) for v in mine),
                *entries(
                    *(_number(t) for t in theirs),
                    *map(decimal, four if six else (None, None)),
                    decimal(six.get("pearson")),
                ),
            ]
        )
    pairs = [name(a, b) for a, b in PAIRS]
    return Table(
        f"metrics-{cell.words['data']}-{dict(cell.extra)['trained']}-{cell.words['seed']}",
        (
            "Four pairs, ours and the paper's; Pearson's correlation with the data's similarity over these "
            "four, and over all six pairs"
        ),
        ["measure", *pairs, *pairs, "ours", "paper", "ours, all six"],
        rows,
        groups=[("ours", 4), ("paper", 4), ("correlation", 3)],
        notes=["For all six pairs, LDB is the mean of both directions."],
    )


def _all(record: Record, cell: Cell) -> list[str | Table | Figure]:
    label = f"all-pairs-{cell.words['data']}-{cell.words['alpha']:g}-{dict(cell.extra)['trained']}-{cell.words['seed']}"
    correlation = record.found["correlation"]
    rows = [
        entries(m, *(decimal(correlation[m][kind]) for kind in ("pearson", "spearman"))) for m in MEASURES
    ]
    table = Table(
        label,
        f"Correlation with the data's similarity over {record.found['pairs']:,} pairs",
        ["measure", "Pearson", "Spearman"],
        rows,
    )
    drawn = record.found["drawn"]

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import points

        return points(
            {m: {m: (drawn["data"], drawn[m])} for m in MEASURES},
            path,
            width,
            ["data similarity"] * 4,
            "",
            legend=False,
        )

    return [
        table,
        Figure(
            label,
            f"Each measure against the data's similarity, {len(drawn['data'])} pairs drawn at random",
            draw,
        ),
    ]


def over_four(record: Record, measure: str) -> float | None:
    """Pearson's correlation of a measure with the data's similarity over the paper's four pairs."""
    data, values = (np.array([record.found[table][a][b] for a, b in PAIRS]) for table in ("data", measure))
    return correlations(data, values)["pearson"]
