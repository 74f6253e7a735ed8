"""Tables, marks and pages from handmade records."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pfedsim_paper import accuracy, gaps, overhead, privacy, rho, shortcomings, speed
from pfedsim_paper.command import NAMES, reproduce
from pfedsim_paper.protocol import Choice, cell
from pfedsim_paper.studies import STUDIES
from test_cells import record
from typer.testing import CliRunner

from pfedsim.cli.app import app
from pfedsim.cli.options import numbers
from pfedsim.errors import Error
from pfedsim.experiments import Cell, Record, Store
from pfedsim.report.document import (
    Document,
    Entry,
    Figure,
    Section,
    Table,
    csv_text,
    html,
    markdown_table,
    ranked,
    write,
)
from pfedsim.report.latex import latex_table
from pfedsim.report.screen import terminal

ROOT = Path(__file__).parent.parent.parent


def tables(document: Document) -> dict[str, Table]:
    return {table.name: table for table in document.tables()}


def test_the_main_table_stands_beside_the_papers(store: Store) -> None:
    document = accuracy.report(store, Choice(seeds=(42, 43)))
    table = next(t for t in document.tables() if t.name == "accuracy-cifar10")
    rows = {row[0].text: row for row in table.rows}
    ours, paper, difference, seeds = rows["pFedSim"][1:5]
    assert (ours.text, ours.mark) == ("87.00 (1.41)", "best")  # std of 88 and 86, ddof 1
    assert (paper.text, difference.text, seeds.text) == ("86.76 (0.84)", "+0.24", "42, 43")
    assert rows["Local-Only"][1].mark == "second"
    assert rows["FedAvg"][3].text == "+5.23"
    assert [c.text for c in rows["FedProx"][1:5]] == ["-", "29.70 (2.29)", "-", "-"]
    kinds = next(t for t in document.tables() if t.name == "kinds-cifar10-0.1")
    assert kinds.rows[0][0].text == "Local-Only"
    assert kinds.rows[1][4].text == "0%"  # every handmade client has the same accuracies
    assert list(kinds.groups) == [("as served", 4), ("after local epochs", 2), ("", 2)]
    assert kinds.head[3:5] == ["worst tenth", "worse off"]


def test_a_far_cell_is_listed_with_the_causes_tried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = next(c for c in gaps.causes() if c.methods == ["fedper"])
    monkeypatch.setattr(gaps, "causes", lambda: [cause])
    store.put(record(cell("cifar10", "fedper", 0.1, 42, {}), 0.70))
    before = tables(gaps.report(store, Choice(methods=("fedper",))))["gaps-cifar10-3"]
    assert [row[-1].text for row in before.rows] == ["open", "not run"]
    assert before.rows[0][0].text == "FedPer, Dir(0.1)"
    found = record(cause.cells(Choice().of(), "cifar10", "fedper", 0.1)[42], 0.70)
    found.found["finetuned"]["micro"] = 0.825  # type: ignore[index]
    store.put(found)
    after = tables(gaps.report(store, Choice(methods=("fedper",))))["gaps-cifar10-3"]
    assert [row[-1].text for row in after.rows] == ["explained", "closes it"]
    assert after.rows[1][1].text == "82.50"


def test_a_cause_is_judged_by_what_it_moves_our_mean(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local-Only: 84 with seed 42 and 90 with 43, so 87; 84.30 (0.81) in the paper."""
    cause = gaps.Cause(["local"], "another scale of the pixels", extra={"pixels": "0..255"})
    monkeypatch.setattr(gaps, "causes", lambda: [cause])
    store.put(record(cell("cifar10", "local", 0.1, 43, {}), 0.90))
    asked = cause.cells(Choice().of(), "cifar10", "local", 0.1)
    assert list(asked) == [42]
    assert asked[42].digest in {c.digest for c in gaps.plan(Choice())}
    assert dict(asked[42].extra) == cause.extra
    for there, so in (
        (0.83, "does not"),
        (0.828, "closes it"),
        (0.81, "in the mean only"),
    ):  # 83 alone would lie near, 81 alone too low
        store.put(record(asked[42], there))
        table = tables(gaps.report(store, Choice()))["gaps-cifar10-3"]
        assert table.rows[1][-1].text == so
        assert table.rows[0][-1].text == ("explained" if so == "closes it" else "open")
    assert [c.text for c in table.rows[1][1:4]] == ["81.00", "-3.00", "84.00"]
    (said,) = gaps.in_short(store, Choice(), "cifar10")
    assert "for 0 the author's pixel scale" in said
    assert said.endswith("open: Local-Only Dir(0.1).")
    both = replace(cause, seeds=[42, 43])  # 81 and 88 against 84 and 90
    monkeypatch.setattr(gaps, "causes", lambda: [both])
    store.put(record(both.cells(Choice().of(), "cifar10", "local", 0.1)[43], 0.88))
    table = tables(gaps.report(store, Choice()))["gaps-cifar10-3"]
    assert [c.text for c in table.rows[1][1:4]] == ["84.50", "-2.50", "84.50"]
    assert (table.rows[1][0].text, table.rows[1][-1].text) == (
        "Local-Only, Dir(0.1): another scale of the pixels, seeds 42, 43",
        "closes it",
    )


def test_what_the_pixels_scale_does_to_training_is_told(store: Store) -> None:
    plain = cell("cifar10", "local", 0.1, 42, {})
    assert gaps.losses_apart(store, Choice(), "cifar10") is None
    curve = {
        "round": [1, 2],
        "micro": [0.5, 0.5],
        "mean": [0.5, 0.5],
        "train_loss": [2.02, 0.97],
    }  # 2 and 1 with pixels of 0..1
    store.put(record(Cell(plain.words, plain.kind, (("pixels", "0..255"),)), 0.8, curve=curve))
    assert gaps.losses_apart(store, Choice(), "cifar10") == pytest.approx(0.03)


def test_a_cause_is_shown_where_it_moves_a_near_cell_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local-Only: 84 with seed 42, near the paper's 84.30."""
    cause = gaps.Cause(["local"], "another scale of the pixels", extra={"pixels": "0..255"})
    monkeypatch.setattr(gaps, "causes", lambda: [cause])
    assert "near-cifar10-3" not in tables(gaps.report(store, Choice()))
    store.put(record(cause.cells(Choice().of(), "cifar10", "local", 0.1)[42], 0.80))
    assert [row[-1].text for row in tables(gaps.report(store, Choice()))["near-cifar10-3"].rows] == [
        "near",
        "moves away",
    ]


def test_a_marked_cell_of_the_paper_carries_its_footnote(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rho._table("cinic10", {0.5: {r: rho.Runs({}) for r in rho.RHOS}})
    assert "81.70 (1.03)†" in [row[2].text for row in table.rows]
    assert [note for note in table.notes if note.startswith("† ")]
    datasets = STUDIES["datasets"].report(store, Choice()).tables()[0]
    assert "805,263†" in [c.text for row in datasets.rows for c in row]


def test_best_and_second_are_told_by_the_numbers_as_printed() -> None:
    marks = [c.mark for c in ranked([86.761, 86.764, 85.0, None, 84.0], list("abcde"))]
    assert marks == ["best", "best", "second", "", ""]


def table() -> Table:
    rows = [
        [Entry("A_1"), Entry("50.00 (1.00)", "best", 50.0), Entry("5%")],
        [Entry("B|<i>"), Entry("40.00", "second", 40.0), Entry("-")],
    ]
    return Table(
        "t",
        "A & title",
        ["method", "ours", "share"],
        rows,
        groups=[("Dir(0.1)", 2)],
        rules=[1],
        notes=["† why"],
    )


def test_the_forms_of_a_table(tmp_path: Path) -> None:
    assert "| A_1 | **50.00 (1.00)** | 5% |" in markdown_table(table())
    assert r"| B\|&lt;i> | <u>40.00</u> | - |" in markdown_table(table())
    tex = latex_table(table())
    assert r"A\_1 & \textbf{50.00 (1.00)} & 5\% \\" in tex
    assert tex.count(r"\midrule") == 2
    assert r"\multicolumn{2}{c}{Dir(0.1)}" in tex
    assert r"\dag{} why" in tex
    assert csv_text([table()]).splitlines()[1:] == [
        "t,1,A_1,Dir(0.1): ours,50.00 (1.00),50.0",
        "t,1,A_1,Dir(0.1): share,5%,",
        "t,2,B|<i>,Dir(0.1): ours,40.00,40.0",
        "t,2,B|<i>,Dir(0.1): share,-,",
    ]
    page = html(Document("d", "D", [Section("S", ["a `b` <c>", table()])]))
    assert "B|&lt;i&gt;" in page
    assert "<b>50.00 (1.00)</b>" in page
    assert "<code>b</code> &lt;c&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_sentences_go_on_over_pages_in_latex() -> None:
    tex = latex_table(replace(table(), prose=True, rows=[[Entry("a"), Entry('he said "yes"'), Entry("b")]]))
    assert r"\begin{longtable}{p{0.1\textwidth}*{2}{p{0.38\textwidth}}}" in tex
    assert "he said ``yes''" in tex


def test_a_sentence_in_the_first_column_leaves_room_for_numbers() -> None:
    rows = [
        [
            Entry("a cause that takes a whole sentence to be named in full " * 2),
            Entry("1.00"),
            Entry("2.00"),
            Entry("3.00"),
        ]
    ]
    (shown,) = terminal(Table("t", "T", ["what", "one", "two", "three"], rows), 80)
    assert [column.header for column in shown.columns] == ["what", "one", "two", "three"]


def test_a_table_on_the_screen_keeps_its_first_column() -> None:
    wide = Table(
        "t",
        "T",
        ["pair", *map(str, range(10))],
        [[Entry("(i, j)"), *[Entry("0.50")] * 10]],
        groups=[("cosine", 10)],
    )
    parts = terminal(wide, 40)
    assert [len(part.columns) - 1 for part in parts] == [4, 4, 2]
    assert all(part.title == "cosine" for part in parts)


def test_a_report_is_written_in_every_form(tmp_path: Path) -> None:
    def draw(path: Path, width: float) -> Path:
        from pfedsim.report.plots import lines

        return lines({"p": {"a": [([1, 2], [1.0, 2.0])]}}, path, width, "x", "y")

    write(Document("d", "D", [Section("S", [table(), Figure("f", "a picture", draw)])]), tmp_path)
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {
        "d.md",
        "d.tex",
        "d.csv",
        "d.json",
        "d.html",
        "f.png",
        "f.svg",
    }
    assert "figures/f.png" in (tmp_path / "d.md").read_text()
    assert (tmp_path / "d.html").read_text().count("data:image/svg+xml") == 2  # wide and narrow


def test_rows_that_are_alike_come_to_lie_side_by_side() -> None:
    from pfedsim.report.plots import by_cluster

    group = np.arange(8) % 2
    matrix = np.where(group[:, None] == group[None], 0.9, 0.1)
    matrix[0, 3] = matrix[3, 0] = np.nan  # never met
    order = by_cluster(matrix)
    assert len(set(group[order][:4])) == 1


def test_sections_of_the_same_name_all_show() -> None:
    assert (
        html(Document("d", "D", [Section("S", ["first"]), Section("S", ["second"])])).count("<h2>S</h2>")
        == 2
    )


@pytest.mark.parametrize(
    ("study", "choice", "words"),
    [
        (
            "cka",
            Choice(methods=("fedavg",)),
            "cka takes no --methods; it takes --data and --alpha and --seeds",
        ),
        ("claims", Choice(alphas=(0.1,)), "claims takes no --alpha"),
        ("claims", Choice(settings={"rounds": 3}), "claims runs nothing of its own"),
        ("rho", Choice(data=("heart",)), "rho takes sets that are dealt by their labels, not heart"),
        ("accuracy", Choice(data=("heart",), alphas=(0.1,)), "heart is not dealt by --alpha"),
        (
            "gaps",
            Choice(data=("mnist",)),
            "gaps takes the paper's sets that run here at its scale, not mnist",
        ),
        ("domainnet", Choice(data=("cifar10",)), "domainnet takes sets of several domains, not cifar10"),
        (
            "similarity",
            Choice(data=("emnist",)),
            "similarity takes sets of ten classes that are dealt by their labels, not emnist",
        ),
        ("workflow", Choice(full=True), "--full changes nothing here: workflow runs the same without it"),
        ("overhead", Choice(full=True, data=("cifar10",)), "--full changes nothing here"),
        ("datasets", Choice(full=True), "--full changes nothing here"),
    ],
)
def test_what_a_study_cannot_honour_is_refused(study: str, choice: Choice, words: str) -> None:
    with pytest.raises(Error, match=words):
        STUDIES[study].check(choice)


def test_every_study_makes_a_report_of_nothing(tmp_path: Path) -> None:
    for study in STUDIES.values():
        choice = Choice(data=("digits",))
        document = study.report(Store(tmp_path), choice)
        assert document.title
        assert html(document)


def test_the_command_knows_the_studies() -> None:
    assert set(NAMES) == set(STUDIES)


def test_a_wrong_study_or_choice_is_refused_without_torch() -> None:
    code = """
import sys
from pfedsim.errors import Error
from pfedsim_paper.command import reproduce
for words in ({"name": "nosuch"}, {"name": "rho", "settings": ["seed=7"]},
              {"name": "rho", "alpha": ","}, {"name": "rho", "markdown": True}, {"methods": "fedavg", "markdown": True},
              {"name": "rho", "alpha": "x"}, {"name": "rho", "seeds": "x"}, {"name": "rho", "settings": ["x"]}):
    try:
        reproduce(**words)
    except Error as error:
        assert "\\n" not in str(error)
    else:
        raise AssertionError(words)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_whole_scale_is_every_studys() -> None:
    STUDIES["claims"].check(Choice(full=True))  # judges the larger runs
    for study in ("accuracy", "privacy", "rho", "heterogeneity", "workflow"):
        STUDIES[study].check(Choice(full=True, data=("tiny-imagenet",)))
        cells = STUDIES[study].plan(Choice(full=True, data=("tiny-imagenet",)))
        assert {c.words["clients"] for c in cells} == {100}, study  # 50 on an ordinary machine


def test_table_1_takes_bytes_of_the_main_tables_runs(store: Store) -> None:
    """A pass once a run weighs less over 200 rounds than over the 20 of `overhead`."""
    costs = {
        "xi": [1.0],
        "bytes_down": 125,
        "bytes_up": 100,
        "server_bytes": 400,
        "sent beyond a model": [],
    }
    (one,) = overhead.plan(Choice())
    methods = dict.fromkeys(overhead.METHODS, costs) | {
        "fedap": {**costs, "bytes_down": 200, "sent beyond a model": ["statistics"]}
    }
    store.put(
        Record(
            one,
            one.settings(),
            {"methods": methods, "model_bytes": 400, "clients": 100, "load": 0.0},
            record(one).made,
        )
    )
    for cell_ in privacy.plan(Choice(methods=("fedavg", "fedap"))):
        reading = {"classifier, fitted": {"auroc": 0.6, "distance": 0.3, "guess": 0.5}}
        store.put(Record(cell_, cell_.settings(), reading, record(cell_).made))
    store.put(record(cell("cifar10", "fedap", 0.1, 42, {}), 0.8))
    (table,) = shortcomings.report(store, Choice()).tables()
    rows = {row[0].text: dict(zip(table.head, (c.text for c in row), strict=True)) for row in table.rows}
    assert (
        rows["Heavy Communication Load, measured"]["f-FedAP"] == "no: 1.00 (1.5 kB)"
    )  # 1,000 + 500, as FedAvg's
    assert rows["Heavy Communication Load, measured"]["FedGen"] == "not measured yet"
    assert (
        rows["High Privacy Risk, measured"]["f-FedAP"]
        == "no: a model and statistics sent; AUROC 0.600 from the classifier, fitted"
    )
    assert "FedAvg's clients: AUROC 0.600" in table.notes[0]


def test_a_busy_machine_is_told_beside_its_seconds(store: Store) -> None:
    (one,) = overhead.plan(Choice())
    for wall, told in ((1.2, True), (1.0, False)):
        costs = {"xi": [wall], "xi_cpu": [1.0], "bytes_down": 800, "bytes_up": 400, "server_bytes": 400}
        found = {"methods": {"fedavg": costs}, "model_bytes": 400, "clients": 100, "load": 2.9}
        store.put(Record(one, one.settings(), found, {**record(one).made, "backend": "native"}))
        report = overhead.report(store, Choice())
        assert ("other work made seconds too long" in str(report.sections[1].parts[0])) is told
    assert [c.text for c in report.tables()[1].rows[0][3:5]] == ["2.00", "1.00"]  # models received and sent


def test_samples_held_out_are_not_counted_as_trained() -> None:
    """40 samples, half of each client's for testing: 5 + 15, less a fifth where FedFomo validates."""
    plain, held = (
        speed.samples_trained(record(cell("cifar10", m, 0.1, 42, {}))) for m in ("fedavg", "fedfomo")
    )
    assert plain == (200 * 5 * 0.1 + 5) * 20
    assert held == pytest.approx(0.8 * plain)


def test_folders_are_looked_at_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for words, says in (
        (
            {"name": "datasets", "out": file, "results": tmp_path},
            "--out .*file is no folder and cannot be made one",
        ),
        (
            {"name": "cka", "results": file, "out": tmp_path},
            "--results .*file is no folder and cannot be made one",
        ),
        (
            {"name": "cka", "results": tmp_path / "typo", "only_report": True},
            "nothing of cka is finished in .*typo",
        ),
    ):
        with pytest.raises(Error, match=says):
            reproduce(quiet=True, **words)  # type: ignore[arg-type]


def test_what_is_listed_says_what_cannot_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PFEDSIM_DATA", str(tmp_path / "none"))
    reproduce("accuracy", methods="fedavg", alpha="0.1", dry_run=True, results=tmp_path)
    assert (
        f"no cifar10 in {tmp_path / 'none'}: get it with `pfedsim data get cifar10`"
        in capsys.readouterr().out
    )
    with pytest.raises(Error, match="name a study: accuracy, rho"):
        reproduce(full=True)


def test_seeds_may_be_a_range() -> None:
    assert numbers("42-44, 7") == [42, 43, 44, 7]
    for wrong in ("44-42", "a", "4-", "-4", "1-2-3"):
        with pytest.raises(Error, match="or a range such as 42-44"):
            numbers(wrong)


def test_finished_seeds_that_were_not_asked_for_are_told(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(
        "accuracy",
        methods="fedavg",
        alpha="0.1",
        only_report=True,
        results=store.folder,
        out=tmp_path / "out",
    )
    assert "finished too, for some: seeds 43 (--seeds 42,43)" in capsys.readouterr().out


def test_a_page_of_few_runs_can_be_made(tmp_path: Path) -> None:
    from pfedsim_paper.results import page

    store = Store(tmp_path)
    store.put(record(cell("cifar10", "fedavg", 0.1, 42, {}), 0.3))
    assert "best as served" not in page(store)
    store.put(record(cell("cifar10", "pfedsim", 0.1, 43, {}), 0.8))
    assert "best as served" not in page(store)  # no seed in common
    store.put(record(cell("cifar10", "pfedsim", 0.1, 42, {}), 0.8))
    assert (
        "the seeds that all methods have (42; the tables use every seed): best as served is pFedSim (80.00)"
        in page(store)
    )


def test_the_results_page_is_what_the_finished_runs_give() -> None:
    from pfedsim_paper.results import page

    text = (ROOT / "docs" / "results.md").read_text()
    store = Store(ROOT / "paper" / "results")
    assert text == page(store), "run: pfedsim reproduce --markdown > docs/results.md"
    assert not store.damaged


@pytest.mark.parametrize("how", [["accuracy", "--only-report"], ["--markdown"]])
def test_a_damaged_cell_is_named_and_blocks_no_report(store: Store, tmp_path: Path, how: list[str]) -> None:
    broken = store.path(cell("cifar10", "fedavg", 0.1, 42, {}))
    broken.write_text("")
    where = ["--results", str(store.folder)] + (["--out", str(tmp_path / "out")] if len(how) > 1 else [])
    done = CliRunner().invoke(app, ["reproduce", *how, *where])
    assert done.exit_code == 1
    said = [line for line in done.output.splitlines() if broken.name in line]
    assert len(said) == 1
    assert said[0].endswith("its cell counts as missing")
    assert "pFedSim" in done.output
