"""What the paper's table mixes or never asks: does similarity matter, do redrawn batches, do shared norm
statistics?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfedsim.experiments import Cell, Store
from pfedsim.report import Document, Entry, Section, Table, entries, mean_std, ranked
from pfedsim_paper.grid import (
    CLIENTS,
    MICRO,
    TUNED,
    TUNED_CLIENTS,
    Runs,
    dealt,
    runs,
    scale,
    set_name,
    title,
)
from pfedsim_paper.pictures import differences
from pfedsim_paper.protocol import Choice, grid

CONTROL = "pfedsim_paper.control:WarmFedPer"
FORMS = ("pfedsim", "pfedsim:reference", "pfedsim:uniform", CONTROL)
SEEDS = (42, 43, 44)
SCORES = (MICRO, CLIENTS, TUNED, TUNED_CLIENTS)
HEAD = ["all samples", "client mean", "all samples", "client mean", "seeds"]
GROUPS = [("as served", 2), ("after local epochs", 2), ("", 1)]


def _parts(choice: Choice) -> list[tuple[Choice, dict[str, Any]]]:
    """The runs of each question, and what is switched in them."""
    return [
        (choice.of(methods=FORMS, seeds=SEEDS), {}),
        (choice.of(methods=("fedavg", "pfedsim"), seeds=SEEDS), {"shuffle": True}),
        (choice.of(methods=("fedavg", "fedprox", "pfedsim")), {"buffers": "shared"}),
    ]


def plan(choice: Choice) -> list[Cell]:
    """Every switched run, and the same run unswitched."""
    return [
        cell for part, switched in _parts(choice) for more in ({}, switched) for cell in grid(part, **more)
    ]


def report(store: Store, choice: Choice) -> Document:
    forms, shuffled, shared = _parts(choice)
    sections = []
    for data in choice.of().data:
        name = set_name(data)
        sections += [
            Section(
                f"{name}: does similarity matter?",
                [
                    MATTER,
                    *_scale(store, forms[0], data),
                    *_forms(store, data, forms[0]),
                    *differences(store, data, *forms, "pFedSim minus its other forms and the control"),
                ],
            ),
            Section(
                f"{name}: shuffling in every epoch",
                [
                    REDRAWN,
                    *_switched(store, data, shuffled, "shuffle", "stored order", "redrawn"),
                    *differences(store, data, *shuffled, "batches redrawn minus in stored order"),
                ],
            ),
            Section(
                f"{name}: norm statistics averaged",
                [
                    AVERAGED,
                    *_switched(store, data, shared, "buffers", "local", "shared"),
                    *differences(store, data, *shared, "norm statistics averaged minus the clients' own"),
                ],
            ),
        ]
    return Document("questions", "What the paper mixes or does not ask", sections)


def answers(store: Store, choice: Choice) -> list[str]:
    """What the finished runs say, in a sentence for each question."""
    (forms, _), (shuffled, redrawn), (shared, averaged) = _parts(choice)
    asked: list[tuple[str, tuple[Choice, str, dict[str, Any]], tuple[Choice, str]]] = [
        (
            "Using similarity instead of equal weights changes pFedSim by",
            (forms, "pfedsim", {}),
            (forms, "pfedsim:uniform"),
        ),
        (
            "Shuffling the batches in every epoch changes pFedSim by",
            (shuffled, "pfedsim", redrawn),
            (shuffled, "pfedsim"),
        ),
        (
            "Averaging the norm statistics changes FedAvg by",
            (shared, "fedavg", averaged),
            (shared, "fedavg"),
        ),
    ]
    made = []
    for words, (part, method, switched), (other, base) in asked:
        told = []
        for alpha in part.alphas:
            here, there = (
                runs(store, part, part.data[0], method, alpha, **switched),
                runs(store, other, other.data[0], base, alpha),
            )
            told += [_told(alpha, here, there)] if here.common(there).by_seed else []
        made += [f"{words} {'; '.join(told)}."] if told else []
    return made


def _told(alpha: float, here: Runs, there: Runs) -> str:
    """By how many points, both ways of scoring, mean (std) over the seeds that both have."""
    served, tuned = (mean_std(here.minus(there, keys), "+") for keys in (MICRO, TUNED))
    seeds = here.common(there).seeds
    return (
        f"{served} points as served and {tuned} after local epochs with {dealt(alpha)} "
        f"(seed{'' if seeds.isdigit() else 's'} {seeds})"
    )


MATTER = (
    "Four variants: pFedSim as the paper writes it (Eq. 3); as in the author's code (`reference`); with"
    " equal weights for all clients met (`uniform`, which ignores the similarity); and FedPer after the"
    " same warm-up (one extractor for all, personal classifiers). FedPer is served before local "
    "training and pFedSim after it, so compare the columns after local epochs."
)


REDRAWN = (
    "The paper does not say whether batches are shuffled. In the author's code a client's samples keep "
    "their stored order, so every epoch has the same batches (`shuffle = false`, the default of all "
    "studies here). Most other code shuffles in every epoch."
)
AVERAGED = (
    "In the author's code the running means and variances of norm layers stay at the client (`buffers ="
    " local`, the default of all studies here), even for methods that share everything else. The "
    "server's model is then scored with the statistics of the client's own last training. With "
    "`shared`, they are averaged like the weights. The difference shows how much of FedAvg's score as "
    "served is due to these statistics."
)


def _scale(store: Store, choice: Choice, data: str) -> list[str]:
    """How large these runs are, where one is finished."""
    return [
        scale(record)
        for record in store.records(cell for cell in grid(choice) if cell.words["data"] == data)[:1]
    ]


def _cells(found: Sequence[tuple[str, Runs]]) -> list[list[Entry]]:
    columns = [entries(*(name for name, _ in found))]
    for keys in SCORES:
        columns.append(ranked([r.mean(keys) for _, r in found], [r.text(keys) for _, r in found]))
    columns.append(entries(*(r.seeds for _, r in found)))
    return [list(row) for row in zip(*columns, strict=True)]


def _forms(store: Store, data: str, choice: Choice) -> list[Table]:
    made = []
    for alpha in choice.alphas:
        where = f"{set_name(data)}, {dealt(alpha)}"
        found = {m: runs(store, choice, data, m, alpha) for m in choice.methods}
        shown = [(title(m), r) for m, r in found.items()]
        made.append(
            Table(
                f"forms-{data}-{alpha:g}",
                f"{where}: accuracy in %",
                ["method", *HEAD],
                _cells(shown),
                GROUPS,
            )
        )
        base, *others = found.items()
        rows = [
            entries(
                title(m),
                *(mean_std(base[1].minus(r, keys), "+") for keys in SCORES),
                r.common(base[1]).seeds,
            )
            for m, r in others
        ]
        heading = f"{where}: {title(base[0])} minus the others in points, mean (std) over seeds"
        made.append(
            Table(f"forms-gaps-{data}-{alpha:g}", heading, [f"{title(base[0])} minus", *HEAD], rows, GROUPS)
        )
    return made


def _switched(
    store: Store, data: str, part: tuple[Choice, dict[str, Any]], word: str, off: str, on: str
) -> list[Table]:
    choice, switched = part
    made = []
    for alpha in choice.alphas:
        rows: list[list[Entry]] = []
        for method in choice.methods:
            there = runs(store, choice, data, method, alpha, **switched)
            here = runs(store, choice, data, method, alpha)
            here = here.common(there) if there.by_seed else here  # like with like
            rows += _cells([(f"{title(method)}, {off}", here), (f"{title(method)}, {on}", there)])
            rows.append(
                entries(
                    "difference, seed by seed",
                    *(mean_std(there.minus(here, keys), "+") for keys in SCORES),
                    there.common(here).seeds,
                )
            )
        rows = [
            [Entry(c.text, "", c.value) for c in row] for row in rows
        ]  # a difference is the point here, not who is best
        made.append(
            Table(
                f"{word}-{data}-{alpha:g}",
                f"{set_name(data)}, {dealt(alpha)}: accuracy in %",
                ["method", *HEAD],
                rows,
                GROUPS,
            )
        )
    return made
