"""Our numbers in the layout of the paper's tables, from the tables that readers see."""

from __future__ import annotations

from pathlib import Path

import pytest
from pfedsim_paper import as_printed, rho
from pfedsim_paper.protocol import Choice, cell
from pfedsim_paper.studies import STUDIES
from test_cells import record

from pfedsim.experiments import Store
from pfedsim.report.document import Document, Entry, Section, Table, entries, markdown
from pfedsim.report.latex import latex_table


def only(sections: list[Section]) -> Table:
    ((table,),) = [section.parts for section in sections]
    assert isinstance(table, Table)
    assert table.for_papers
    return table


def texts(table: Table) -> list[list[str]]:
    return [[c.text for c in row] for row in table.rows]


def test_table_2_has_ours_of_the_four_pairs() -> None:
    rows = [
        entries("data similarity", "1.00", "0.50", "0.33", "0.00", "1"),
        entries("WDB", "1.1e-03", "0.2", "0.3", "0.4", "2"),
    ]
    made = only(as_printed.metrics({"20 steps": Table("m", "M", ["measure", *"abcd", "paper"], rows)}))
    assert made.head == ["Metric", *"abcd"]
    assert texts(made) == [
        ["Data Similarity", "1.00", "0.50", "0.33", "0.00"],
        ["WDB", "1.1e-03", "0.2", "0.3", "0.4"],
    ]
    assert r"\begin{tabular}{l|c|c|c|c}" in latex_table(made)
    assert r"WDB & $1.1 \times 10^{-3}$ & 0.2" in latex_table(made)


def test_table_6_has_sets_across_and_marks_the_best_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for data in ("cifar10", "cinic10"):
        for r, micro in ((0.0, 0.5), (0.5, 0.8), (1.0, 0.6)):
            for alpha in (0.1, 0.5):
                store.put(record(cell(data, rho.with_rho(r), alpha, 42, {}), micro))
    document = rho.report(store, Choice(data=("cifar10", "cinic10")))
    made = next(t for t in document.tables() if t.name == "table-6")
    assert made.head == ["#Partition", *["Dir(0.1)", "Dir(0.5)"] * 2]
    assert list(made.groups) == [("CIFAR-10", 2), ("CINIC-10", 2)]
    assert [(c.text, c.mark) for c in (row[1] for row in made.rows) if c.text != "-"] == [
        ("50.00", ""),
        ("80.00", "best"),
        ("60.00", ""),
    ]
    tex = latex_table(made)
    assert r"\begin{tabular}{lcc|cc}" in tex
    assert tex.count(r"\midrule") == 3
    assert r"$\rho$ = 1 (FedAvg) & 60.00" in tex
    assert "as the paper prints" not in markdown(document)


def test_table_7_has_seconds_by_set_and_what_was_sent() -> None:
    time = Table("o", "O", ["method", "wall", "processor"], [entries("FedAvg", "1.90 (0.02)", "9")])
    sent = Table(
        "b",
        "B",
        ["method", "sent", "received, in models", "sent, in models"],
        [entries("FedAvg", "9 kB", "1.06", "1.00")],
    )
    made = only(as_printed.overhead({"CIFAR-10": (time, sent), "EMNIST": (time, sent)}))
    assert texts(made) == [["FedAvg", "1.90 (0.02)", "1.90 (0.02)", "1.06", "1.00"]]
    tex = latex_table(made)
    assert r"\begin{tabular}{lcc|cc}" in tex
    assert r"\#Dataset & CIFAR-10 & EMNIST & received & sent \\" in tex
    assert r"\multicolumn{2}{c}{$\xi_m$, in $\nu_m$}" in tex


def test_table_8_ends_with_the_average() -> None:
    rows = [
        [*entries("FedAvg", "10.00"), Entry("20.00", "best"), *entries("15.00", "99.00", "42")],
        entries("pFedSim", *"12345"),
    ]
    table = Table("d", "D", ["method", "real", "sketch", "average", "after local epochs", "seeds"], rows)
    made = only(as_printed.domains({"PACS": (table, "9,991 samples")}))
    assert (made.title, list(made.notes)) == (
        "Ours, as the paper prints its Table 8: PACS",
        ["PACS: 9,991 samples"],
    )
    assert made.head == ["Method", "real", "sketch", "Average"]
    tex = latex_table(made)
    assert r"\begin{tabular}{l|cc|c}" in tex
    assert r"FedAvg & 10.00 & \textbf{20.00} & 15.00 \\" in tex


@pytest.mark.parametrize(
    ("study", "number"), [("accuracy", 3), ("metrics", 2), ("rho", 6), ("overhead", 7), ("domainnet", 8)]
)
def test_what_is_measured_is_printed(study: str, number: int) -> None:
    document: Document = STUDIES[study].report(Store(Path(__file__).parents[1] / "results"), Choice())
    assert [t for t in document.tables() if t.for_papers and t.name.startswith(f"table-{number}")]


def test_nothing_measured_is_nothing_to_print() -> None:
    assert not any(
        [
            as_printed.metrics({}),
            as_printed.accuracy({}, []),
            as_printed.rho({}),
            as_printed.overhead({}),
            as_printed.domains({}),
        ]
    )
