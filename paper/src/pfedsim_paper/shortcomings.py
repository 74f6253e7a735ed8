"""Table 1: what each similarity-based method costs and asks for, measured; FedMD's column is the
paper's."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

from pfedsim.experiments import Cell, Store
from pfedsim.report import Document, Entry, Section, Table, size
from pfedsim_paper import overhead, privacy
from pfedsim_paper.grid import Runs, runs, title
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import Choice, grid

ROWS = {
    "communication": "Heavy Communication Load",
    "privacy": "High Privacy Risk",
    "public": "Need Public Data",
    "computation": "Heavy Computation Load",
}
HEAVY = 1.1  # times FedAvg: what counts as heavy here
RISKY = 0.7  # AUROC: what counts as telling


def _table_3(choice: Choice) -> Choice:
    """The runs of the main table that bytes are taken from: at the paper's number of rounds, which a pass
    once a run is spread over."""
    return choice.of(methods=privacy.METHODS, alphas=(0.1,))


def plan(choice: Choice) -> list[Cell]:
    """Runs of `accuracy`, `overhead` and `privacy`."""
    choice = replace(choice, full=False)  # one seed of one set: a table of words
    return grid(_table_3(choice)) + overhead.plan(choice) + privacy.plan(choice)


def report(store: Store, choice: Choice) -> Document:
    choice = replace(choice, full=False)
    costs = next((r.found for c in overhead.plan(choice) if (r := store.find(c))), None)
    chosen = _table_3(choice)
    sent = {m: _sent(runs(store, chosen, chosen.data[0], m, chosen.alphas[0])) for m in chosen.methods}
    readings = {str(c.words["method"]): r.found for c in privacy.plan(choice) if (r := store.find(c))}
    columns = paper()["shortcomings"]["columns"]
    rows: list[list[Entry]] = []
    for key, words in ROWS.items():
        theirs = paper()["shortcomings"][key]
        rows.append([Entry(f"{words}, paper"), *(Entry("yes" if yes else "no") for yes in theirs)])
        rows.append(
            [
                Entry(f"{words}, measured"),
                *(Entry(_measured(key, m, costs, sent, readings)) for m in columns),
            ]
        )
    table = Table(
        "shortcomings",
        "The paper's Table 1 with what was measured under each row",
        ["weakness", *("FedMD (from the paper)" if m == "fedmd" else title(m) for m in columns)],
        rows,
        rules=[2, 4, 6],
        prose=True,
        notes=[
            "Communication: bytes in both directions relative to FedAvg, in the runs of Table 3 with Dir(0.1). "
            "Computation: seconds per sample relative to "
            f"FedAvg (FedFomo trains on four fifths of its part). Above {HEAVY} counts as heavy. "
            "Privacy: what is sent, and the "
            "AUROC with which the server separates present from absent classes (`pfedsim reproduce "
            f"privacy`); above {RISKY} counts "
            f"as a risk; FedAvg's clients: {_told('fedavg', readings)}. Public data: none of these "
            "methods uses any. FedMD "
            "is not implemented here."
        ],
    )
    return Document("shortcomings", "Shortcomings of similarity-based methods", [Section("", [table])])


def _sent(several: Runs) -> float | None:
    """Bytes both ways, per client and round."""
    ways = [several.number(f"bytes_{way}_per_client_round") for way in ("down", "up")]
    return None if None in ways else sum(w for w in ways if w is not None)


def _told(method: str, readings: dict[str, Any]) -> str:
    told = {way: got["auroc"] for way, got in readings.get(method, {}).items() if isinstance(got, dict)}
    return (
        "; ".join(f"AUROC {v:.3f} from the {way}" for way, v in told.items() if v is not None)
        or "not measured yet"
    )


def _measured(
    row: str, method: str, costs: Any, sent: dict[str, float | None], readings: dict[str, Any]
) -> str:
    if method == "fedmd":
        return "not measured"
    if row == "public":
        return "no, by construction"
    if row == "privacy":
        if method not in readings or not costs:
            return "not measured yet"
        extra = costs["methods"].get(method, {}).get("sent beyond a model", [])
        risky = any(
            got["auroc"] > RISKY
            for got in readings[method].values()
            if isinstance(got, dict) and got["auroc"] is not None
        )
        return f"{'yes' if risky else 'no'}: {' and '.join(['a model', *extra])} sent; {_told(method, readings)}"
    if row == "communication":
        mine, base = sent.get(method), sent.get("fedavg")
        if mine is None or not base:
            return "not measured yet"
        return f"{_heavy(mine / base)} ({size(mine)})"
    if not costs or not {method, "fedavg"} <= costs["methods"].keys():
        return "not measured yet"
    return _heavy(mean(costs["methods"][method]["xi"]) / mean(costs["methods"]["fedavg"]["xi"]))


def _heavy(times: float) -> str:
    return f"{'yes' if times > HEAVY else 'no'}: {times:.2f}"
