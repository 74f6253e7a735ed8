"""Comparisons made by hand: run folders with known hits, so that every printed number can be worked out on
paper."""

import csv
import json
import statistics

import numpy as np
import pytest
from rich.text import Text
from safetensors.numpy import save_file

from pfedsim.experiments.compare import Comparison
from pfedsim.report import formats
from pfedsim.report.tables import Column, caption, columns, comparison_tables, places
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
    return Run(path)


def comparison(tmp_path, right=RIGHT, tuned=None):
    runs = {}
    for method, by_seed in right.items():
        for seed, counts in by_seed.items():
            models = {"served": counts, **({"finetuned": tuned[method][seed]} if tuned else {})}
            runs.setdefault(method, {})[seed] = folder(tmp_path / f"{method}-{seed}", method, seed, models)
    return Comparison(runs, tuple(next(iter(right.values()))))


def column(made, heading):
    (found,) = [c for c in columns(made) if c.heading.replace("\n", " ") == heading]
    return dict(zip(made.methods, found.cells, strict=True))


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
        ("+2 epochs: all samples", TUNED, "micro"),
        ("+2 epochs: client mean", TUNED, "mean"),
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
    assert column(made, "tuned: minus FedAvg")["pFedSim"] == "+0.0 [0.0, 0.0]"  # the same hits
    assert column(made, "tuned: minus Local-Only")["pFedSim"].startswith("+22.5 [")


def test_without_fedavg_nothing_is_measured_against_it(tmp_path):
    made = comparison(tmp_path, {m: by for m, by in RIGHT.items() if m != "FedAvg"})
    assert not any("FedAvg" in c.heading for c in columns(made))
    assert "FedAvg" not in formats.markdown(made)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([0.5, 0.7, 0.6, 0.1], [2, 0, 1, 2]),
        ([0.7, 0.7, 0.6], [0, 0, 1]),  # equal is equally good
        ([0.70001, 0.70004, 0.6], [0, 0, 1]),  # equal as printed
        ([0.7, float("nan"), 0.6], [0, 2, 1]),
        (None, [2, 2, 2]),
    ],
)
def test_best_and_second_are_told_by_the_printed_number(ranks, expected):
    assert places(Column("", "", ["x"] * len(expected), ranks)) == expected


def rows(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    return {first: dict(zip(cells[0][1:], rest, strict=True)) for first, *rest in cells[1:]}


def test_markdown_has_the_best_bold_and_the_second_underlined(tmp_path):
    found = rows(formats.markdown(comparison(tmp_path)))
    shown = {m: found[m]["served: all samples"] for m in found}
    assert shown == {
        "Local-Only": "<u>60.00 (7.07)</u>",
        "FedAvg": "57.50 (3.54)",
        "pFedSim": "**77.50 (3.54)**",
    }
    assert found["pFedSim"]["worse off than alone"] == "17%"


def test_latex_has_the_same_cells_and_escapes_percent(tmp_path):
    lines = formats.latex(comparison(tmp_path)).splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    cells = {line.split(" & ")[0]: line.removesuffix(r" \\").split(" & ") for line in body}
    assert {m: c[1] for m, c in cells.items()} == {
        "Local-Only": r"\underline{60.00 (7.07)}",
        "FedAvg": "57.50 (3.54)",
        "pFedSim": r"\textbf{77.50 (3.54)}",
    }
    assert r"17\%" in cells["pFedSim"]
    assert lines[0] == r"% needs \usepackage{booktabs}"
    assert lines[2] == rf"\begin{{tabular}}{{l{'r' * (len(cells['FedAvg']) - 1)}}}"


def test_the_terminal_has_the_same_marks(tmp_path):
    accuracy = comparison_tables(comparison(tmp_path))[0]
    cells = list(accuracy.columns[1].cells)
    assert all(isinstance(cell, Text) for cell in cells)
    assert [(cell.plain, cell.style) for cell in cells] == [
        ("60.00 (7.07)", "underline"),
        ("57.50 (3.54)", ""),
        ("77.50 (3.54)", "bold"),
    ]


def test_gains_csv_has_a_row_for_every_client_of_every_run(tmp_path):
    made = comparison(tmp_path)
    formats.write_all(made, tmp_path / "out")
    with open(tmp_path / "out" / "gains.csv", newline="") as file:
        found = list(csv.DictReader(file))
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
    found = list(csv.DictReader(formats.long_csv(comparison(tmp_path, tuned=TUNED)).splitlines()))
    value = {(r["method"], r["seed"], r["model"], r["figure"]): float(r["value"]) for r in found}
    assert value["pFedSim", "2", "served", "micro"] == pytest.approx(0.8)
    assert value["FedAvg", "1", "finetuned", "mean"] == pytest.approx((4 / 4 + 8 / 10 + 5 / 6) / 3)


@pytest.mark.parametrize(("seeds", "over"), [(4, "clients and test samples"), (5, "seeds")])
def test_the_caption_says_what_was_resampled(tmp_path, seeds, over):
    made = comparison(tmp_path, {m: dict.fromkeys(range(seeds), by[1]) for m, by in RIGHT.items()})
    text = caption(made)
    assert text.endswith(f"bootstrap over {over}")
    assert "by hand, 3 clients, 7 rounds" in text
    assert "mean (std over seeds)" in text
