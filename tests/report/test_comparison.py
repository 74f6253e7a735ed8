"""Comparisons made by hand: run folders with known hits, so that every printed number can be worked out on
paper."""

import csv
import json
import statistics

import numpy as np
import pytest
import small
from rich.console import Console
from safetensors.numpy import save_file

from pfedsim.errors import Error
from pfedsim.experiments.compare import Comparison
from pfedsim.report.comparison import caption, client_csv, columns, long_csv, rows, tables, verdict
from pfedsim.report.document import markdown_table, ranked
from pfedsim.report.latex import latex
from pfedsim.report.screen import terminal
from pfedsim.runs.reader import Run

SIZES = (4, 10, 6)
RIGHT = {  # method -> seed -> test samples that each client's model gets right
    "Local-Only": {1: (2, 5, 4), 2: (2, 6, 5)},
    "FedAvg": {1: (1, 8, 3), 2: (2, 7, 2)},
    "pFedSim": {1: (3, 8, 4), 2: (4, 9, 3)},
}
TUNED = {  # ... after two local epochs
    "Local-Only": {1: (3, 5, 4), 2: (3, 6, 5)},
    "FedAvg": {1: (4, 8, 5), 2: (3, 9, 6)},
    "pFedSim": {1: (4, 8, 5), 2: (3, 9, 6)},
}


def figures(right):
    each = [r / n for r, n in zip(right, SIZES, strict=True)]
    return {"micro": sum(right) / sum(SIZES), "mean": sum(each) / len(each), "worst_tenth": min(each)}


def folder(path, method, seed, models):
    """A finished run's files: summary, each client's accuracy, predictions; `models`: counts of right
    samples by model."""
    path.mkdir(parents=True)
    tuned = {"epochs": 2, **figures(models["finetuned"])} if "finetuned" in models else None
    about = {"method": method, "data": "by hand", "clients": 3, "rounds": 7, "seed": seed}
    traffic = {"bytes_down_per_client_round": 2500.0, "bytes_up_per_client_round": 40.0}
    (path / "summary.json").write_text(
        json.dumps({**about, "served": figures(models["served"]), "finetuned": tuned, **traffic})
    )
    with open(path / "clients.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["round", "client", "model", "split", "metric", "value"])
        for model, right in models.items():
            table.writerows(
                [3, i, model, "test", "accuracy", 0.0] for i in range(3)
            )  # an earlier round, which does not count
            table.writerows([7, i, model, "test", "accuracy", right[i] / SIZES[i]] for i in range(3))
    columns = {"client": np.repeat(np.arange(3), SIZES), "label": np.zeros(sum(SIZES))}
    for model, right in models.items():
        columns[model] = np.concatenate(
            [np.arange(n) >= r for n, r in zip(SIZES, right, strict=True)]
        )  # the first r are right
    save_file({name: c.astype(np.int32) for name, c in columns.items()}, path / "predictions.safetensors")
    return Run(small.listed(path))


def comparison(tmp_path, right=RIGHT, tuned=None):
    runs = {}
    for method, by_seed in right.items():
        for seed, counts in by_seed.items():
            models = {"served": counts, **({"finetuned": tuned[method][seed]} if tuned else {})}
            runs.setdefault(method, {})[seed] = folder(tmp_path / f"{method}-{seed}", method, seed, models)
    return Comparison(runs, tuple(next(iter(right.values()))))


def column(made, heading):
    (found,) = [c for c in columns(made) if c.heading == heading]
    return dict(zip(made.methods, [entry.text for entry in found.entries], strict=True))


def mean_std(by_seed, figure):
    values = [100 * figures(r)[figure] for r in by_seed.values()]
    return f"{statistics.mean(values):.2f} ({statistics.stdev(values):.2f})"  # stdev: ddof 1


def test_accuracies_are_mean_and_sample_deviation_over_seeds(tmp_path):
    made = comparison(tmp_path, tuned=TUNED)
    assert column(made, "served: all samples") == {
        "Local-Only": "60.00 (7.07)",
        "FedAvg": "57.50 (3.54)",
        "pFedSim": "77.50 (3.54)",
    }
    for heading, counts, figure in [
        ("served: client mean", RIGHT, "mean"),
        ("served: worst tenth", RIGHT, "worst_tenth"),
        ("fine-tuned: all samples", TUNED, "micro"),
        ("fine-tuned: client mean", TUNED, "mean"),
    ]:
        assert column(made, heading) == {m: mean_std(by, figure) for m, by in counts.items()}


def test_one_seed_has_no_spread(tmp_path):
    made = comparison(tmp_path, {m: {1: by[1]} for m, by in RIGHT.items()})
    assert column(made, "served: all samples") == {
        "Local-Only": "55.00",
        "FedAvg": "60.00",
        "pFedSim": "75.00",
    }
    assert "one seed" in caption(made)


def test_without_a_second_score_there_is_no_column_of_it(tmp_path):
    headings = [c.heading for c in columns(comparison(tmp_path))]
    assert not any("epochs" in h or "tuned" in h for h in headings)


def test_share_of_clients_worse_off_than_alone_is_over_clients_and_seeds(tmp_path):
    """FedAvg: two of three clients with seed 1, one with seed 2 (a client that is equal is not worse)."""
    assert column(comparison(tmp_path), "worse off than alone") == {
        "Local-Only": "-",
        "FedAvg": "50%",
        "pFedSim": "17%",
    }


def test_traffic_is_in_units_for_people(tmp_path):
    made = comparison(tmp_path)
    assert set(column(made, "received per client, round").values()) == {"2.5 kB"}
    assert set(column(made, "sent per client, round").values()) == {"40 B"}


def test_differences_are_of_the_same_kind_of_model_on_both_sides(tmp_path):
    made = comparison(tmp_path, tuned=TUNED)
    alone, common = column(made, "served: minus Local-Only"), column(made, "served: minus FedAvg")
    assert alone["Local-Only"] == common["FedAvg"] == "-"
    assert alone["pFedSim"].startswith("+17.5 [")
    assert alone["FedAvg"].startswith("-2.5 [")
    assert common["pFedSim"].startswith("+20.0 [")
    assert (
        column(made, "fine-tuned: minus FedAvg")["pFedSim"] == "+0.0 [-10.5, 10.5]"
    )  # the same hits on 20 samples
    assert column(made, "fine-tuned: minus Local-Only")["pFedSim"].startswith("+22.5 [")


def test_without_fedavg_nothing_is_measured_against_it(tmp_path):
    made = comparison(tmp_path, {m: by for m, by in RIGHT.items() if m != "FedAvg"})
    assert not any("FedAvg" in c.heading for c in columns(made))
    assert not any("FedAvg" in markdown_table(table) for table in tables(made))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([50, 70, 60, 10], ["", "best", "second", ""]),
        ([70, 70, 60], ["best", "best", "second"]),  # equal is equally good
        ([70.001, 70.004, 60], ["best", "best", "second"]),  # equal as printed
        ([70, None, 60], ["best", "", "second"]),
        ([0, 0, 0], ["", "", ""]),  # nobody is best
        ([0, 0, 0, 12], ["", "", "", "best"]),  # three are not second
        ([0, 0], ["", ""]),
        ([3], ["best"]),
    ],
)
def test_best_and_second_are_told_by_the_printed_number(values, expected):
    assert [entry.mark for entry in ranked(values, ["x"] * len(values))] == expected


def cells_of(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    return {first: dict(zip(cells[0][1:], rest, strict=True)) for first, *rest in cells[1:]}


def test_markdown_has_the_best_bold_and_the_second_underlined(tmp_path):
    accuracy, clients, *_ = map(cells_of, map(markdown_table, tables(comparison(tmp_path))))
    assert {m: accuracy[m]["served: all samples"] for m in accuracy} == {
        "Local-Only": "<u>60.00 (7.07)</u>",
        "FedAvg": "57.50 (3.54)",
        "pFedSim": "**77.50 (3.54)**",
    }
    assert clients["pFedSim"]["worse off than alone"] == "17%"


def test_latex_has_the_same_cells_and_escapes_percent(tmp_path):
    lines = latex(tables(comparison(tmp_path), ["served", "worse-off"]), "By hand").splitlines()
    assert lines[:2] == [r"% needs \usepackage{booktabs}", "% By hand"]
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    cells = [line.removesuffix(r" \\").split(" & ") for line in body]
    assert cells == [
        ["Local-Only", r"\underline{60.00 (7.07)}", "-"],
        ["FedAvg", "57.50 (3.54)", r"50\%"],
        ["pFedSim", r"\textbf{77.50 (3.54)}", r"17\%"],
    ]


def test_the_terminal_has_the_same_marks_and_cuts_nothing(tmp_path):
    made = comparison(tmp_path, tuned=TUNED)
    for table in tables(made):
        for part in terminal(table, 80):
            console = Console(width=80)
            with console.capture() as said:
                console.print(part)
            assert "…" not in said.get()
            for method in RIGHT:
                assert method in said.get()
    (accuracy,) = terminal(tables(comparison(tmp_path / "served"))[0], 80)
    assert [(cell.plain, cell.style) for cell in accuracy.columns[1].cells] == [
        ("60.00 (7.07)", "underline"),
        ("57.50 (3.54)", ""),
        ("77.50 (3.54)", "bold"),
    ]


def test_columns_are_chosen_by_name(tmp_path):
    made = comparison(tmp_path)
    (chosen,) = tables(made, ["minus-local", "served"])
    assert list(chosen.head) == ["method", "served: minus Local-Only", "served: all samples"]
    with pytest.raises(Error, match="did you mean 'served'"):
        tables(made, ["servd"])
    with pytest.raises(Error, match="--columns tuned: these runs have no such"):
        tables(made, ["tuned"])


def test_the_sentence_has_the_interval_of_the_table(tmp_path):
    made = comparison(tmp_path, tuned=TUNED)
    interval = column(made, "served: minus Local-Only")["pFedSim"].partition(" ")[2]
    assert (
        f"pFedSim is the best federated method and 17.5 points above training alone (95% interval {interval})"
        in verdict(made)
    )


def test_rows_have_the_number_behind_every_column(tmp_path):
    found = {row["method"]: row for row in rows(comparison(tmp_path))}
    assert found["pFedSim"]["served"] == pytest.approx(77.5)
    assert found["pFedSim"]["minus-local"] == pytest.approx(17.5)
    assert found["Local-Only"]["minus-local"] is None


def test_every_file_is_read_once(tmp_path, monkeypatch):
    """A comparison's tables, sentence and files, all from one reading of each run's clients and predictions."""
    made = comparison(tmp_path, tuned=TUNED)
    read = []
    for name in ("clients", "hits"):
        before = getattr(Run, name)
        monkeypatch.setattr(
            Run,
            name,
            lambda run, *model, b=before, n=name: read.append((run.path, n, *model)) or b(run, *model),
        )
    for _ in range(2):
        tables(made)
        verdict(made)
        client_csv(made)
    assert len(read) == len(set(read)) == 6 * 3  # each run: clients.csv, hits as served and after epochs


def test_gains_csv_has_a_row_for_every_client_of_every_run(tmp_path):
    made = comparison(tmp_path)
    found = list(csv.DictReader(client_csv(made).splitlines()))
    assert len(found) == 3 * 2 * 3
    for row in found:
        method, seed, i = row["method"], int(row["seed"]), int(row["client"])
        accuracy = {m: RIGHT[m][seed][i] / SIZES[i] for m in RIGHT}
        assert float(row["accuracy"]) == pytest.approx(accuracy[method])
        for reference in ("Local-Only", "FedAvg"):
            assert float(row[f"gain over {reference}"]) == pytest.approx(
                accuracy[method] - accuracy[reference]
            )
    assert len({(r["method"], r["seed"], r["client"]) for r in found}) == len(found)


def test_table_csv_has_numbers_not_cells(tmp_path):
    found = list(csv.DictReader(long_csv(comparison(tmp_path, tuned=TUNED)).splitlines()))
    value = {(r["method"], r["seed"], r["model"], r["figure"]): float(r["value"]) for r in found}
    assert value["pFedSim", "2", "served", "micro"] == pytest.approx(0.8)
    assert value["FedAvg", "1", "finetuned", "mean"] == pytest.approx((4 / 4 + 8 / 10 + 5 / 6) / 3)


@pytest.mark.parametrize(("seeds", "over"), [(1, "test samples"), (5, "test samples and seeds")])
def test_the_caption_says_what_the_intervals_cover(tmp_path, seeds, over):
    made = comparison(tmp_path, {m: dict.fromkeys(range(seeds), by[1]) for m, by in RIGHT.items()})
    text = caption(made)
    assert text.endswith(f"95% intervals over {over}")
    assert "by hand, 3 clients, 7 rounds" in text
    assert ("mean (std over seeds)" in text) == (seeds > 1)


def test_a_comparison_prints_as_tables(tmp_path):
    lines = str(comparison(tmp_path, tuned=TUNED)).splitlines()
    assert lines[0].startswith(
        "by hand, 3 clients, 7 rounds, seeds 1, 2: accuracy in %, mean (std over seeds);"
    )
    assert "Accuracy, %" in lines
    row = next(line for line in lines if line.startswith("│ pFedSim"))
    assert "77.50 (3.54)" in row
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("right", "says"),
    [
        ((4, 8, 5), "It leads FedAvg by 20.0 points as served, and equals it after the same local epochs."),
        (
            (4, 7, 5),
            "It leads FedAvg by 20.0 points as served, and trails it by 2.5 after the same local epochs.",
        ),
        (
            (4, 9, 5),
            "It leads FedAvg by 20.0 points as served, and leads it by 2.5 after the same local epochs. After these "
            "epochs pFedSim is best.",
        ),
    ],
)
def test_the_verdict_says_what_remains_after_local_epochs(tmp_path, right, says):
    tuned = {**TUNED, "pFedSim": {**TUNED["pFedSim"], 1: right}}
    assert verdict(comparison(tmp_path, tuned=tuned)).endswith(f"worse off than alone. {says}")
