"""What people hand to a model: pictures, folders, tables, arrays; and one sentence for what it cannot
take."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pfedsim
from pfedsim import ClientModel, Error
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.export.samples import picture, read
from pfedsim.export.write import export, load_federation
from pfedsim.report.run_page import run_page
from pfedsim.runs.reader import Run


@pytest.fixture(scope="module")
def grey(done: Run) -> ClientModel:
    return done.client(3)


@pytest.fixture(scope="module")
def table(wards: Run) -> ClientModel:
    return wards.client(1)


@pytest.fixture(scope="module")
def colour() -> ClientModel:
    """A model that takes colour pictures, three wide and two high."""
    from torch import nn

    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 2))
    return ClientModel(net, ["a", "b"], (3, 2, 3), "uint8", (0.5,) * 3, (0.5,) * 3)


def test_pictures_of_the_clients_test_part_score_exactly_as_the_run_reported(
    grey: ClientModel, done: Run, digits: Federation, tmp_path: Path
) -> None:
    test = digits.partition.clients[3].test
    for k, position in enumerate(test):
        Image.fromarray(digits.data.x[position, 0]).save(tmp_path / f"{k:04d}.png")
    found = read(grey, [tmp_path])
    assert found.names == [str(tmp_path / f"{k:04d}.png") for k in range(len(test))]
    assert (found.x == digits.data.x[test]).all()
    named = np.array(grey.predict(found.x))
    assert (named == digits.data.y[test].astype(str)).mean() == done.client_values()[3]


def test_pictures_of_every_kind_become_the_models_channels(
    colour: ClientModel, grey: ClientModel, tmp_path: Path
) -> None:
    pixels = np.array(
        [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[10, 20, 30], [9, 9, 9], [0, 0, 0]]], dtype=np.uint8
    )
    image = Image.fromarray(pixels)
    right = pixels.transpose(2, 0, 1)
    for name, made in (
        ("rgb.png", image),
        ("rgba.png", image.convert("RGBA")),
        ("palette.png", image.quantize(16)),
        ("colour.bmp", image),
    ):
        made.save(tmp_path / name)
        assert (picture(colour, tmp_path / name) == right).all(), name
    Image.fromarray(pixels[:, :, 1]).save(tmp_path / "grey.png")
    assert (picture(colour, tmp_path / "grey.png") == pixels[None, :, :, 1].repeat(3, 0)).all()
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held on its side: to be turned right by a quarter
    image.rotate(90, expand=True).save(tmp_path / "turned.png", exif=turned)
    assert (picture(colour, tmp_path / "turned.png") == right).all()
    clear = image.convert("RGBA")
    clear.putpixel((1, 0), (7, 7, 7, 0))
    clear.save(tmp_path / "clear.png")
    assert picture(colour, tmp_path / "clear.png")[:, 0].tolist() == [
        [255, 255, 0],
        [0, 255, 0],
        [0, 255, 255],
    ]
    Image.fromarray(np.array([[0, 257, 65535], [514, 300, 0]], np.uint16)).save(tmp_path / "deep.png")
    assert picture(colour, tmp_path / "deep.png")[0].tolist() == [[0, 1, 255], [2, 1, 0]]
    whole = Image.fromarray(np.full((32, 32, 3), 200, np.uint8))
    content = io.BytesIO()
    whole.save(content, "png")
    content.seek(0)
    assert (picture(grey, content) == 200).all()
    assert picture(grey, content).shape == (1, 32, 32)


def test_pictures_that_do_not_fit_get_one_sentence(
    grey: ClientModel, table: ClientModel, tmp_path: Path
) -> None:
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(tmp_path / "small.png")
    with pytest.raises(Error, match=r"small\.png is 30 x 20 pixels; this model takes 32 x 32"):
        read(grey, [tmp_path / "small.png"])
    assert read(grey, [tmp_path / "small.png"], resize=True).x.shape == (1, 1, 32, 32)
    (tmp_path / "cut.png").write_bytes((tmp_path / "small.png").read_bytes()[:40])
    with pytest.raises(Error, match=r"cut\.png is not an image that Pillow can read"):
        read(grey, [tmp_path / "cut.png"])
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(Error, match=r"text\.jpg is not an image that Pillow can read"):
        read(grey, [tmp_path / "text.jpg"])
    Image.fromarray(np.zeros((32, 32), np.float32)).save(tmp_path / "fine.tif")
    with pytest.raises(Error, match=r"fine\.tif has floating-point pixels"):
        read(grey, [tmp_path / "fine.tif"])
    with pytest.raises(Error, match=r"there is no file or folder .*nowhere"):
        read(grey, [tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(Error, match="empty has no images"):
        read(grey, [tmp_path / "empty"])
    with pytest.raises(Error, match=r"float32 samples of shape \(6,\), not images"):
        read(table, [tmp_path / "small.png"])
    (tmp_path / "t.csv").write_text("1,2\n")
    with pytest.raises(Error, match=r"not rows of a table"):
        read(grey, [tmp_path / "t.csv"])
    with pytest.raises(Error, match="must be the only input"):
        read(grey, [tmp_path / "small.png", tmp_path / "t.csv"])


def test_a_table_scores_exactly_as_the_run_reported(table: ClientModel, wards: Run, tmp_path: Path) -> None:
    federation = load_federation(wards)
    test = federation.partition.clients[1].test
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "height", "weight", "pulse", "fever", "pain"])
        writer.writerows(federation.data.x[test].tolist())
    found = read(table, [tmp_path / "rows.csv"])
    named = np.array(table.predict(found.x))
    truth = np.array(federation.data.classes)[federation.data.y[test]]
    assert (named == truth).mean() == wards.client_values()[1]
    assert set(named) <= {"ill", "well", "zoster"}
    body = (tmp_path / "rows.csv").read_text().split("\n", 1)[1]
    (tmp_path / "headless.csv").write_text(body)
    assert (read(table, [tmp_path / "headless.csv"]).x == found.x).all()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b,c,d,e\n1,2,3,4,5\n", "row 1 has 5 columns; this model takes 6"),
        ("1,2,3,4,5,6\n1,2,3\n", "row 2 has 3 columns; this model takes 6"),
        ("a,b,c,d,e,f\n1,2,3,4,5,6\n1,2,x,4,5,6\n", "row 3, column c: 'x' is not a number"),
        ("1,2,3,4,,6\n", "row 1, column 5: '' is not a number"),
        ("a,b,c,d,e,f\n", "has no rows of numbers"),
        ("", "has no rows of numbers"),
    ],
)
def test_tables_that_do_not_fit_get_one_sentence(
    table: ClientModel, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(Error, match=says):
        read(table, [tmp_path / "t.csv"])


def test_arrays_that_do_not_fit_get_one_sentence(
    grey: ClientModel, table: ClientModel, tmp_path: Path
) -> None:
    def npz(**arrays: object) -> list[Path]:
        np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
        return [tmp_path / "a.npz"]

    with pytest.raises(Error, match="has no array 'x'; it has z"):
        read(grey, npz(z=1))
    with pytest.raises(Error, match=r"samples have shape \(1, 28, 28\); this model takes \(1, 32, 32\)"):
        grey.predict(read(grey, npz(x=np.zeros((2, 28, 28), np.uint8))).x)
    with pytest.raises(Error, match=r"values from 0 to 255; this model takes bytes"):
        grey.predict(np.linspace(0, 255, 1024).reshape(1, 1, 32, 32))
    with pytest.raises(Error, match="1 missing or infinite"):
        table.predict(np.array([[1, 2, 3, np.nan, 5, 6]]))
    with pytest.raises(Error, match="integers from 0 to 9"):
        read(grey, npz(x=np.zeros((2, 32, 32), np.uint8), y=[0, 10]))
    found = read(grey, npz(x=np.zeros((2, 32, 32), np.uint8), y=["7", "8"]))
    assert (found.names, found.labels) == (["0", "1"], ["7", "8"])


def test_bytes_are_numbers_to_a_model_that_never_saw_pixels(table: ClientModel) -> None:
    rows = np.array([[10, 20, 30, 40, 50, 60]])
    assert table.scores(rows.astype(np.uint8)).equal(table.scores(rows.astype(np.float32)))


def test_a_missing_value_is_what_stands_for_it_at_the_client(table: ClientModel, tmp_path: Path) -> None:
    mean, std = table.mean.tolist(), table.std.tolist()
    filling = ClientModel(
        table.module, table.classes, table.shape, table.dtype, mean, std, fill=[1, 2, 3, 4, 5, 6]
    )
    (tmp_path / "gaps.csv").write_text("10,,30,40,50,\n")
    found = read(filling, [tmp_path / "gaps.csv"])
    assert filling.scores(found.x).equal(table.scores(np.array([[10, 2, 30, 40, 50, 6]], np.float32)))
    with pytest.raises(Error, match="column 2: '' is not a number"):
        read(table, [tmp_path / "gaps.csv"])


def named(table: ClientModel, fill: list[float] | None = None) -> ClientModel:
    mean, std = table.mean.tolist(), table.std.tolist()
    return ClientModel(
        table.module,
        table.classes,
        table.shape,
        table.dtype,
        mean,
        std,
        fill,
        columns=["a", "b", "c", "d", "e", "2020"],
    )


@pytest.mark.parametrize("word", ["", " ? ", "NA", "n/a", "nan", "NULL", "None"])
def test_cells_are_missing_as_they_were_in_training(table: ClientModel, tmp_path: Path, word: str) -> None:
    (tmp_path / "t.csv").write_text(f"1,True,{word},4,5,6\n")
    x = read(named(table, [0.0] * 6), [tmp_path / "t.csv"]).x
    assert np.array_equal(x, np.array([[1, 1, np.nan, 4, 5, 6]], np.float32), equal_nan=True)
    with pytest.raises(Error, match=r"column 3: .* is not a number"):
        read(table, [tmp_path / "t.csv"])


def test_columns_are_taken_by_their_names(table: ClientModel, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("2020,e, d,c,b,a\n6,5,4,3,2,1\n")
    assert read(named(table), [tmp_path / "t.csv"]).x.tolist() == [[1, 2, 3, 4, 5, 6]]
    (tmp_path / "t.csv").write_text("6,5,4,3,2,1\n")  # without names, in their order
    assert read(named(table), [tmp_path / "t.csv"]).x.tolist() == [[6, 5, 4, 3, 2, 1]]
    (tmp_path / "t.csv").write_text("f,e,d,c,b,a\n6,5,4,3,2,1\n")
    with pytest.raises(Error, match="column '2020' is missing; this model takes a, b, c, d, e, 2020"):
        read(named(table), [tmp_path / "t.csv"])
    six = ClientModel(
        table.module, table.classes, table.shape, table.dtype, [0.0] * 6, [1.0] * 6, columns=list("abcdef")
    )
    (tmp_path / "t.csv").write_text("a,b,c,d,e,f,label\n1,2,3,4,5,6,7\n")
    with pytest.raises(Error, match="column 'label' is not one of the model's; this model takes a, b"):
        read(six, [tmp_path / "t.csv"])


def test_an_export_knows_the_columns_names_and_its_clients_own(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [
        f"{a},{b},{'none' if a < b else 'some'},{site}"
        for site in (10, 9)
        for a, b in draw.integers(0, 9, (40, 2))
    ]
    (tmp_path / "t.csv").write_text("\n".join(["age,pulse,label,client", *rows]))
    run = pfedsim.train(
        pfedsim.federate(str(tmp_path / "t.csv")), "local", tmp_path / "run", rounds=1, epochs=1
    )
    out = export(run, 1, tmp_path / "out")
    assert pfedsim.load(out).columns == ("age", "pulse")
    assert json.loads((out / "config.json").read_text())["run"]["name"] == "10"  # after 9
    assert "the model of client 1 (10)" in (out / "README.md").read_text()
    assert "<td>0</td><td>9</td>" in run_page(run)


def test_a_set_of_any_name_may_be_given(tmp_path: Path) -> None:
    mine = DataSet(
        "my own: [1]",
        np.eye(20, 3, dtype=np.float32),
        np.arange(20) % 2,
        ("a", "b"),
        (0.0,) * 3,
        (1.0,) * 3,
    )
    federation = pfedsim.federate(mine, clients=2, partition="iid", minimum=2)
    pfedsim.train(federation, "local", tmp_path / "run", model="mlp", rounds=1, epochs=1)
    assert Run(tmp_path / "run").config.data == "my own: [1]"


def test_an_export_into_the_working_directory_is_refused(
    done: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Error, match=r"\. is the working directory"):
        export(done, 0, Path())
    (tmp_path / "mine").touch()
    with pytest.raises(Error, match=r"\. already exists"):
        export(done, 0, Path())


def test_one_model_many_ways(done: Run, tmp_path: Path, digits: Federation) -> None:
    """The same answer from the run, from the export and from the folder's arrays."""
    out = export(done, 2, tmp_path / "out", federation=digits, samples=True)
    model = pfedsim.load(out)
    found = read(model, [out / "samples.npz"])
    assert model.probabilities(found.x).equal(done.client(2).probabilities(found.x))
    right = np.array(model.predict(found.x)) == np.array(found.labels)
    assert right.mean() == done.client_values()[2]
