"""The real thing, small: what the README promises of digits, and every method side by side on the command
line."""

import subprocess
import sys

import pytest

import pfedsim
from pfedsim.methods import TWELVE

TITLES = [
    "Local-Only",
    "FedAvg",
    "FedProx",
    "FedDyn",
    "FedGen",
    "FedBN",
    "Per-FedAvg",
    "FedPer",
    "FedRep",
    "FedFomo",
    "f-FedAP",
    "pFedSim",
]


@pytest.mark.slow
def test_pfedsim_serves_ten_points_better_than_fedavg():
    """Digits with all its defaults: uneven clients get from pFedSim what a common model cannot give
    them."""
    federation = pfedsim.federate("digits")
    runs = {
        m: pfedsim.train(federation, m, seed=42, score={"every": 0, "finetune": 0})
        for m in ("pfedsim", "fedavg")
    }
    assert {run.summary["rounds"] for run in runs.values()} == {20}
    assert {run.summary["clients"] for run in runs.values()} == {20}
    assert runs["pfedsim"].accuracy >= runs["fedavg"].accuracy + 0.10
    assert runs["pfedsim"].accuracy > 0.8


@pytest.mark.slow
def test_the_papers_methods_side_by_side(tmp_path):
    words = [
        "--methods",
        "paper",
        "--rounds",
        "2",
        "--epochs",
        "2",
        "--clients",
        "6",
        "--join",
        "0.5",
        "--set",
        "score.finetune=1",
    ]
    command = [sys.executable, "-m", "pfedsim", "compare", *words, "--out", "both"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(TITLES) == len(TWELVE) == 12
    first = {words[0] for line in done.stdout.splitlines() if (words := line.strip("│| ").split())}
    assert set(TITLES) <= first  # a row each
    lines = (tmp_path / "both" / "table.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert rows == ["method", *TITLES] * 4  # accuracies, clients, and differences of both models
    assert {path.name for path in (tmp_path / "both").glob("*.csv")} == {"table.csv", "gains.csv"}
    assert "Traceback" not in done.stderr
