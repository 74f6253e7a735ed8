"""Tables from CSV and Parquet, and how a client fills in what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfedsim import data
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import ClientData, Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.data.readers import tables
from pfedsim.errors import Error

CSV = "age,site,outcome,dose,label\n50,b,x,1.5,ill\n60,a,y,2.5,well\n70,b,z,,ill\n"


def table(folder: Path, text: str = CSV, **options: object) -> DataSet:
    (folder / "mine.csv").write_text(text)
    return tables.read(folder / "mine.csv", **options)  # type: ignore[arg-type]


def test_a_csv_with_label_client_and_columns_to_leave_out(tmp_path: Path) -> None:
    found = table(tmp_path, client="site", drop=["outcome"], missing="mean")
    assert found.x.dtype == np.float32
    np.testing.assert_array_equal(found.x, np.array([[50, 1.5], [60, 2.5], [70, np.nan]], np.float32))
    assert (found.classes, found.y.tolist()) == (("ill", "well"), [0, 1, 0])
    assert found.client is not None
    assert found.client.tolist() == ["b", "a", "b"]
    assert found.mean == pytest.approx((60, 2.0))  # over the cells that are there
    assert found.std == pytest.approx((np.std([50, 60, 70]), 0.5))
    assert (found.defaults.partition, found.defaults.model) == ("given", "mlp")


def test_labels_that_are_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    assert table(tmp_path, "a,label\n1,10\n2,9\n3,10\n").classes == ("9", "10")


def test_a_column_named_client_is_taken(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,client,label\n1,x,0\n2,y,1\n")
    found = data.read(str(tmp_path / "t.csv"))
    assert found.client is not None
    assert found.client.tolist() == ["x", "y"]


@pytest.mark.parametrize("word", ["", "?", "NA", "nan", "NULL", " "])
def test_missing_cells_are_refused_unless_asked(tmp_path: Path, word: str) -> None:
    text = f"a,b,label\n1,2,0\n3,{word},1\n"
    with pytest.raises(
        Error,
        match=r"mine\.csv, row 2: column 'b' is empty; fill it in, or use `pfedsim data add --missing mean`",
    ):
        table(tmp_path, text)
    assert np.isnan(table(tmp_path, text, missing="mean").x).sum() == 1


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (
            CSV,
            {"label": "lable"},
            "has no column 'lable' (--label of `pfedsim data add`); did you mean 'label'?",
        ),
        ("a,b\n1,2\n", {}, "has no column 'label' (--label of `pfedsim data add`); known are a, b"),
        (CSV, {"client": "hospital"}, "has no column 'hospital' (--client of `pfedsim data add`)"),
        (CSV, {"drop": ["nosuch"]}, "has no column 'nosuch' (--drop of `pfedsim data add`)"),
        (CSV, {"client": "site", "missing": "mean"}, "row 1: column 'outcome' holds 'x', not a number"),
        ("a,label\n1,0\n2,\n", {}, "row 2: column 'label' is empty"),
        ("a,label\n1,0\n2\n", {}, "row 2 has 1 columns, the header has 2"),
        ("a,a,label\n1,1,0\n", {}, "two columns named 'a'"),
        ("a,label\n", {}, "has no rows below its header"),
        ("label\n1\n0\n", {}, "has no columns to learn from"),
        ("a,label\ninf,0\n2,1\n", {}, "row 1: column 'a' is infinite"),
        ("a,b,label\n1,,0\n2,,1\n", {"missing": "mean"}, "column 'b' is empty in every row"),
        ("a,label\n1,Ill\n2,ill\n", {}, "classes 'Ill' and 'ill' differ only in case"),
    ],
)
def test_tables_that_make_no_sense_are_refused(
    tmp_path: Path, text: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(Error) as caught:
        table(tmp_path, text, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_or_client_may_be_called_none(tmp_path: Path) -> None:
    found = table(tmp_path, "a,label,client\n1,none,NA\n2,mild,null\n")
    assert (found.classes, found.client.tolist()) == (("mild", "none"), ["NA", "null"])  # type: ignore[union-attr]
    with pytest.raises(Error, match="row 2: column 'label' is empty"):
        table(tmp_path, "a,label\n1,none\n2, \n")


def test_a_number_too_large_for_float32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="row 2: column 'a' is infinite, or too large for float32"):
        table(tmp_path, "a,label\n1,x\n1e39,y\n")


def test_a_file_that_is_no_csv(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x01" * 9)
    with pytest.raises(Error, match=r"x\.csv has no rows below its heading"):
        data.read(str(tmp_path / "x.csv"))
    (tmp_path / "x.csv").write_bytes(b"\x00\x01\xff" * 9)
    with pytest.raises(Error, match=r"x\.csv is not a text file: save the table as CSV"):
        data.read(str(tmp_path / "x.csv"))
    with pytest.raises(Error, match="there is no file"):
        data.read(str(tmp_path / "none.csv"))


@pytest.mark.parametrize(("sign", "name"), [(";", "';'"), ("\t", "tabs")])
def test_other_separators_are_named(tmp_path: Path, sign: str, name: str) -> None:
    with pytest.raises(Error, match=f"is separated by {name}: save it with commas"):
        table(tmp_path, f"a{sign}label\n1{sign}x\n2{sign}y\n")


def test_a_single_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="column 'outcome' has only one class, 'yes'"):
        table(tmp_path, "a,outcome\n1,yes\n2,yes\n", label="outcome")


def test_parquet_gives_the_same_as_csv(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "age": [50, 60, 70],
        "site": ["b", "a", "b"],
        "dose": [1.5, 2.5, None],
        "label": ["ill", "well", "ill"],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    mine = tables.read(tmp_path / "t.parquet", client="site", missing="mean")
    assert mine.digest == table(tmp_path, client="site", drop=["outcome"], missing="mean").digest
    (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:40])
    with pytest.raises(Error, match="is not a valid Parquet file"):
        data.read(str(tmp_path / "t.parquet"))
    with pytest.raises(Error, match="there is no file"):
        data.read(str(tmp_path / "none.parquet"))


def test_signals_may_have_gaps_too(tmp_path: Path) -> None:
    from pfedsim.data.readers import npz

    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    x[1, 0, 2] = np.nan
    np.savez(tmp_path / "s.npz", x=x, y=np.array([0, 1, 0, 1]))
    found = npz.read(tmp_path / "s.npz", missing="mean")
    assert found.mean[0] == pytest.approx(np.nanmean(x[:, 0]))
    assert found.defaults.model == "cnn1d"
    with pytest.raises(Error, match="1 missing or infinite"):
        npz.read(tmp_path / "s.npz")


# what stands for a missing cell


def test_a_client_fills_gaps_with_its_own_train_parts_mean() -> None:
    gap = np.nan
    x = np.array(
        [[1, 10], [3, gap], [gap, 30], [100, 200], [gap, gap], [7, gap], [9, gap], [gap, gap]], np.float32
    )
    dataset = DataSet("t", x, np.array([0, 1] * 4), ("a", "b"), (5.0, 70.0), (1.0, 1.0))
    splits = (Split(np.array([0, 1, 2]), np.array([3, 4])), Split(np.array([5, 6]), np.array([7])))
    samples = ClientData(Federation(dataset, Partition(splits, {}, dataset.digest)))
    assert samples.part(0, "train")[0].tolist() == [[1, 10], [3, 20], [2, 30]]
    assert samples.part(0, "test")[0].tolist() == [
        [100, 200],
        [2, 20],
    ]  # by the train part's means, not the test part's
    assert samples.part(1, "test")[0].tolist() == [[8, 70]]  # no value of its own: the set's mean
    assert samples.part(0, "validation", 0.34)[0].tolist() == [[1, 10]]
    assert samples.part(0, "train", 0.34)[0].tolist() == [
        [3, 30],
        [3, 30],
    ]  # what is held back does not count
    assert np.isnan(dataset.x).sum() == 8  # the data stay as they are


def test_data_without_gaps_are_handed_out_as_they_are() -> None:
    dataset = DataSet(
        "t", np.ones((2, 3), np.float32), np.array([0, 1]), ("a", "b"), (0.0,) * 3, (1.0,) * 3
    )
    samples = ClientData(
        Federation(dataset, Partition((Split(np.array([0]), np.array([1])),), {}, dataset.digest))
    )
    assert samples.fill(0) is None


# heart


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    for k, hospital in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        rows = [f"{60 + i},1,4,130,{'?' if i else 200},0,0,150,0,1.5,2,?,7,{(i + k) % 3}" for i in range(6)]
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(rows).replace("?", "200", 1) + "\n")
    return tmp_path


@pytest.mark.usefixtures("made_up")
def test_the_four_hospitals_are_the_clients(heart: Path) -> None:
    found = data.read("heart", heart)
    assert (found.shape, found.classes) == ((13,), ("absent", "present"))
    assert found.y.tolist() == [int((i + k) % 3 > 0) for k in range(4) for i in range(6)]
    assert found.client is not None
    assert found.client[::6].tolist() == ["cleveland", "hungarian", "switzerland", "va"]
    assert np.isnan(found.x).sum() == 4 * 5 + 4 * 6 - 4
    (heart / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(Error, match=r"processed\.va\.data, row 1 has 3 columns; heart disease has 14"):
        data.read("heart", heart)


@pytest.mark.usefixtures("made_up")
def test_a_run_on_hospitals_and_its_models_take_samples_with_gaps(heart: Path, tmp_path: Path) -> None:
    import torch

    from pfedsim import federate, train

    federation = federate("heart", data_dir=str(heart), test=0.5)
    run = train(federation, "fedavg", rounds=2, epochs=1, workers=1)
    assert run.summary["clients"] == 4
    x = federation.data.x[:2]
    model = run.client(1)
    assert model.scores(x).isfinite().all()
    split = federation.partition.clients[1]
    own = torch.from_numpy(federation.data.x[split.train]).double().nanmean(0)
    there = ~own.isnan()
    standing = torch.tensor(federation.data.mean).where(~there, own.float())
    filled = torch.from_numpy(x).where(~torch.from_numpy(x).isnan(), standing)
    torch.testing.assert_close(model.inputs(x), model.inputs(filled))
