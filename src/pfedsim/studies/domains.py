"""Feature shift: accuracy by domain (Table 8), the counts of each domain, and one class seen in all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from pfedsim.methods import METHODS
from pfedsim.report.document import Cell, Document, Figure, Section, Table, cells, ranked
from pfedsim.studies.cells import Cell as Run
from pfedsim.studies.cells import Record, Store
from pfedsim.studies.grid import Runs, runs, set_name, spread, title
from pfedsim.studies.paper import paper
from pfedsim.studies.protocol import Choice, base, grid
from pfedsim.studies.runner import not_at_hand

HERE: dict[str, tuple[str, ...]] = {
    "pacs": ("fedavg", "fedbn", "fedper", "pfedsim"),
    "digit-domains": tuple(METHODS),
    "domainnet": tuple(METHODS),
}


def choices(choice: Choice) -> list[Choice]:
    """Every set with the methods that are run on it."""
    sets = choice.of(data=("pacs", "digit-domains"), full_data=("domainnet",)).data
    return [replace(choice.of(methods=HERE.get(data, tuple(METHODS))), data=(data,)) for data in sets]


def plan(choice: Choice) -> list[Run]:
    return [cell for one in choices(choice) for cell in grid(one)]


def report(store: Store, choice: Choice) -> Document:
    sections = []
    for one in choices(choice):
        data = one.data[0]
        found = {m: runs(store, one, data, m, None) for m in one.methods}
        have = {m: r for m, r in found.items() if r.by_seed}
        parts: list[str | Table | Figure] = [*_tables(data, have), *_sheet(data)] if have else ["Nothing of it is measured yet."]
        sections.append(Section(set_name(data), [SCALE.get(data, ""), *parts] if data in SCALE else parts))
    return Document("domainnet", "Feature shift: accuracy by domain", sections)


SCALE = {
    "pacs": "In DomainNet's place: PACS reduced to 64 x 64, 5 clients a domain, join 0.5, 20 rounds, MobileNetV2 with ImageNet weights "
    "(torchvision's V1; the paper's were V2).",
    "digit-domains": "In DomainNet's place: MNIST, USPS, SVHN (cropped from full numbers), MNIST-M (its test part) and optdigits, 20 "
    "clients a domain, LeNet5, the paper's 200 rounds.",
    "domainnet": "20 of 345 classes, 30% of each, 64 x 64, 20 clients a domain.",
}


def by_domain(record: Record) -> dict[str, tuple[float, int]]:
    """Domain -> accuracy in %, over its clients' test samples alike, and its samples. A client tests on half of what it has."""
    clients = record.found["clients"]
    made = {}
    for name in dict.fromkeys(clients["domain"]):
        mine = [k for k, d in enumerate(clients["domain"]) if d == name]
        tested = np.array([clients["samples"][k] - clients["samples"][k] // 2 for k in mine])
        hits = np.array([clients["served"][k] for k in mine], dtype=float) * tested
        made[name] = (float(100 * hits.sum() / tested.sum()), sum(clients["samples"][k] for k in mine))
    return made


def _tables(data: str, found: dict[str, Runs]) -> list[Table]:
    each = {m: [by_domain(r) for r in several.by_seed.values()] for m, several in found.items()}
    domains = {name: count for name, (_, count) in next(iter(each.values()))[0].items()}
    columns = [cells(*map(title, found))]
    for name in domains:
        values = [[one[name][0] for one in each[m]] for m in found]
        columns.append(ranked([mean(v) for v in values], [spread(v) for v in values]))
    columns.append(ranked([r.mean() for r in found.values()], [r.text() for r in found.values()]))
    columns.append(
        ranked([r.mean(("finetuned", "micro")) for r in found.values()], [r.text(("finetuned", "micro")) for r in found.values()])
    )
    columns.append(cells(*(r.seeds for r in found.values())))
    head = ["method", *domains, "average", "after local epochs", "seeds"]
    made = [
        Table(
            f"domains-{data}",
            f"{set_name(data)}: accuracy by domain in %, as served; the average is over all test samples",
            head,
            list(zip(*columns, strict=True)),
        )
    ]
    made.append(Table(f"counts-{data}", "Samples of each domain", ["domain", "samples"], [cells(n, f"{c:,}") for n, c in domains.items()]))
    if data == "domainnet":
        theirs = paper()["domainnet"]
        rows = [[Cell(title(m)), *cells(*(f"{a:.2f} ({s:.2f})" for a, s in values))] for m, values in theirs["cells"].items()]
        made.append(Table("domains-paper", "The paper's table", ["method", *theirs["domains"], "average"], rows))
    return made


def _sheet(data: str) -> list[Figure]:
    """One class as every domain shows it, where the data are at hand."""
    if not_at_hand(data):
        return []

    def draw(path: Path, width: float) -> Path:
        from matplotlib import pyplot as plt

        from pfedsim import data as datasets
        from pfedsim.report.figures import saved

        found: Any = datasets.read(data, size=base(data).get("size"))
        names = np.unique(found.domain)
        across = 4 if width < 5 else 6
        figure, grid = plt.subplots(
            len(names), across, figsize=(width, 1.25 * width / across * len(names)), layout="constrained", squeeze=False
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
