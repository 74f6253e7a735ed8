"""Feature shift: accuracy by domain (Table 8), the counts of each domain, and one class seen in all of
them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from pfedsim.experiments import Cell, Record, Store, missing_data
from pfedsim.methods import TWELVE
from pfedsim.report import Document, Entry, Figure, Section, Table, entries, mean_std, ranked
from pfedsim_paper import accuracy, as_printed
from pfedsim_paper.each_client import clients
from pfedsim_paper.grid import TUNED, Runs, points, runs, scale, set_name, tested, title
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import Choice, base, grid

HERE: dict[str, tuple[str, ...]] = {
    "pacs": ("fedavg", "fedbn", "fedper", "pfedsim"),
    "digit-domains": tuple(TWELVE),
    "domainnet": tuple(TWELVE),
}


def choices(choice: Choice) -> list[Choice]:
    """Every set with the methods that are run on it."""
    sets = choice.of(data=("pacs", "digit-domains"), full_data=("domainnet",)).data
    return [replace(choice.of(methods=HERE.get(data, tuple(TWELVE))), data=(data,)) for data in sets]


def plan(choice: Choice) -> list[Cell]:
    return [cell for one in choices(choice) for cell in grid(one)]


def report(store: Store, choice: Choice) -> Document:
    sections: list[Section] = []
    printed_so: dict[str, tuple[Table, str]] = {}
    for one in choices(choice):
        data = one.data[0]
        found = {m: runs(store, one, data, m, None) for m in one.methods}
        have = {m: r for m, r in found.items() if r.by_seed}
        if not have:
            sections.append(Section(set_name(data), ["Nothing of it is measured yet."]))
            continue
        said = " ".join(
            [
                scale(next(iter(next(iter(have.values())).by_seed.values()))),
                *([REMARKS[data]] if data in REMARKS else []),
            ]
        )
        figures = [*_sheet(data), accuracy.curves(data, {None: have}), clients(data, {None: have})]
        tables = _tables(data, have)
        printed_so[set_name(data)] = tables[0], said
        sections.append(Section(set_name(data), [said, *tables, SHEET.format(set_name(data)), *figures]))
    return Document(
        "domainnet", "Feature shift: accuracy by domain", [*sections, *as_printed.domains(printed_so)]
    )


# the same whether they are at hand or not: a page made from finished runs is the same on every machine
SHEET = (
    "The sheet of one class in every domain is drawn from the data themselves "
    "({}), and left out where they are not at hand."
)
REMARKS = {
    "pacs": "Instead of DomainNet: PACS reduced to 64 x 64; torchvision's ImageNet weights V1 (the paper's were V2).",
    "digit-domains": "Instead of DomainNet: MNIST, USPS, SVHN (9,298 digits cropped from "
    "full numbers), MNIST-M (its test part) and "
    "optdigits.",
    "domainnet": "20 of 345 classes, 30% of each, 64 x 64.",
}


def by_domain(record: Record) -> dict[str, tuple[float, int]]:
    """Domain -> accuracy in %, over its clients' test samples alike, and its samples."""
    clients = record.found["clients"]
    made = {}
    for name in dict.fromkeys(clients["domain"]):
        mine = [k for k, d in enumerate(clients["domain"]) if d == name]
        counts = tested(record)[mine]
        hits = np.array([clients["served"][k] for k in mine], dtype=float) * counts
        made[name] = (float(100 * hits.sum() / counts.sum()), sum(clients["samples"][k] for k in mine))
    return made


def _tables(data: str, found: dict[str, Runs]) -> list[Table]:
    each = {m: [by_domain(r) for r in several.by_seed.values()] for m, several in found.items()}
    domains = {name: count for name, (_, count) in next(iter(each.values()))[0].items()}
    columns = [entries(*map(title, found))]
    for name in domains:
        values = [[one[name][0] for one in each[m]] for m in found]
        columns.append(ranked([mean(v) for v in values], [mean_std(v) for v in values]))
    columns.append(ranked([r.mean() for r in found.values()], [r.text() for r in found.values()]))
    columns.append(ranked([r.mean(TUNED) for r in found.values()], [r.text(TUNED) for r in found.values()]))
    columns.append(entries(*(r.seeds for r in found.values())))
    head = ["method", *domains, "average", "after local epochs", "seeds"]
    title_ = f"{set_name(data)}: accuracy by domain in %, as served; the average is over all test samples"
    made = [Table(f"domains-{data}", title_, head, list(zip(*columns, strict=True)))]
    theirs = (
        dict(zip(paper()["domainnet"]["domains"], paper()["domainnet"]["samples"], strict=True))
        if data == "domainnet"
        else {}
    )
    counts = [entries(n, f"{c:,}", *([f"{theirs[n]:,}"] if theirs else [])) for n, c in domains.items()]
    made.append(
        Table(
            f"counts-{data}",
            "Samples of each domain",
            ["domain", "samples", *(["paper"] if theirs else [])],
            counts,
        )
    )
    return made + (_beside(found, each) if data == "domainnet" else [])


def _beside(found: dict[str, Runs], each: dict[str, list[dict[str, tuple[float, int]]]]) -> list[Table]:
    """The paper's table, and ours minus it."""
    theirs = paper()["domainnet"]
    columns = [entries(*map(title, theirs["cells"]))]
    for k in range(len(theirs["domains"]) + 1):
        values = [row[k] for row in theirs["cells"].values()]
        columns.append(ranked([m for m, _ in values], [f"{m:.2f} ({s:.2f})" for m, s in values]))
    head = ["method", *theirs["domains"], "average"]
    rows = []
    for method, runs_ in found.items():
        ours = [
            mean(one[d][0] for one in each[method]) if d in each[method][0] else None
            for d in theirs["domains"]
        ] + [runs_.mean()]
        printed = [m for m, _ in theirs["cells"][method]]
        rows.append(
            [
                Entry(title(method)),
                *(points(None if o is None else o - p) for o, p in zip(ours, printed, strict=True)),
            ]
        )
    return [
        Table("domains-paper", "The paper's table", head, list(zip(*columns, strict=True))),
        Table("domains-difference", "Ours minus the paper's, in points", head, rows),
    ]


def _sheet(data: str) -> list[Figure]:
    """One class as every domain shows it, where the data are at hand."""
    if missing_data(data):
        return []

    def draw(path: Path, width: float) -> Path:
        from matplotlib import pyplot as plt

        from pfedsim import data as datasets
        from pfedsim.report import saved

        found: Any = datasets.read(data, size=base(data).get("size"))
        names = np.unique(found.domain)
        across = 4 if width < 5 else 6
        figure, grid = plt.subplots(
            len(names),
            across,
            figsize=(width, 1.25 * width / across * len(names)),
            layout="constrained",
            squeeze=False,
        )
        for row, name in zip(grid, names, strict=True):
            some = np.flatnonzero((found.domain == name) & (found.y == 0))[:across]
            for k, ax in enumerate(row):
                ax.set_xticks([])
                ax.set_yticks([])
                if k < len(some):
                    ax.imshow(found.x[some[k]].transpose(1, 2, 0).squeeze(), cmap="gray")
            row[0].set_ylabel(str(name), fontsize=9)
        figure.suptitle(f"class {found.classes[0]}")
        return saved(figure, path)

    return [Figure(f"sheet-{data}", f"{set_name(data)}: one class in every domain", draw)]
