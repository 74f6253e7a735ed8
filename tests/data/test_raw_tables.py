"""From messy tables to numbers: what is detected, what the recipe holds, and what each bad input gets."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Sequence
from pathlib import Path

import hospitals
import numpy as np
import pytest

import pfedsim
from pfedsim import data
from pfedsim.data import own
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.tables.facts import Sums
from pfedsim.data.tables.problems import Problems
from pfedsim.data.tables.recipe import Recipe
from pfedsim.errors import Error


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return hospitals.write(tmp_path_factory.mktemp("hospitals"))


@pytest.fixture(scope="module")
def four(files: list[Path]) -> Federation:
    return pfedsim.federate(files, label="outcome", missing="mean")


def recipe_of(federation: Federation) -> Recipe:
    assert federation.data.recipe is not None
    return federation.data.recipe


def written(tmp_path: Path, *texts: str, encoding: str = "utf-8") -> list[Path]:
    paths = [tmp_path / f"{'abcd'[k]}.csv" for k in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode(encoding))
    return paths


def rows(*columns: Sequence[object], head: str) -> str:
    return "\n".join([head, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]) + "\n"


def test_four_messy_hospitals_become_one_table(four: Federation) -> None:
    assert four.names == list(hospitals.NAMES)
    assert four.data.classes == ("ill", "well")
    columns = four.data.columns
    assert columns is not None
    assert set(columns) == {
        *("sex=F", "sex=M", "age", "smoker", "admitted", "chol"),
        *("ward=cardiology", "ward=general", "ward=surgery"),
        *(["ward=(rare)"] if "ward=(rare)" in columns else []),
    }
    said = " | ".join(four.data.said)
    for part in (
        "east.csv: Windows-1252, separated by commas, days before months, 80 rows",
        "south.csv: UTF-8 with a byte order mark, separated by semicolons, decimal commas, 90 rows",
        "east lacks 'chol'",
        "all rows of 'west' have the same label",
        "left out: 'patient_id' (it identifies rows)",
    ):
        assert part in said


def test_every_cell_is_read_as_it_was_meant(four: Federation) -> None:
    """Against the values from which the files were written."""
    columns = four.data.columns
    recipe = recipe_of(four)
    assert columns is not None
    (origin,) = [step.origin for step in recipe.steps if step.kind == "date"]
    assert origin is not None
    x, everyone = (
        four.data.x,
        [p for k, n in enumerate((80, 120, 90, 40)) for p in hospitals.patients(n, k + 1)],
    )
    for row, p in zip(x, everyone, strict=True):
        cell = dict(zip(columns, row.tolist(), strict=True))
        assert (cell["sex=F"], cell["sex=M"]) == (float(p["female"] is True), float(p["female"] is False))
        assert cell["smoker"] == float(p["smoker"] is True)
        day = datetime.date(*p["day"]) - datetime.date(1970, 1, 1)  # type: ignore[misc]
        assert cell["admitted"] == day.days - origin
        assert np.isnan(cell["chol"]) or cell["chol"] == np.float32(p["chol"])
        assert np.isnan(cell["age"]) or cell["age"] == p["age"]
    gone = np.isnan(x).sum(0)
    assert gone[columns.index("chol")] == 80 + 10 + 8  # east has none; every twelfth row of north and south
    assert gone[columns.index("age")] == 4 + 6
    assert gone.sum() == 108


def test_the_recipe_is_fitted_on_train_parts_only(
    four: Federation, files: list[Path], tmp_path: Path
) -> None:
    """Mean, deviation, shares and the first date are those of the train parts; changing test rows changes nothing."""
    train = np.concatenate([split.train for split in four.partition.clients])
    x = four.data.x[train].astype(np.float64)
    for k, name in enumerate(four.data.columns or ()):
        assert four.data.mean[k] == pytest.approx(np.nanmean(x[:, k]), rel=1e-6)
        numbers = name in ("age", "chol", "admitted")
        assert four.data.std[k] == pytest.approx(np.nanstd(x[:, k]) if numbers else 1.0, rel=1e-5)
    assert np.nanmin(x[:, (four.data.columns or ()).index("admitted")]) == 0

    texts = [list(csv.reader(path.read_text(encoding="latin-1").splitlines())) for path in files]
    north = texts[1]
    first = len(texts[0]) - 1
    for row in set(range(len(north) - 1)) - {int(k) - first for k in four.partition.clients[1].train}:
        north[row + 1][2], north[row + 1][6] = "41", "elsewhere"
    changed = [tmp_path / path.name for path in files]
    for path, old in zip(changed, files, strict=True):
        path.write_bytes(old.read_bytes())
    changed[1].write_text("\n".join(",".join(row) for row in north))
    again = pfedsim.federate(changed, label="outcome", missing="mean")
    assert [s.train.tolist() for s in again.partition.clients] == [
        s.train.tolist() for s in four.partition.clients
    ]
    assert recipe_of(again).digest == recipe_of(four).digest
    assert again.data.digest != four.data.digest


def test_clients_that_never_train_do_not_shape_the_recipe(files: list[Path]) -> None:
    federation = pfedsim.federate(files, label="outcome", missing="mean", unseen=0.25)
    trained = np.concatenate([split.train for split in federation.partition.clients[:3]])
    k = (federation.data.columns or ()).index("age")
    assert federation.data.mean[k] == pytest.approx(np.nanmean(federation.data.x[trained, k].astype(float)))


def test_sums_of_parties_give_the_deviation_of_all() -> None:
    draw = np.random.default_rng(0)
    parts = [draw.normal(1e6, 3, size=n) for n in (1, 7, 40)]
    together = sum((Sums.of(part) for part in parts), Sums())
    every = np.concatenate(parts)
    assert together.count == 48
    assert together.mean == pytest.approx(every.mean(), rel=1e-12)
    assert together.deviation == pytest.approx(every.std(), rel=1e-9)


def test_rare_and_unseen_values_have_no_number_of_their_own(tmp_path: Path) -> None:
    blood = ["A"] * 20 + ["B"] * 20 + ["a "] * 8 + ["rare"] * 2 + ["AB"]
    path = written(tmp_path, rows(blood, [k % 2 for k in range(51)], head="blood,label"))[0]
    found = own.Own(str(path), reading=2).read("t", None, lambda *_: None)
    assert found.columns == ("blood=A", "blood=B", "blood=(rare)")
    assert found.x.sum(0).tolist() == [28, 20, 3]
    assert found.mean == pytest.approx((28 / 51, 20 / 51, 3 / 51))
    common = found.table.made("t", [np.arange(48)], found.defaults)  # type: ignore[union-attr]
    assert common.columns == ("blood=A", "blood=B")
    assert common.x[48:].sum() == 0  # unseen: no category
    _, unknown = common.recipe.apply(found.table.columns, 51)  # type: ignore[union-attr]
    assert unknown == {"blood": 3}


def test_what_one_party_writes_as_words_another_may_write_as_numbers(tmp_path: Path) -> None:
    ages = [40 + 7 * k % 31 for k in range(24)]
    paths = written(
        tmp_path,
        rows(ages, ["yes", "no", "Y"] * 8, [0, 1] * 12, head="age,smoker,label"),
        rows(ages, [1, 0, 1] * 8, ["1.0", "0.0"] * 12, head="age,smoker,label"),
    )
    federation = pfedsim.federate(paths)
    assert federation.data.columns == ("age", "smoker")
    assert federation.data.x[:, 1].tolist() == [1, 0, 1] * 16
    assert federation.data.classes == ("0", "1")
    assert federation.data.y.tolist() == [0, 1] * 12 + [1, 0] * 12


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1.5", "2", "1e3", "-.5"], [1.5, 2, 1000, -0.5]),
        (['"1,5"', '"2,25"', "3", "-4"], [1.5, 2.25, 3, -4]),
        (['"1,234.5"', '"12,000.25"', "7", "8"], [1234.5, 12000.25, 7, 8]),
        (['"1.234,5"', '"12.000,25"', "7", "8"], [1234.5, 12000.25, 7, 8]),
        (["\u22123", "4", "+5", "006"], [-3, 4, 5, 6]),
    ],
)
def test_numbers_in_all_their_forms(tmp_path: Path, cells: list[str], values: list[float]) -> None:
    path = written(tmp_path, rows(cells * 4, ["x", "y"] * 8, head="v,label"))[0]
    found = data.read(str(path))
    assert found.x[:, 0].tolist() == values * 4


@pytest.mark.parametrize(
    ("cells", "first", "days"),
    [
        (["2024-02-28", "2024-03-01"], "2024-02-28", 2),
        (["28.2.2023", "1.3.2023"], "2023-02-28", 1),
        (["02/28/2024", "03/01/2024"], "2024-02-28", 2),
        (["28/02/2024", "01/03/2024"], "2024-02-28", 2),
        (["28 Feb 2024", "1-March-2024"], "2024-02-28", 2),
        (["2024-02-28T12:00", "2024-02-29 00:00:00"], "2024-02-28", 0.5),
    ],
)
def test_dates_in_all_their_forms(tmp_path: Path, cells: list[str], first: str, days: float) -> None:
    path = written(tmp_path, rows(cells * 6, ["x", "y"] * 6, head="seen,label"))[0]
    found = data.read(str(path))
    assert found.recipe is not None
    assert found.recipe.steps[0].in_words == f"days since {first}"
    assert found.x[1, 0] - found.x[0, 0] == days


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_encoding_and_separator_are_found_out(tmp_path: Path, encoding: str, separator: str) -> None:
    text = f"größe{separator}ort{separator}label\n" + "".join(
        f"{k * k % 37}{separator}{'Köln' if k % 3 else 'Ulm'}{separator}{'ab'[k % 2]}\n" for k in range(40)
    )
    (path,) = written(tmp_path, text, encoding=encoding)
    found = data.read(str(path))
    assert found.columns == ("größe", "ort=Köln", "ort=Ulm")
    assert found.x[:, 0].tolist() == [k * k % 37 for k in range(40)]


def test_own_signs_for_missing_cells_and_own_kinds(tmp_path: Path) -> None:
    age = ["40", "unknown", "-9", "55"] * 24
    path = written(tmp_path, rows(age, [1, 2, 3, 2] * 24, ["x", "y"] * 48, head="age,code,label"))[0]
    how = {"missing": "mean", "na": ["unknown", "-9"], "types": {"code": "category"}}
    federation = pfedsim.federate(path, **how, clients=2, partition="iid", minimum=2)
    assert federation.data.columns == ("age", "code=1", "code=2", "code=3")
    assert np.isnan(federation.data.x[:, 0]).sum() == 48
    assert recipe_of(federation).missing == ["-9", "unknown"]


def test_columns_that_identify_rows_are_left_out(tmp_path: Path) -> None:
    n = range(60)
    path = written(
        tmp_path,
        rows(
            n, [f"k{k:03}" for k in n], [f"note {k} on it" for k in n], [7 * k % 50 for k in n], [k % 2 for k in n],
            head=",caseID,remarks,age,label",
        ),
    )[0]  # fmt: skip
    found = data.read(str(path))
    assert found.columns == ("age",)
    assert found.said[1:] == [
        "left out: 'caseID' (it identifies rows)",
        "left out: 'remarks' (words that hardly repeat)",
        "left out: 'column 1' (it only numbers the rows)",
    ]
    kept = pfedsim.federate(path, types={"column 1": "number"}, clients=2, partition="iid").data.columns
    assert kept == ("column 1", "age")


def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    path = written(tmp_path, rows([5, 3, 8, 1] * 5, ["x", "y", "", "x"] * 5, head="a,label"))[0]
    found = data.read(str(path))
    assert (len(found.y), found.x[:, 0].tolist()) == (15, [5, 3, 1] * 5)
    assert "5 rows without a label are left out" in found.said


WELL = rows([40 + 7 * k % 31 for k in range(24)], ["u", "v"] * 12, ["x", "y"] * 12, head="age,kind,label")
SECRET = "SECRET"  # a cell that no message may show
BAD = {
    "no label column": (
        [WELL.replace("label", "result")],
        "has no column 'label' (--label of `pfedsim data add`)",
    ),
    "values for names": (["63,1\n4,5\n"], "its first line holds values, not names"),
    "words for names": (
        [rows([SECRET, "q"] * 6, ["x", "label"] * 6, head=f"{SECRET},label")],
        "2 values instead of",
    ),
    "one class": (
        [rows([1, 2, 3], [SECRET] * 3, head="a,label")],
        "column 'label' has only one class in all 3 rows",
    ),
    "labels that are values": (
        [rows(range(150), [f"{SECRET}{k}" for k in range(150)], head="a,label")],
        "column 'label' has 150 different values in 150 rows, too many for classes: name another column with --label",
    ),
    "labels in two cases": (
        [WELL.replace(",x", f",{SECRET}", 1) + f"50,u,{SECRET.lower()}\n"],
        "differ only in case",
    ),
    "words among numbers": (
        [WELL.replace("\n47,", f"\n{SECRET},", 1)],
        "a.csv: column 'age': 1 cell of 24 is no number (row 2): correct them",
    ),
    "words here, numbers there": (
        [WELL, WELL.replace(",u,", ",1,").replace(",v,", ",2,")],
        "column 'kind' holds numbers in 'b.csv' and words in 'a.csv'",
    ),
    "missing cells": (
        [WELL.replace("\n47,", "\n?,")],
        "a.csv lacks 1 cell ('age' 1): fill them in, or let each",
    ),
    "a column less": (
        [WELL, rows([41, 45] * 5, ["x", "y"] * 5, head="age,label")],
        "b.csv has no column 'kind': fill them in, or let each party's mean stand for them with --missing mean",
    ),
    "a column in other letters": (
        [WELL, WELL.replace("age", "Age")],
        "the columns 'age', 'Age' of different files",
    ),
    "ragged rows": (
        [WELL + f"1,2,3,{SECRET}\n9\n"],
        "2 rows with another number of cells than the heading has (rows 25",
    ),
    "a name twice": ([WELL.replace("kind", "age")], "has two columns with the name 'age'"),
    "two decimal marks": (
        [rows(['"1,5"', "2.5"] * 9, ["x", "y"] * 9, head="dose,label")],
        "9 cells (rows 1, 3, 5, 7, 9, ...): some numbers have decimal commas and others decimal points",
    ),
    "thousands or decimals": (
        [rows(['"1,500"', "2"] * 9, ["x", "y"] * 9, head="dose,label")],
        "a comma before three digits may separate thousands or decimals",
    ),
    "days or months": (
        [rows(["01/02/2024", "03/04/2024"] * 9, ["x", "y"] * 9, head="day,label")],
        "the files do not tell days from months in these dates: write them as 2024-12-31",
    ),
    "days and months": (
        [rows(["21/02/2024", "03/24/2024"] * 9, ["x", "y"] * 9, head="day,label")],
        "some dates put the day first and others the month",
    ),
    "short years": (
        [rows(["21.2.24", "3.4.24"] * 9, ["x", "y"] * 9, head="day,label")],
        "have years of two digits",
    ),
    "too large": (
        [WELL.replace("\n47,", "\n1e39,")],
        "1 cell (row 2): these numbers are too large for float32",
    ),
    "nothing to learn from": ([rows(["x", "y"] * 9, head="label")], "there are no columns to learn from"),
    "nothing that tells": (
        [rows([f"{SECRET}{k}" for k in range(30)], ["x", "y"] * 15, head="name,label")],
        "no column is left to learn from; 'name': it identifies rows; --types keeps a column",
    ),
    "no rows": (["a,label\n"], "has no rows below its heading"),
    "empty": (["\n\n"], "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_every_bad_table_gets_one_sentence_without_its_cells(tmp_path: Path, name: str) -> None:
    texts, says = BAD[name]
    with pytest.raises(Error) as caught:
        pfedsim.federate(written(tmp_path, *texts))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET.casefold() not in str(caught.value).casefold()


def test_a_heading_that_is_data_is_not_shown(tmp_path: Path) -> None:
    (path,) = written(tmp_path, f"F,{SECRET},ill\n" * 3 + "M,x,well\n" * 3)
    with pytest.raises(Error, match="its first line holds values, not names") as caught:
        data.read(str(path))
    assert SECRET not in str(caught.value)


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    texts = [
        WELL.replace("\n47,", f"\n{SECRET},"),
        WELL.replace("\n54,", "\n?,"),
        WELL.replace("label", "result"),
    ]
    with pytest.raises(Problems) as caught:
        pfedsim.federate(written(tmp_path, *texts))
    assert len(caught.value.each) == 3
    assert str(caught.value).startswith(
        "table has 3 problems: (1) c.csv has no column 'label', the label; (2) "
    )
    assert "(2) a.csv: column 'age': 1 cell of 24 is no number" in str(caught.value)
    assert "b.csv lacks 1 cell" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"types": {"age": "numbr"}}, "did you mean 'number'?"),
        ({"types": {"ages": "number"}}, "has no column 'ages' (--types"),
        ({"types": ["age"]}, "types takes a dictionary"),
        ({"missing": "zero"}, "missing = 'zero'"),
        ({"drop": "age"}, "drop takes a list of columns"),
        ({"na": "x"}, "na takes a list of signs"),
        ({"client": "hospital"}, "has no column 'hospital' (--client"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, object], says: str) -> None:
    with pytest.raises(Error) as caught:
        pfedsim.federate(written(tmp_path, WELL)[0], **options)
    assert says in str(caught.value)


def test_data_frames_in(files: list[Path]) -> None:
    """The same numbers from DataFrames as from the files, by party or with a column that names it."""
    pandas = pytest.importorskip("pandas")
    frames = {"a": pandas.read_csv(files[1], na_values="?"), "b": pandas.read_csv(files[3])}
    by_party = pfedsim.federate(frames, label="outcome", missing="mean")
    paths = pfedsim.federate([files[1], files[3]], label="outcome", missing="mean")
    assert by_party.names == ["a", "b"]
    np.testing.assert_array_equal(by_party.data.x, paths.data.x)
    joined = pandas.concat([frame.assign(hospital=who) for who, frame in frames.items()])
    joined["admitted"] = pandas.to_datetime(joined["admitted"])
    column = pfedsim.federate(joined, label="outcome", client="hospital", missing="mean")
    np.testing.assert_array_equal(column.data.x, paths.data.x)
    with pytest.raises(Error, match="has no column 'label'"):
        pfedsim.federate(joined)


def test_few_given_parties_all_take_part(tmp_path: Path) -> None:
    who, n = [k % 40 for k in range(400)], range(400)
    path = written(
        tmp_path, rows([7 * k % 50 for k in n], who, [k // 40 % 2 for k in n], head="a,client,label")
    )[0]
    from pfedsim.runs.setup import prepare

    for how, join in (({}, 1.0), ({"partition": "iid", "clients": 40, "minimum": 2}, 0.1)):
        federation = pfedsim.federate(path, **how)
        from pfedsim.api import _config

        assert prepare(_config(federation, {"rounds": 1, "workers": 1}), federation).config.join == join


def test_a_set_without_clients_says_how_it_was_divided(tmp_path: Path, four: Federation) -> None:
    path = written(tmp_path, WELL)[0]
    federation = pfedsim.federate(path, clients=2, partition="iid", minimum=2)
    said = "the data name no clients: divided among 2 artificial ones (iid, seed 42)"
    assert federation.divided == [said]
    assert four.divided == []


# readings of the past


def older(path: Path, **options: object) -> DataSet:
    return own.Own(str(path), **options).read("t", None, lambda *_: None)  # type: ignore[arg-type]


def test_a_record_or_run_of_an_older_reading_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading 1 took mean and deviation over all rows; its sets and runs keep their digests."""
    monkeypatch.chdir(tmp_path)
    x = np.array([[k * k % 37, k % 5] for k in range(60)], np.float32)
    path = written(tmp_path, rows(*x.astype(int).T.tolist(), ["u", "v", "v"] * 20, head="a,b,label"))[0]
    before = older(path)
    np.testing.assert_allclose(before.mean, x.mean(0))
    np.testing.assert_allclose(before.std, x.std(0), rtol=1e-6)
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "mine.toml").write_text(
        f'path = "{path}"\ndrop = []\ndigest = "{before.digest}"\n'
    )
    assert data.read("mine", tmp_path / "sets").digest == before.digest
    again = own.check_new("mine", own.Own(str(path), reading=own.NEWEST), tmp_path / "sets", ())
    assert again.reading == 1
    assert data.read(str(path), digest=before.digest).digest == before.digest
    assert data.read(str(path)).digest != before.digest
    run = pfedsim.train(
        pfedsim.federate(before, clients=2, partition="iid"), "local", "run", rounds=1, epochs=1
    )
    from pfedsim.export.write import load_federation

    config = run.config.model_copy(update={"data": str(path)})
    monkeypatch.setattr(run, "config", config)
    assert load_federation(run).data.digest == before.digest


# signals


def signals(tmp_path: Path, **arrays: object) -> Path:
    np.savez(tmp_path / "s.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path / "s.npz"


def uneven(tmp_path: Path) -> tuple[Path, list[np.ndarray]]:
    each = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 100 * k for k, n in enumerate((5, 3, 8, 4))]
    where = {"client": np.array(["p", "p", "q", "q"]), "y": np.array([10, 20, 10, 20])}
    return signals(tmp_path, x=np.concatenate(each), length=[5, 3, 8, 4], **where), each


def test_signals_of_unequal_lengths_are_padded_cut_or_divided(tmp_path: Path) -> None:
    path, each = uneven(tmp_path)
    with pytest.raises(Error, match="the signals have 3 to 8 steps; choose --lengths pad, cut or window"):
        data.read(str(path))
    pad, cut, window = (older(path, reading=2, lengths=how) for how in ("pad", "cut", "window"))
    assert (pad.shape, cut.shape, window.shape) == ((2, 8), (2, 3), (2, 3))
    for k, one in enumerate(each):
        np.testing.assert_array_equal(pad.x[k, :, : len(one)], one.T)
        assert np.isnan(pad.x[k, :, len(one) :]).all()
        np.testing.assert_array_equal(cut.x[k], one[:3].T)
    assert "3 of 4 signals padded to 8 steps" in pad.said[0]
    parts = [one[3 * j : 3 * j + 3].T for one in each for j in range(len(one) // 3)]
    np.testing.assert_array_equal(window.x, np.stack(parts))
    assert window.client is not None
    assert window.client.tolist() == ["p", "p", "q", "q", "q"]
    assert "4 signals divided into 5 windows of 3 steps; 5 steps at the ends are left out" in window.said[0]
    with pytest.raises(Error, match="2 signals have fewer than 5 steps; cut to at most 3"):
        older(path, reading=2, lengths="cut", length=5)
    with pytest.raises(Error, match="the longest signal has 8 steps; pad to at least as many, not 6"):
        older(path, reading=2, lengths="pad", length=6)
    with pytest.raises(Error, match="no signal has 9 steps"):
        older(path, reading=2, lengths="window", length=9)


def test_lists_of_signals_get_the_way_out(tmp_path: Path) -> None:
    x = np.empty(2, dtype=object)
    x[0], x[1] = np.zeros(3), np.zeros(4)
    with pytest.raises(
        Error, match=r"save all steps one after another in x, .* the number of steps of each signal"
    ):
        data.read(str(signals(tmp_path, x=x, y=[0, 1])))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"length": [4, 4]}, "x has shape"),
        ({"length": [0, 6]}, "every signal needs at least 1 step"),
        ({"length": [2.5, 3.5]}, "must hold an integer"),
        ({"length": [3, 3], "y": [0, 1, 2]}, "y has shape"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(
    tmp_path: Path, arrays: dict[str, object], says: str
) -> None:
    path = signals(tmp_path, **{"x": np.zeros((6, 2)), "y": [0, 1], **arrays})
    with pytest.raises(Error, match=says):
        older(path, reading=2, lengths="cut")


@pytest.mark.parametrize(
    ("y", "classes", "numbers"),
    [
        ([10, 20, 30] * 4, ("10", "20", "30"), [0, 1, 2] * 4),
        ([-1, 1] * 6, ("-1", "1"), [0, 1] * 6),
        ([1.0, 2.0] * 6, ("1", "2"), [0, 1] * 6),
        (["rest", "run"] * 6, ("rest", "run"), [0, 1] * 6),
        ([0, 1, 2] * 4, ("0", "1", "2"), [0, 1, 2] * 4),
    ],
)
def test_labels_are_names(
    tmp_path: Path, y: list[object], classes: tuple[str, ...], numbers: list[int]
) -> None:
    found = data.read(str(signals(tmp_path, x=np.zeros((12, 2, 9)), y=y)))
    assert (found.classes, found.y.tolist()) == (classes, numbers)
    told = "the labels are" in " ".join(found.said)
    assert told == (y[0] not in (0, "rest"))


def test_hundreds_of_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="y has 300 different values for 900 samples, too many for classes"):
        data.read(str(signals(tmp_path, x=np.zeros((900, 2, 4)), y=np.arange(900) % 300)))


def test_one_column_cannot_be_label_and_party(tmp_path: Path) -> None:
    written(tmp_path, rows(["1", "2", "3", "4"], ["x", "y"] * 2, head="v,label"))
    with pytest.raises(Error, match="column 'label' cannot be both the label and the party"):
        pfedsim.federate([next(tmp_path.glob("*.csv"))], label="label", client="label")
