"""export, predict, watch and show --html as a user meets them."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import small
from rich.console import Console
from typer.testing import CliRunner

import pfedsim as package
from pfedsim import Error, seal
from pfedsim.cli.app import app
from pfedsim.cli.watch import follow, view
from pfedsim.data.federation import Federation
from pfedsim.durable import locked
from pfedsim.runs.news import news
from pfedsim.runs.reader import Run


def pfedsim(*arguments: object) -> str:
    """What a command prints; the sentence of one that is refused is raised."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


@pytest.fixture(scope="module")
def run(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return package.train(
        digits, "pfedsim", tmp_path_factory.mktemp("out") / "run", rounds=3, epochs=1, join=1.0
    )


def test_from_a_run_to_predictions(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pfedsim("export", run.path, "--client", 4, out, "--samples").strip() == str(out)
    accuracy, samples = run.client_values()[4], int(run.client_values("samples")[4])
    table = pfedsim("predict", out, out / "samples.npz")
    assert f"{round(accuracy * samples)} of {samples} correct: accuracy {100 * accuracy:.2f}%" in table
    found = json.loads(pfedsim("predict", out, out / "samples.npz", "--format", "json"))
    assert found["accuracy"] == accuracy
    assert [p["class"] == p["label"] for p in found["predictions"]] == run.hits()[4].tolist()
    first = found["predictions"][0]
    assert first["probability"] == max(first["probabilities"].values())
    assert sum(first["probabilities"].values()) == pytest.approx(1)
    rows = list(
        csv.DictReader(io.StringIO(pfedsim("predict", out, out / "samples.npz", "--format", "csv")))
    )
    assert [r["class"] for r in rows] == [p["class"] for p in found["predictions"]]
    assert float(rows[0][f"p({first['class']})"]) == first["probability"]


def test_all_clients_at_once(run: Run, tmp_path: Path) -> None:
    pfedsim("export", run.path, tmp_path / "all", "--all")
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == [f"client-{i:05d}" for i in range(6)]
    assert package.load(tmp_path / "all" / "client-00005").classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "RUN", "OUT"], "choose a model: --client N, or --all"),
        (["export", "RUN", "OUT", "--all", "--client", "1"], "choose a model"),
        (["export", "RUN", "OUT", "--all", "--push", "a/b"], "--push uploads one client's model"),
        (["export", "RUN", "OUT", "--client", "6"], "clients 0 to 5"),
        (["export", "nowhere", "OUT", "--client", "1"], "there is no folder nowhere"),
        (["show", "nowhere"], "there is no folder nowhere"),
        (["run", "--extend", "nowhere", "--rounds", "9"], "there is no folder nowhere"),
        (["predict", "RUN", "x.png"], "is not an exported model: it has no config.json"),
        (["predict", "RUN", "x.png", "--format", "xml"], "table, csv or json"),
        (["watch", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_wrong_words_get_one_sentence(run: Run, tmp_path: Path, arguments: list[str], says: str) -> None:
    places = {"RUN": str(run.path), "OUT": str(tmp_path / "out")}
    with pytest.raises(Error, match=re.escape(says)) as refused:
        pfedsim(*(places.get(a, a) for a in arguments))
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_data_that_has_gone_is_said_where_real_samples_are_needed(run: Run, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(run.path, tmp_path / "moved"))
    text = (moved / "config.toml").read_text()
    (moved / "config.toml").write_text(text.replace('data = "digits"', 'data = "gone.npz"', 1))
    shutil.rmtree(moved / "figures", ignore_errors=True)
    small.listed(moved)  # or the changed configuration would be what is refused
    manifest = seal.load(moved / "manifest.json", "a manifest")
    manifest["files"]["config.toml"] = Run(moved).files["config.toml"]
    (moved / "manifest.json").write_text(seal.sealed(manifest))
    with pytest.raises(Error, match=r"there is no file gone\.npz"):
        pfedsim("export", moved, tmp_path / "out", "--client", 1, "--samples")
    pfedsim("export", moved, tmp_path / "out", "--client", 1)


class Replay:
    """A run's folder as it was at earlier times: every pause brings one more round, the last one the
    end."""

    def __init__(self, run: Run, folder: Path):
        folder.mkdir()
        self._run, self._folder, self.pauses = run, folder, 0
        for name in ("config.toml", "events.jsonl", "timings.jsonl"):
            (folder / name).write_bytes((run.path / name).read_bytes())
        self._write(0)

    def _write(self, rounds: int) -> None:
        lines = (self._run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
        known = [line for line in lines if json.loads(line)["round"] <= rounds]
        half = (
            lines[len(known)][:20] if len(known) < len(lines) else ""
        )  # the next one is being written just now
        (self._folder / "metrics.jsonl").write_text("".join(known) + half)

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self._write(self.pauses)
        if self.pauses == 3:
            for name in ("manifest.json", "SHA256SUMS", "summary.json"):
                (self._folder / name).write_bytes((self._run.path / name).read_bytes())


def test_watch_follows_a_run_until_it_ends(run: Run, tmp_path: Path) -> None:
    replay, out = Replay(run, tmp_path / "run"), io.StringIO()
    with locked(tmp_path / "run"):
        follow(tmp_path / "run", Console(file=out, width=200), replay.pause)
    lines = out.getvalue().splitlines()
    assert replay.pauses == 3
    assert [line.partition(":")[0] for line in lines[:3]] == [f"round {k} of 3" for k in (1, 2, 3)]
    losses = [r["train_loss"] for r in run.metrics() if "train_loss" in r]
    assert all(f"training loss {loss:.4f}" in line for loss, line in zip(losses, lines, strict=False))
    assert f"served {100 * run.accuracy:.2f}% of all samples" in lines[2]
    assert lines[3].startswith("finished")


def test_watch_on_a_terminal_shows_where_the_run_stands(run: Run, tmp_path: Path) -> None:
    replay, out = Replay(run, tmp_path / "run"), io.StringIO()
    with locked(tmp_path / "run"):
        follow(tmp_path / "run", Console(file=out, width=100, force_terminal=True), replay.pause)
    assert "finished" in out.getvalue()
    still = io.StringIO()
    Console(file=still, width=100).print(view(news(tmp_path / "run")))
    text = still.getvalue()
    assert "pfedsim on digits, 6 clients, seed 42" in text
    assert "3 of 3" in text
    assert f"{100 * run.accuracy:.2f}% of all samples" in text
    assert f"{100 * run.summary['finetuned']['micro']:.2f}% of all samples" in text


def test_watch_needs_a_runs_folder(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"there is no config\.toml"):
        follow(tmp_path, Console(file=io.StringIO()))


def test_show_writes_the_page_into_the_runs_folder(run: Run) -> None:
    assert str(run.path / "report.html") in pfedsim("show", run.path, "--html")
    assert (run.path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_run_as_a_data_frame(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert list(frame.columns) == ["round", "client", "model", "split", "metric", "value"]
    last = frame.query(
        "round == 3 and model == 'served' and metric == 'accuracy' and split == 'test'"
    ).sort_values("client")
    assert last["value"].tolist() == run.client_values()
    assert pandas.api.types.is_float_dtype(frame["value"])
    assert not frame["metric"].eq("confusion").any()


def test_a_folder_of_runs_names_them(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "second")
    shutil.copytree(run.path, tmp_path / "first")
    (tmp_path / "notes.txt").write_text("mine")
    for command in ("show", "resume", "watch"):
        with pytest.raises(Error, match=r"is not a run's folder; it contains the runs first, second$"):
            pfedsim(command, tmp_path)
