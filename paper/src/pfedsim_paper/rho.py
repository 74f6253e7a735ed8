"""The role of the generalization phase: pFedSim with rho from 0 to 1 (Table 6)."""

from __future__ import annotations

from pathlib import Path

from pfedsim.experiments import Cell, Store
from pfedsim.report import DAGGERS, Document, Entry, Figure, Section, Table, entries, ranked
from pfedsim_paper import as_printed
from pfedsim_paper.grid import TUNED, Runs, dealt, points, runs, scale, set_name
from pfedsim_paper.paper import printed, wrong
from pfedsim_paper.protocol import OF_THE_PAPER, Choice, grid

RHOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def with_rho(rho: float) -> str:
    """Where another study has the same run under another name, that name: 1 is FedAvg to the bit, 0.5 the
    default."""
    return {0.5: "pfedsim", 1.0: "fedavg"}.get(rho, f"pfedsim(rho={rho:g})")


def defaults(choice: Choice) -> Choice:
    return choice.of(methods=[with_rho(r) for r in RHOS], full_data=OF_THE_PAPER)


def plan(choice: Choice) -> list[Cell]:
    return grid(defaults(choice))


def found(store: Store, choice: Choice, data: str, alpha: float) -> dict[float, Runs]:
    """rho -> its runs."""
    return {r: runs(store, choice, data, with_rho(r), alpha) for r in RHOS}


def report(store: Store, choice: Choice) -> Document:
    choice = defaults(choice)
    sections: list[Section] = []
    tables: dict[str, Table] = {}
    for data in choice.data:
        by_alpha = {alpha: found(store, choice, data, alpha) for alpha in choice.alphas}
        if any(r.by_seed for by in by_alpha.values() for r in by.values()):
            first = next(
                r for by in by_alpha.values() for several in by.values() for r in several.by_seed.values()
            )
            tables[set_name(data)] = _table(data, by_alpha)
            sections.append(
                Section(set_name(data), [scale(first), tables[set_name(data)], _figure(data, by_alpha)])
            )
    sections += as_printed.rho(tables)
    nothing = [Section("", ["Nothing is measured yet."])]
    return Document("rho", "The role of the generalization phase", sections or nothing)


def of_paper(data: str, alpha: float) -> dict[float, tuple[float, float]]:
    """The paper's cells by rho, without those that are known to be wrong."""
    right = [r for r in RHOS if not wrong("rho", row=f"{r:g}", data=data, alpha=alpha)]
    return {r: theirs for r in right if (theirs := printed("rho", f"{r:g}", data, alpha))}


def _table(data: str, by_alpha: dict[float, dict[float, Runs]]) -> Table:
    columns: list[list[Entry]] = [
        entries(*(f"rho = {r:g}" + (" (FedAvg)" if r == 1 else "") for r in RHOS))
    ]
    notes: list[str] = []
    for alpha, by in by_alpha.items():
        right = of_paper(data, alpha)
        theirs = [right.get(r) for r in RHOS]
        words = []
        for r in RHOS:
            t, why = (
                printed("rho", f"{r:g}", data, alpha),
                wrong("rho", row=f"{r:g}", data=data, alpha=alpha),
            )
            words.append(
                "-" if t is None else f"{t[0]:.2f} ({t[1]:.2f})" + (DAGGERS[len(notes)] if why else "")
            )
            notes += [f"{DAGGERS[len(notes)]} {why}"] if why and t else []
        means = [by[r].mean() for r in RHOS]
        columns.append(ranked(means, [by[r].text() for r in RHOS]))
        columns.append(ranked([t and t[0] for t in theirs], words))
        columns.append(
            [points(a - t[0] if a is not None and t else None) for a, t in zip(means, theirs, strict=True)]
        )
        columns.append(entries(*(by[r].text(TUNED) for r in RHOS)))
    return Table(
        f"rho-{data}",
        f"{set_name(data)}: accuracy of pFedSim in %, as served, and after local epochs from what it "
        "hands out; seeds "
        + ", ".join(dict.fromkeys(by[r].seeds for by in by_alpha.values() for r in RHOS if by[r].by_seed)),
        ["", *["ours", "paper", "difference", "after epochs"] * len(by_alpha)],
        list(zip(*columns, strict=True)),
        groups=[(dealt(alpha), 4) for alpha in by_alpha],
        rules=[1, len(RHOS) - 1],
        notes=notes,
    )


def _figure(data: str, by_alpha: dict[float, dict[float, Runs]]) -> Figure:
    shown: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    for alpha, by in by_alpha.items():
        have = [r for r in RHOS if by[r].by_seed]
        theirs = [(r, t[0]) for r, t in of_paper(data, alpha).items()]
        panel = {"ours, as served": [(have, [by[r].mean() or 0 for r in have])]} if have else {}
        if have and all(by[r].mean(TUNED) is not None for r in have):
            panel["ours, after local epochs"] = [(have, [by[r].mean(TUNED) or 0 for r in have])]
        if theirs:
            panel["the paper"] = [([r for r, _ in theirs], [v for _, v in theirs])]
        if panel:
            shown[dealt(alpha)] = panel

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import lines

        return lines(shown, path, width, "rho", "accuracy, %")

    return Figure(
        f"rho-{data}", f"{set_name(data)}: accuracy against the share of rounds that warm up", draw
    )
