"""The main table: twelve methods, data sets, two partitions (Table 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pfedsim.experiments import Cell, Record, Store, unpacked
from pfedsim.report import Document, Entry, Figure, Section, Table, entries, ranked, size
from pfedsim_paper import as_printed
from pfedsim_paper import grid as grids
from pfedsim_paper.each_client import clients
from pfedsim_paper.grid import CLIENTS, MICRO, TUNED, TUNED_CLIENTS, Runs, dealt, points, set_name, title
from pfedsim_paper.paper import printed
from pfedsim_paper.protocol import OF_THE_PAPER, Choice, as_large_as_printed, grid

Found = dict[float | None, dict[str, Runs]]


def defaults(choice: Choice) -> Choice:
    return choice.of(full_data=OF_THE_PAPER)


def plan(choice: Choice) -> list[Cell]:
    return grid(defaults(choice))


def report(store: Store, choice: Choice) -> Document:
    """One section for each data set of which anything is there."""
    choice = defaults(choice)
    sections: list[Section] = []
    printed_so: dict[str, Table] = {}
    scales: list[str] = []
    for data in choice.data:
        found = grids.by_alpha(store, choice, data)
        if found:
            beside = _beside(data, found)
            sections += _sections(data, found, beside)
            printed_so |= {set_name(data): beside} if None not in found else {}
            scales.append(f"{set_name(data)}: {_scale(data, found)}")
        else:
            sections.append(Section(set_name(data), [f"Nothing of {set_name(data)} is measured yet."]))
    return Document(
        "accuracy", "Accuracy of the twelve methods", [*sections, *as_printed.accuracy(printed_so, scales)]
    )


def _sections(data: str, found: Found, beside: Table) -> list[Section]:
    name = set_name(data)
    return [
        Section(
            f"{name}: {'compared with the paper' if data in OF_THE_PAPER else 'accuracy'}",
            [_scale(data, found), beside],
        ),
        Section(
            f"{name}: both kinds of score",
            [BOTH_KINDS, *(_kinds(data, alpha, by) for alpha, by in found.items())],
        ),
        Section(f"{name}: over the rounds", [curves(data, found)]),
        Section(f"{name}: client by client", [clients(data, found)]),
        *_similarities(data, found),
    ]


REMARKS = {
    "tiny-imagenet": "The paper has 110,000 images on 100 clients, 10% of them in each "
    "of 200 rounds, and torchvision's ImageNet "
    "weights V2, where we use V1. Only the order of the methods can be compared.",
    "mnist": "Not in the paper: the paper's setting with other data.",
    "fashion-mnist": "Not in the paper: the paper's setting with other data.",
    "heart": "Not in the paper: each hospital is a client.",
    "watch": "Not in the paper: each person is a client. A person's windows overlap by "
    "half, so the train and test halves are not independent and the accuracies of all methods are too high.",
}


def _first(found: Found) -> Record:
    return next(
        record for by in found.values() for several in by.values() for record in several.by_seed.values()
    )


def _scale(data: str, found: Found) -> str:
    return " ".join([grids.scale(_first(found)), *([REMARKS[data]] if data in REMARKS else [])])


BOTH_KINDS = (
    "The paper's table mixes two kinds of score: it scores Local-Only, FedFomo and pFedSim with the "
    "client's own model after local training, and the other methods with the server's model before "
    "local training. The tables here give both for every method: as served, and after the same plain local "
    "epochs, starting from the model that the method sends out for training (pFedSim: its new mix)."
)


def _beside(data: str, found: Found) -> Table:
    methods = list(next(iter(found.values())))
    columns: list[list[Entry]] = [entries(*map(title, methods))]
    known = any(printed("accuracy", m, data, alpha) for m in methods for alpha in found)
    same = known and as_large_as_printed(_first(found).cell)  # else only the order can be compared
    head = ["ours", *(["paper"] if known else []), *(["difference"] if same else []), "seeds"]
    for alpha, by in found.items():
        means = [by[m].mean() for m in methods]
        theirs = [printed("accuracy", m, data, alpha) for m in methods]
        columns.append(ranked(means, [by[m].text() for m in methods]))
        if known:
            columns.append(
                ranked(
                    [t and t[0] for t in theirs], [f"{t[0]:.2f} ({t[1]:.2f})" if t else "-" for t in theirs]
                )
            )
        if same:
            columns.append(
                [
                    points(a - t[0] if a is not None and t else None)
                    for a, t in zip(means, theirs, strict=True)
                ]
            )
        columns.append(entries(*(by[m].seeds for m in methods)))
    return Table(
        f"accuracy-{data}",
        (
            f"{set_name(data)}: accuracy over all test samples in %, as served, mean (std) over seeds; best "
            "bold, second underlined"
        ),
        ["method", *head * len(found)],
        list(zip(*columns, strict=True)),
        groups=[(dealt(alpha, data), len(head)) for alpha in found],
        rules=[len(methods) - 1],
    )


def _kinds(data: str, alpha: float | None, by: Mapping[str, Runs]) -> Table:
    def scores(path: tuple[str, ...]) -> list[Entry]:
        return ranked([r.mean(path) for r in by.values()], [r.text(path) for r in by.values()])

    worst = entries(*(r.text(("served", "worst_tenth")) for r in by.values()))
    alone = by.get("local", Runs({}))
    shares = [None if m == "local" else grids.worse_off(r, alone) for m, r in by.items()]
    worse = [Entry("-") if s is None else Entry(f"{100 * s:.0f}%", value=s) for s in shares]
    columns = [
        entries(*map(title, by)),
        scores(MICRO),
        scores(CLIENTS),
        worst,
        worse,
        scores(TUNED),
        scores(TUNED_CLIENTS),
    ]
    for way in ("down", "up"):
        counts = [r.number(f"bytes_{way}_per_client_round") for r in by.values()]
        columns.append([Entry("-") if c is None else Entry(size(c), value=c) for c in counts])
    return Table(
        f"kinds-{data}-{alpha or 0:g}",
        (
            f"{set_name(data)}, {dealt(alpha, data)}: as served and after local epochs; clients worse off than "
            "alone; bytes per client and round"
        ),
        [
            "method",
            "all samples",
            "client mean",
            "worst tenth",
            "worse off",
            "all samples",
            "client mean",
            "received",
            "sent",
        ],
        list(zip(*columns, strict=True)),
        groups=[("as served", 4), ("after local epochs", 2), ("", 2)],
        rules=[len(by) - 1],
    )


CLOSE = 8  # points below the best: what the closer panel shows


def curves(data: str, found: Found) -> Figure:
    """Accuracy as served, round by round; where some lie far below, the best once more and closer."""
    panels: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    limits: dict[str, tuple[float, float]] = {}
    for alpha, by in found.items():
        panels[dealt(alpha, data)] = {title(m): r.curves() for m, r in by.items() if r.by_seed}
    for alpha, by in found.items():
        ends = {title(m): r.mean() or 0 for m, r in by.items() if r.by_seed}
        name, best = f"{dealt(alpha, data)}: the best, closer", max(ends.values())
        near = {m: several for m, several in panels[dealt(alpha, data)].items() if ends[m] > best - CLOSE}
        if 1 < len(near) < len(ends):
            panels[name], limits[name] = near, (best - CLOSE, best + 1)

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import lines

        return lines(panels, path, width, "round", "accuracy as served, %", limits=limits)

    return Figure(
        f"curves-{data}",
        f"{set_name(data)}: accuracy over the rounds (mean over seeds; band: their range)",
        draw,
    )


def _similarities(data: str, found: Found) -> list[Section]:
    maps: dict[str, np.ndarray] = {}
    for alpha, by in found.items():
        for record in list(by.get("pfedsim", Runs({})).by_seed.values())[:1]:
            if "similarity" in record.found:
                maps[dealt(alpha, data)] = unpacked(
                    record.found["similarity"], len(record.found["clients"]["samples"])
                )
    if not maps:
        return []

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import by_cluster, heat_maps

        orders = {name: by_cluster(matrix) for name, matrix in maps.items()}
        ordered = {name: matrix[np.ix_(orders[name], orders[name])] for name, matrix in maps.items()}
        clients = {name: [str(i) for i in order] for name, order in orders.items()}
        return heat_maps(
            ordered,
            path,
            width,
            "similarity (Eq. 3); grey: never met",
            names=clients,
            axis="client, ordered by cluster",
            most=2,
        )

    figure = Figure(
        f"similarity-{data}",
        f"{set_name(data)}: similarities that pFedSim's server holds at the end (grey: never met)",
        draw,
    )
    return [Section(f"{set_name(data)}: who resembles whom", [figure])]
