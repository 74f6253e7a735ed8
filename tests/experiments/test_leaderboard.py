"""A leaderboard: tuned alike, run once, shown whole or in part."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedsim.cli.app import app
from pfedsim.errors import Error
from pfedsim.experiments import published
from pfedsim.experiments.board import load
from pfedsim.experiments.boards import NAMES
from pfedsim.experiments.cell import Record
from pfedsim.experiments.leaderboard import Leaderboard
from pfedsim.experiments.store import Store
from pfedsim.methods import METHODS
from pfedsim.report.published import parts
from pfedsim.report.standings import Standings
from pfedsim.runs.reader import Run

BOARD = """
title = "Two partitions of the digits"
methods = ["fedavg", "pfedsim"]
seeds = [1, 2]
[tuning]
trials = 2
validation = 0.2
[settings]
data = "digits"
model = "mlp"
clients = 3
minimum = 10
partition = "dirichlet"
rounds = 2
join = 1.0
epochs = 1
local_steps = 4
lr = 0.01
score = { every = 1, finetune = 1, lr = 0.01 }
[[set]]
name = "skewed"
title = "Dir(0.1)"
tuning_rounds = 1
round_seconds = 0.1
settings = { alpha = 0.1 }
[[set]]
name = "even"
title = "Dir(10)"
tuning_rounds = 1
round_seconds = 0.1
settings = { alpha = 10.0 }
"""
MINE = """from dataclasses import dataclass
from pfedsim import Method


@dataclass(frozen=True)
class Mine(Method):
    "Plain averaging."
    title = "Mine"
"""


def says(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["leaderboard", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board")
    (folder / "two.toml").write_text(BOARD)
    said = says(folder / "two.toml", "--results", folder / "results", "--out", folder / "page", "--jobs", 2)
    assert "0 of 12 runs are finished; the rest takes about 0.0 core hours" in said
    return folder


@pytest.fixture
def board(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def numbers(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "page" / "leaderboard.json").read_text())
    return content


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_each_cells_command_gives_its_models_and_numbers(finished: Path, tmp_path: Path) -> None:
    row = next(
        r
        for r in numbers(finished)["runs"]
        if (r["set"], r["method"], r["seed"]) == ("skewed", "pFedSim", 2)
    )
    program, *words = shlex.split(row["command"])
    assert program == "pfedsim"
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
    run = Run(tmp_path / "run")
    assert run.summary["models_digest"] == row["models_digest"]
    assert run.summary["config_digest"] == row["config_digest"]
    served, tuned = (run.client_values(model=m) for m in ("served", "finetuned"))
    assert row["served"] == pytest.approx(100 * np.mean(served), abs=2e-3)
    assert row["tuned"] == pytest.approx(100 * np.mean(tuned), abs=2e-3)
    assert row["worst"] == pytest.approx(100 * min(served), abs=2e-3)  # a tenth of three clients is one


def test_worse_off_is_counted_against_local_only_of_the_same_seed(finished: Path) -> None:
    records = {r.cell.words["method"]: r for r in Store(finished / "results").all() if _is(r, 0.1, 1)}
    alone, ours = (records[m].found["clients"]["served"] for m in ("local", "fedavg"))
    expected = 100 * sum(a > b for a, b in zip(alone, ours, strict=True)) / 3
    rows = {(r["set"], r["method"], r["seed"]): r for r in numbers(finished)["runs"]}
    assert rows["skewed", "FedAvg", 1]["worse"] == pytest.approx(expected, abs=1e-3)
    assert rows["skewed", "Local-Only", 1]["worse"] is None


def _is(record: Record, alpha: float, seed: int) -> bool:
    words = record.cell.words
    return record.cell.kind == "run" and words["alpha"] == alpha and words["seed"] == seed


def test_every_method_is_tuned_with_the_same_trials_on_validation_alone(finished: Path) -> None:
    records = Store(finished / "results").all()
    tuned = [r for r in records if r.cell.kind == "tuning"]
    assert len(tuned) == 6  # three methods on two data sets
    for record in tuned:
        trials = record.found["trials"]
        assert len(trials) == 2
        best = max(trials, key=lambda t: t["accuracy"])
        assert record.found["chosen"] == best["settings"]
        assert record.cell.words["validation"] == 0.2
        assert record.cell.words["seed"] not in (1, 2)
        assert "served" not in record.found  # no score on test
        finals = [
            r
            for r in records
            if r.cell.kind == "run"
            and all(r.cell.words[k] == record.cell.words[k] for k in ("method", "alpha"))
        ]
        assert len(finals) == 2
        for final in finals:
            assert "validation" not in final.cell.words
            assert final.cell.words["lr"] == best["settings"].get("lr", 0.01)
    rates = [[t["settings"].get("lr") for t in r.found["trials"]] for r in tuned]
    assert all(r == rates[0] for r in rates)


def test_a_finished_board_runs_nothing_again_and_gives_the_same_bytes(board: Path) -> None:
    before = files(board)
    says("two.toml", "--results", "results", "--out", "page")
    after = files(board)
    name = "page/leaderboard.html"
    assert {n: b for n, b in after.items() if not n.startswith("page/")} == {
        n: b for n, b in before.items() if not n.startswith("page/")
    }
    assert _without_command(after[name]) == _without_command(before[name])
    said = says("two.toml", "--results", "results", "--dry-run")
    assert "12 of 12 runs are finished and kept in results" in said
    assert "missing" not in said


def _without_command(page: bytes) -> bytes:
    """The board is called by another path."""
    return re.sub(rb"pfedsim leaderboard [^\s<]*two.toml", b"", page)


def test_what_is_missing_is_shown_with_its_command_and_run_alone(board: Path) -> None:
    gone = [p for p in (board / "results").rglob("*pfedsim*seed1-*.json") if "dir10" in p.name]
    assert len(gone) == 1
    content = gone[0].read_bytes()
    gone[0].unlink()
    said = says("two.toml", "--results", "results", "--out", "page", "--only-report")
    assert "11 of 12 runs are finished" in said
    assert "1 of 2 seeds" in re.sub(r"\s+│?\s*", " ", said)
    row = next(r for r in numbers(board)["runs"] if r["state"] == "missing")
    assert row["command"] == "pfedsim leaderboard two.toml --sets even --methods pfedsim"
    assert row["served"] is None
    page = (board / "page" / "leaderboard.html").read_text()
    assert row["command"] in page
    assert row["command"] in (board / "page" / "leaderboard.md").read_text()
    says("two.toml", "--sets", "even", "--methods", "pfedsim", "--results", "results", "--out", "page")
    again, before = json.loads(gone[0].read_bytes()), json.loads(content)
    assert again["found"] == before["found"]


def test_nothing_finished_is_a_page_of_commands(board: Path) -> None:
    says("two.toml", "--results", "none", "--out", "page", "--only-report")
    assert "<table" in (board / "page" / "leaderboard.html").read_text()
    assert all(r["state"] == "missing" for r in numbers(board)["runs"])


def test_a_damaged_cell_is_named_and_counts_as_missing(board: Path) -> None:
    path = next((board / "results").rglob("*fedavg-seed1-*.json"))
    path.write_bytes(path.read_bytes().replace(b'"micro":', b'"micro":0', 1))
    said = says("two.toml", "--results", "results", "--dry-run")
    assert f"{path.relative_to(board)} is damaged" in said
    assert "11 of 12" in said
    says("two.toml", "--results", "results", "--out", "page", "--only-report", code=1)


def test_a_method_of_ones_own_joins_and_its_code_counts(board: Path) -> None:
    (board / "mine.py").write_text(MINE)
    words = ("two.toml", "--results", "results", "--out", "page", "--add", "mine.py:Mine")
    says(*words)
    rows = {(r["set"], r["method"], r["seed"]): r for r in numbers(board)["runs"]}
    for place in ("skewed", "even"):  # it is FedAvg, and it was tuned like FedAvg
        mine, theirs = rows[place, "Mine", 1], rows[place, "FedAvg", 1]
        assert mine["models_digest"] == theirs["models_digest"]
        assert mine["chosen"] == theirs["chosen"]
    assert "4 of 4 runs are finished" in says(*words, "--dry-run")
    (board / "mine.py").write_text(MINE.replace("Plain", "Other"))
    assert "0 of 4 runs are finished" in says(*words, "--dry-run")


def test_two_methods_of_one_name_are_refused(board: Path) -> None:
    for name in ("mine", "yours"):
        (board / f"{name}.py").write_text(MINE)
    with pytest.raises(
        Error, match=r"mine.py:Mine and yours.py:Mine have the same name in the table, Mine"
    ):
        says("two.toml", "--add", "mine.py:Mine", "--add", "yours.py:Mine", "--dry-run")


def test_a_board_may_choose_the_round_by_validation(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(BOARD.replace("rounds = 2", 'rounds = 2\nvalidation = 0.3\nstop = { round = "best" }'))
    table = Leaderboard(load(str(path)), Store(tmp_path))
    one = table.contender(table.board.places[0], "fedavg")
    assert one.tuning is not None
    assert one.tuning.words["validation"] == 0.2
    assert one.tuning.config.stop == one.cells[1].config.stop
    assert one.tuning.config.score.every == 1
    assert one.cells[1].config.validation == 0.3


def test_the_page_needs_nothing_from_elsewhere(finished: Path) -> None:
    page = (finished / "page" / "leaderboard.html").read_text()
    assert not re.findall(r'(?:src|href|srcset)="(?!#|data:)[^"]*', page)
    assert "@import" not in page
    anchors = set(re.findall(r'href="#([^"]+)"', page))
    assert anchors <= set(re.findall(r'id="([^"]+)"', page))
    inside = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page, re.S)
    assert inside
    data = json.loads(inside[1])
    rows = [r for r in numbers(finished)["runs"] if (r["set"], r["method"]) == ("even", "FedAvg")]
    shown, text = data["cells"]["FedAvg"]["even"]["served"]
    assert shown == pytest.approx(np.mean([r["served"] for r in rows]), abs=1e-3)
    assert text == f"{shown:.2f} ({np.std([r['served'] for r in rows], ddof=1):.2f})"


def test_the_csv_has_a_line_for_each_run(finished: Path) -> None:
    with open(finished / "page" / "leaderboard.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert {line["state"] for line in lines} == {"finished"}
    assert [float(line["served"]) for line in lines] == [r["served"] for r in numbers(finished)["runs"]]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Two', 'titel = "Two', "there is no 'titel'; did you mean 'title'?"),
        ("trials = 2", "trials = 1", "tuning.trials = 1: must be at least 2"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "give different integers"),
        ('name = "even"', 'name = "skewed"', "two data sets are called skewed"),
        ("alpha = 10.0 }", "alpha = 10.0, seed = 3 }", "even sets seed, which the board decides by itself"),
        ("alpha = 10.0 }", "alhpa = 10.0 }", "there is no setting 'alhpa'; did you mean 'alpha'?"),
        ('["fedavg", "pfedsim"]', '["fedavg", "pfedsin"]', "did you mean 'pfedsim'?"),
        ("[tuning]\ntrials = 2\nvalidation = 0.2\n", "", "[tuning] is missing"),
        ("clients = 3\n", "", "skewed needs clients in its settings"),
        ('title = "Dir(10)"', 'title = "Dir(10)"\nvaries = "uneven"', "has no data set 'uneven'"),
        ('title = "Dir(10)"', 'title = "Dir(10)"\npublished = "pflib"', "did you mean 'pfllib'?"),
        ('title = "Dir(10)"', 'title = "Dir(10)"\nown = { fedavg = { alpha = 1.0 } }', "the same for all"),
    ],
)
def test_a_board_that_cannot_run_is_refused_in_a_sentence(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    assert old in BOARD
    path = tmp_path / "board.toml"
    path.write_text(BOARD.replace(old, new, 1))
    with pytest.raises(Error) as error:
        load(str(path))
    assert said in str(error.value)


def test_our_own_boards_can_be_read() -> None:
    assert NAMES == ("main", "pfllib", "quick")
    for name in NAMES:
        table = Leaderboard(load(name), Store(Path("nowhere")))
        for place in table.board.set:
            for method in table.methods(place):
                assert len({cell.digest for cell in table.contender(place, method).cells.values()}) == len(
                    table.board.seeds
                )


def test_published_numbers_stand_beside_ours_with_what_explains_them(tmp_path: Path) -> None:
    """FedAvg is a point and a half away, and near with another draw of the partition; FedPer is near at once."""
    table = Leaderboard(load("pfllib"), Store(tmp_path))
    theirs = published.numbers("pfllib")
    assert set(theirs) >= {"fedavg", "ditto"}
    base = table.board.place("fashion-mnist-20")
    for place, method, accuracy in (
        (base, "fedavg", theirs["fedavg"].accuracy - 1.5),
        (table.board.place("fashion-mnist-draw"), "fedavg", theirs["fedavg"].accuracy + 0.4),
        (table.board.place("fashion-mnist-rate"), "fedavg", theirs["fedavg"].accuracy - 2),
        (base, "fedper", theirs["fedper"].accuracy - 0.1),
    ):
        cell = table.cell(place, method, 42, {})
        curve = {"micro": [0.1, accuracy / 100, accuracy / 100 - 0.05]}  # the best round, not the last
        table.store.put(Record(cell, cell.settings(), {"curve": curve}, {}))
    table.forget()
    rows = [[c.text for c in row] for row in parts(Standings(table), base)[1].rows]  # type: ignore[union-attr]
    by_name = {row[0]: row for row in rows}
    assert by_name["FedAvg"][1:] == ["85.85 (0.19)", "84.35", "-1.50", "20", "explained"]
    assert by_name["FedAvg: another draw of the partition"][3:] == ["+0.40", "20", "explains it"]
    assert by_name["FedAvg: twice the learning rate"][5] == "does not explain it"
    assert by_name["FedAvg: 2,000 rounds, as published"][2:] == ["missing", "-", "2000", "-"]
    assert by_name["FedPer"][5] == "near"
    assert {row[0] for row in rows if ":" not in row[0]} == {
        METHODS[m].title for m in theirs if m in METHODS
    }
