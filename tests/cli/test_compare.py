"""Comparisons and runs side by side, as `compare`, `show` and `doctor` show them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pfedsim
from pfedsim.cli.app import app
from pfedsim.experiments.compare import compare
from pfedsim.report.tables import names, run_table
from pfedsim.runs import setup
from pfedsim.runs.config import check
from pfedsim.runs.reader import Run

WORDS = {"clients": 4, "rounds": 2, "epochs": 1, "local_steps": 2, "score": {"finetune": 1}}
OPTIONS = [
    "--clients",
    "4",
    "--rounds",
    "2",
    "--epochs",
    "1",
    "--local-steps",
    "2",
    "--set",
    "score.finetune=1",
]


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "side"
    compare(check(WORDS), ["fedavg"], [1, 2], folder)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pfedsim_says(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_show_takes_the_folder_of_a_comparison(side: Path) -> None:
    said = pfedsim_says("show", side)
    assert "2 clients" not in said
    assert re.search(r"FedAvg +│ +\d+\.\d\d \(\d+\.\d\d\)", said)  # mean and spread over the seeds
    assert (side / "figures" / "curves.png").is_file()
    assert pfedsim_says("show", side, "--html", "--out", "page").splitlines()[-1] == "page/report.html"
    page = Path("page/report.html").read_text()
    assert page.count("<picture>") == 2
    assert "served: all samples" in page


def test_show_names_the_runs_that_it_leaves_out(side: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(side, tmp_path / "side"))
    assert "left out" not in pfedsim_says("show", copy)
    (copy / "fedavg-seed2" / "summary.json").unlink()
    left_out = [line for line in pfedsim_says("show", copy).splitlines() if "left out" in line]
    assert [Path(line.partition(" ")[0]).name for line in left_out] == ["fedavg-seed2", "local-only-seed2"]


def test_show_takes_a_choice_of_columns(side: Path) -> None:
    said = pfedsim_says("show", side, "--columns", "served")
    assert "worst tenth" not in said
    with pytest.raises(pfedsim.Error, match="did you mean 'served'"):
        pfedsim_says("show", side, "--columns", "servde")
    with pytest.raises(pfedsim.Error, match="--columns selects columns of a comparison"):
        pfedsim_says("show", side / "fedavg-seed1", "--columns", "served")


def test_doctor_takes_the_folder_of_a_comparison(side: Path) -> None:
    said = pfedsim_says("doctor", side)
    assert said.count("nothing is wrong") == 4


def test_several_runs_are_told_apart_by_the_settings_that_differ(tmp_path: Path) -> None:
    federation = pfedsim.federate("digits", clients=4)
    words = {"rounds": 1, "epochs": 1, "local_steps": 1, "score": {"finetune": 0}}
    for lr in (0.01, 0.1):
        pfedsim.train(federation, "fedavg", tmp_path / f"rate-{lr}", lr=lr, **words)  # type: ignore[arg-type]
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    said = pfedsim_says("show", "rate-0.01", "rate-0.1")
    assert "lr=0.01" in said
    assert "lr=0.1 " in said
    assert "rounds=" not in said
    page = pfedsim_says("show", "rate-0.01", "rate-0.1", "--html").splitlines()[-1]
    assert "lr=0.01" in Path(page).read_text()
    now = {
        p: p.stat().st_mtime_ns
        for folder in ("rate-0.01", "rate-0.1")
        for p in (tmp_path / folder).rglob("*")
    }
    assert now.items() <= before.items()  # nothing was written into the runs' own folders


def test_runs_in_folders_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    federation = pfedsim.federate("digits", clients=4)
    words = {"rounds": 1, "epochs": 1, "local_steps": 1, "score": {"finetune": 0}}
    runs = [
        pfedsim.train(federation, "fedavg", tmp_path / place / "run", **words)  # type: ignore[arg-type]
        for place in ("a", "b")
    ]
    assert list(names(runs)) == [f"FedAvg ({tmp_path / place / 'run'})" for place in ("a", "b")]
    assert [row[0].text for row in run_table(runs).rows] == [str(run.path) for run in runs]


def test_names_that_differ_only_in_their_end_are_not_cut(tmp_path: Path) -> None:
    federation = pfedsim.federate("digits", clients=4)
    words = {"rounds": 1, "epochs": 1, "local_steps": 1, "score": {"finetune": 0}}
    folders = [f"fedavg-on-digits-with-a-long-name-seed{seed}" for seed in (41, 42)]
    for seed, name in zip((41, 42), folders, strict=True):
        pfedsim.train(federation, "fedavg", tmp_path / name, seed=seed, **words)  # type: ignore[arg-type]
    said = pfedsim_says("show", *folders)
    assert "…" not in said
    for seed in (41, 42):
        assert f"seed={seed}" in said


def test_the_same_run_twice_is_reused() -> None:
    words = ["run", "--method", "fedavg", *OPTIONS]
    first = pfedsim_says(*words)
    folder = re.search(r"written to (\S+)", first)
    assert folder is not None
    summary = Path(folder[1], "summary.json")
    before = summary.stat().st_mtime_ns
    assert f"{folder[1]} already holds this run; --fresh starts over" in pfedsim_says(*words)
    assert summary.stat().st_mtime_ns == before
    pfedsim_says(*words, "--fresh")
    assert summary.stat().st_mtime_ns > before


def test_nothing_is_computed_twice_in_one_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs: each method is prepared once to be checked, each run once to be executed; every file of
    clients is parsed once. A second comparison only checks."""
    counts: dict[str, int] = {}

    def counted(owner: object, name: str, as_name: str = "") -> None:
        before = getattr(owner, name)

        def count(*arguments: object, **named: object) -> object:
            counts[as_name or name] = counts.get(as_name or name, 0) + 1
            return before(*arguments, **named)

        monkeypatch.setattr(owner, name, count)

    from pfedsim.runs import execute, resume

    for module in (setup, execute, resume):
        counted(module, "prepare")
    counted(setup, "federate")
    counted(Run, "clients")
    words = ["compare", "--methods", "local,fedavg,pfedsim", *OPTIONS, "--workers", "1", "--out", "side"]
    pfedsim_says(*words)
    assert counts == {"federate": 1, "prepare": 3 + 3, "clients": 3}
    counts.clear()
    pfedsim_says(*words)
    assert counts == {"federate": 1, "prepare": 3, "clients": 3}
