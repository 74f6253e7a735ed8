"""Table 1: what each similarity-based method costs and asks for, measured; FedMD's column is the paper's."""

from __future__ import annotations

from statistics import mean
from typing import Any

from pfedsim.report.document import Cell, Document, Section, Table
from pfedsim.report.tables import size
from pfedsim.studies import overhead, privacy
from pfedsim.studies.cells import Cell as Run
from pfedsim.studies.cells import Store
from pfedsim.studies.grid import title
from pfedsim.studies.paper import paper
from pfedsim.studies.protocol import Choice

ROWS = {
    "communication": "Heavy Communication Load",
    "privacy": "High Privacy Risk",
    "public": "Need Public Data",
    "computation": "Heavy Computation Load",
}
HEAVY = 1.1  # times FedAvg: what counts as heavy here


def plan(choice: Choice) -> list[Run]:
    """The runs of `overhead` and `privacy`."""
    return overhead.plan(choice) + privacy.plan(choice)


def report(store: Store, choice: Choice) -> Document:
    costs = next((r.found for c in overhead.plan(choice) if (r := store.find(c))), None)
    readings = {str(c.words["method"]): r.found for c in privacy.plan(choice) if (r := store.find(c))}
    columns = paper()["shortcomings"]["columns"]
    rows: list[list[Cell]] = []
    for key, words in ROWS.items():
        theirs = paper()["shortcomings"][key]
        rows.append([Cell(f"{words}, paper"), *(Cell("yes" if yes else "no") for yes in theirs)])
        rows.append([Cell(f"{words}, measured"), *(Cell(_measured(key, m, costs, readings)) for m in columns)])
    table = Table(
        "shortcomings",
        "The paper's Table 1 with what was measured under each row",
        ["weakness", *("FedMD (from the paper)" if m == "fedmd" else title(m) for m in columns)],
        rows,
        rules=[2, 4, 6],
        prose=True,
        notes=[f"Communication and computation: times FedAvg's bytes (both ways) and seconds per sample; above {HEAVY} counts as heavy. "
               "Privacy: what is sent beyond a model, and the AUROC with which the server tells present from absent classes "
               "(`pfedsim reproduce privacy`). Public data: none of these methods has a place for any. FedMD is not implemented here."],
    )  # fmt: skip
    return Document("shortcomings", "Shortcomings of similarity-based methods", [Section("", [table])])


def _measured(row: str, method: str, costs: Any, readings: dict[str, Any]) -> str:
    if method == "fedmd":
        return "not measured"
    if row == "public":
        return "no, by construction"
    if row == "privacy":
        extra = ", ".join(costs["methods"].get(method, {}).get("sent beyond a model", [])) if costs else ""
        told = {way: got["auroc"] for way, got in readings.get(method, {}).items() if isinstance(got, dict)}
        read = [f"AUROC {v:.3f} from the {way}" for way, v in told.items() if v is not None]
        sent = [f"a model{' and ' + extra if extra else ''}"] if costs else []
        return "; ".join([*sent, *read]) or "not measured yet"
    if not costs or method not in costs["methods"] or "fedavg" not in costs["methods"]:
        return "not measured yet"
    mine, base = costs["methods"][method], costs["methods"]["fedavg"]
    if row == "communication":
        times = (mine["bytes_down"] + mine["bytes_up"]) / (base["bytes_down"] + base["bytes_up"])
        return f"{'yes' if times > HEAVY else 'no'}: {times:.2f} ({size(mine['bytes_down'] + mine['bytes_up'])})"
    times = mean(mine["xi"]) / mean(base["xi"])
    return f"{'yes' if times > HEAVY else 'no'}: {times:.2f}"
