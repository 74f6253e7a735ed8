"""Comparisons from Python: what they return, what they reuse, and how a folder is read back."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

import pfedsim
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.experiments.compare import load

WORDS: dict[str, Any] = {"rounds": 2, "epochs": 1, "local_steps": 2, "score": {"every": 0, "finetune": 0}}


def test_a_comparison_from_python_is_a_table(digits: Federation) -> None:
    made = pfedsim.compare(digits, ["fedavg"], [1, 2], **WORDS)
    assert made.methods == ["Local-Only", "FedAvg"]
    alone, fedavg = made.table()
    by_hand = [100 * run.summary["served"]["micro"] for run in made.runs["FedAvg"].values()]
    assert fedavg["served"] == pytest.approx(statistics.mean(by_hand))
    assert fedavg["minus-local"] == pytest.approx(fedavg["served"] - alone["served"])
    assert "FedAvg" in made._repr_html_()
    folder = made.runs["FedAvg"][1].path
    assert folder.is_dir()
    del made
    assert not folder.exists()


def test_runs_side_by_side_are_those_of_one_process(digits: Federation, tmp_path: Path) -> None:
    told: set[str] = set()
    side = pfedsim.compare(
        digits, ["fedavg"], [1], tmp_path / "side", lambda done: told.add(done.method), workers=2, **WORDS
    )
    assert told == {"Local-Only, seed 1", "FedAvg, seed 1"}
    alone = pfedsim.train(digits, "fedavg", tmp_path / "alone", seed=1, workers=1, **WORDS)
    assert side.runs["FedAvg"][1].summary == alone.summary


def test_a_comparison_is_read_back_over_the_seeds_that_all_have(digits: Federation, tmp_path: Path) -> None:
    pfedsim.compare(digits, ["fedavg"], [1], tmp_path / "side", workers=1, **WORDS)
    pfedsim.train(digits, "fedavg", tmp_path / "side" / "fedavg-seed2", seed=2, workers=1, **WORDS)
    made = load(tmp_path / "side")
    assert (made.methods, made.seeds) == (["Local-Only", "FedAvg"], (1,))
    (tmp_path / "side" / "local-only-seed1" / "summary.json").unlink()
    with pytest.raises(Error, match="is not finished"):
        load(tmp_path / "side")


def test_what_contradicts_the_federation_is_refused(digits: Federation) -> None:
    with pytest.raises(Error, match="this federation was dealt with"):
        pfedsim.compare(digits, ["fedavg"], clients=digits.clients + 1)
    with pytest.raises(Error, match="expected the federation"):
        pfedsim.compare("digits", ["fedavg"])  # type: ignore[arg-type]
