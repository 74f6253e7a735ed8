"""`pfedsim watch` on runs under way, stopped and finished."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from pathlib import Path

import pytest
import small
from rich.console import Console

from pfedsim.cli.watch import follow
from pfedsim.durable import locked
from pfedsim.runs.news import news
from pfedsim.seal import sealed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four rounds of which one is done."""
    (tmp_path / "config.toml").write_text('method = "fedavg"\nrounds = 4\n')
    record = {"round": 1, "train_loss": 1.5, "clients": [0], "bytes_down": 1, "bytes_up": 1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "timings.jsonl").write_text("")
    return tmp_path


def watched(run: Path, terminal: bool = False, pause: object = None) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)

    def never(seconds: float) -> None:
        raise AssertionError("it waits for a run that nobody runs")

    follow(run, console, pause or never)  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_stopped_run_is_said_to_be_stopped(run: Path, terminal: bool) -> None:
    said = watched(run, terminal)
    assert "stopped after round 1 of 4" in said
    assert f"pfedsim resume {run}" in said


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_under_way_is_followed_until_it_lets_go(run: Path, terminal: bool) -> None:
    lock = locked(run)
    lock.__enter__()
    looks = []

    def pause(seconds: float) -> None:
        looks.append(news(run).running)
        if len(looks) == 2:
            lock.__exit__(None, None, None)

    assert "stopped after round 1 of 4" in watched(run, terminal, pause)
    assert looks == [True, True]


def test_a_finished_run_is_no_stopped_one(run: Path) -> None:
    (run / "summary.json").write_text("{}")
    (run / "events.jsonl").write_text("")
    made_of = {"config.toml": sha256((run / "config.toml").read_bytes()).hexdigest()}
    manifest = {"files": made_of, "timings.jsonl": sha256(b"").hexdigest()}
    (run / "manifest.json").write_text(sealed(manifest))
    small.listed(run)
    said = watched(run)
    assert f"finished; pictures: pfedsim show {run}" in said
    assert "stopped" not in said


def test_ctrl_c_claims_nothing_about_the_run(run: Path) -> None:
    def pause(seconds: float) -> None:
        raise KeyboardInterrupt

    with locked(run):
        said = watched(run, pause=pause)
    assert said.splitlines()[-1] == f"no longer watching {run}"


def test_looking_disturbs_no_run_that_takes_the_folder(run: Path) -> None:
    before = (run / "timings.jsonl").stat().st_mtime_ns
    assert not news(run).running
    with locked(run):
        assert news(run).running
        assert news(run).running
    assert (run / "timings.jsonl").stat().st_mtime_ns == before
