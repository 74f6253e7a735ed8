"""Predictions from the original file of a table: what is applied, ignored and warned of."""

from __future__ import annotations

import json
from pathlib import Path

import hospitals
import numpy as np
import pytest

import pfedsim
from pfedsim import ClientModel, Error, seal
from pfedsim.export.samples import read
from pfedsim.export.write import export
from pfedsim.runs.reader import Run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return hospitals.write(tmp_path_factory.mktemp("hospitals"))


@pytest.fixture(scope="module")
def run(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    federation = pfedsim.federate(files, label="outcome", missing="mean")
    return pfedsim.train(federation, "fedavg", tmp_path_factory.mktemp("run") / "run", rounds=3, epochs=1)


@pytest.fixture(scope="module")
def south(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, run.number_of("south"), tmp_path_factory.mktemp("out") / "south")


@pytest.fixture(scope="module")
def model(south: Path) -> ClientModel:
    return pfedsim.load(south)


def test_the_original_file_gives_the_rows_that_were_trained_on(
    model: ClientModel, run: Run, files: list[Path]
) -> None:
    federation = pfedsim.federate(files, label="outcome", missing="mean")
    found = read(model, [files[2]])
    mine = federation.data.x[federation.data.client == "south"]
    np.testing.assert_array_equal(found.x, mine)
    assert found.labels == [federation.data.classes[k] for k in federation.data.y[200:290]]
    split = federation.partition.clients[2]
    named = np.array(model.predict(found.x))[split.test - 200]
    truth = np.array(found.labels)[split.test - 200]
    assert (named == truth).mean() == run.client_values()[2]


def test_an_export_holds_the_recipe_and_its_own_ranges(south: Path, run: Run, files: list[Path]) -> None:
    about = json.loads((south / "config.json").read_text())["input"]
    federation = pfedsim.federate(files, label="outcome", missing="mean")
    assert federation.data.recipe is not None
    assert about["recipe_digest"] == federation.data.recipe.digest == run.index["recipe_digest"]
    columns = list(federation.data.columns or ())
    own = federation.data.x[federation.partition.clients[2].train][:, columns.index("chol")]
    assert about["ranges"]["chol"] == [np.nanmin(own), np.nanmax(own)]
    assert "chol" not in run.index["ranges"]["0"]  # east has none
    assert about["ranges"]["sex"] == []


def test_a_changed_recipe_is_found(south: Path, tmp_path: Path) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(south, out)
    content = seal.load(out / "config.json", "an export's description")
    content["input"]["recipe"]["steps"][0]["name"] = "gender"
    (out / "config.json").write_text(seal.sealed({k: v for k, v in content.items() if k != seal.KEY}))
    with pytest.raises(Error, match="its recipe does not match its digest"):
        pfedsim.load(out)


HEAD = "patient_id;sex;age;chol;smoker;admitted;ward;extra;outcome"
ROWS = """
1;F;50;250,5;no;1.3.2020;surgery;1;ill
2;X;150;-;yes;1.3.2020;surgery;1;well
3;M;60;250,5;perhaps;1.3.2035;oncology;1;
4;;;;;;surgery;1;recovered
"""


def test_what_is_odd_in_new_rows_is_warned_of_by_name(model: ClientModel, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(HEAD + ROWS)
    found = read(model, [tmp_path / "new.csv"])
    said = " | ".join(found.warnings)
    for part in (
        "1 of 4 rows have no label and are not scored",
        "'extra' of new.csv is not used: training had no such column",
        "column 'sex': 1 of 4 rows hold categories that training did not have",
        "column 'smoker': 1 of 4 rows hold neither yes nor no and count as missing",
        "column 'age': 1 of 4 rows are outside the range of training",
        "column 'admitted': 1 of 4 rows are outside the range of training",
        "1 row misses more than half of the columns (row 4)",
    ):
        assert part in said
    assert "1 of 4 labels are no class of the model and count as wrong" in said
    assert "oncology" not in said
    assert "150" not in said
    assert model.scores(found.x).isfinite().all()
    assert found.labels == ["ill", "well", "", "recovered"]


def test_a_file_without_some_columns_or_all(model: ClientModel, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("sex,age\nF,50\nM,60\n")
    found = read(model, [tmp_path / "new.csv"])
    assert found.labels is None
    (warning,) = [w for w in found.warnings if "has no column" in w]
    assert {f"'{name}'" in warning for name in ("smoker", "admitted", "ward", "chol")} == {True}
    assert len(model.predict(found.x)) == 2
    (tmp_path / "new.csv").write_text("a,b\n1,SECRET\n")
    with pytest.raises(Error, match="has none of the model's columns: 'sex', 'age'") as caught:
        read(model, [tmp_path / "new.csv"])
    assert "SECRET" not in str(caught.value)
    (tmp_path / "new.csv").write_text("F,50,1\nM,60,1\n")
    with pytest.raises(Error, match="the first line holds 2 values instead of names"):
        read(model, [tmp_path / "new.csv"])


def test_cells_that_can_be_read_in_two_ways_are_warned_of(model: ClientModel, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text('sex,age,chol\nF,50,"1,500"\nM,60,"2,000"\n')
    said = " | ".join(read(model, [tmp_path / "new.csv"]).warnings)
    assert (
        "column 'chol', 2 cells (rows 1, 2): a comma before three digits may separate thousands or decimals"
        in said
    )


def test_missing_cells_are_filled_though_training_had_none(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [f"{draw.integers(30, 80)},{draw.integers(100)},{k % 2}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["age,dose,label", *lines]))
    federation = pfedsim.federate(tmp_path / "t.csv", label="label", clients=2, partition="iid", minimum=2)
    model = pfedsim.train(federation, "local", rounds=1, epochs=1).client(0)
    (tmp_path / "new.csv").write_text("dose,age\n?,50\n")
    x = read(model, [tmp_path / "new.csv"]).x
    np.testing.assert_allclose(x, [[50, federation.data.mean[1]]], rtol=1e-6)


def test_data_frames_in_and_out(model: ClientModel, files: list[Path]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(files[1], na_values="?").set_index("patient_id", drop=False)
    with pytest.warns(pfedsim.errors.Notice, match="outside the range of training"):
        out = model.to_pandas(frame)
    assert list(out.columns) == ["class", "probability", "p(ill)", "p(well)"]
    assert list(out.index) == list(frame.index)
    assert out["class"].tolist() == model.predict(read(model, [files[1]]).x)
    np.testing.assert_allclose(out[["p(ill)", "p(well)"]].sum(axis=1), 1)


def test_clients_go_by_their_names(run: Run, files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from pfedsim.report.data import write_tables
    from pfedsim.report.run_page import run_page

    frame = run.to_pandas()
    assert dict(zip(frame["client"], frame["name"], strict=True)) == dict(enumerate(hospitals.NAMES))
    federation = pfedsim.federate(files, label="outcome", missing="mean")
    labels = write_tables(federation, tmp_path)[1].read_text().splitlines()
    assert labels[0] == "client,name,ill,well"
    assert labels[4] == "3,west,40,0"
    assert "<td>3</td><td>west</td>" in run_page(run)


def test_a_node_of_a_cluster_gets_the_recipe(files: list[Path]) -> None:
    from pfedsim.runs.cluster import shipped

    federation = pfedsim.federate(files, label="outcome", missing="mean")
    travels, arrays = shipped(federation)
    there, notes = travels.open(arrays, False)
    assert there is not None
    assert (there.data.recipe, there.data.digest, notes) == (
        federation.data.recipe,
        federation.data.digest,
        [],
    )
