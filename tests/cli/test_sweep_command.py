"""`pfedsim sweep` and `compare --tune`, as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pfedsim.cli.app import app
from pfedsim.errors import Error

SMALL = "--clients 4 --rounds 2 --epochs 1 --local-steps 2 --set score.finetune=0 --workers 1"
SWEEP = f"sweep --method fedavg --over lr=0.01,0.1 --over momentum=0,0.9 {SMALL}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def says(line: str) -> Result:
    done = CliRunner().invoke(app, line.split())
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_sweep_writes_a_table_a_picture_and_its_best_settings() -> None:
    first = says(SWEEP)
    assert first.exit_code == 0, first.output
    (folder,) = Path("runs").iterdir()
    assert {p.name for p in folder.iterdir()} == {"trials", "table.md", "table.csv", "best.toml", "figures"}
    assert (folder / "figures" / "sweep.png").stat().st_size > 5000
    assert f"pfedsim run {folder}/best.toml" in first.output
    assert len((folder / "table.csv").read_text().splitlines()) == 1 + 4
    assert not re.search("accuracy \\d", first.output.partition("digits, 4 clients")[0])  # none on test
    told = json.loads(says(f"{SWEEP} --json").stdout)
    assert told["folder"] == str(folder)
    assert len(told["trials"]) == 4
    best = max(told["trials"], key=lambda t: (t["outcome"] == "finished", t["validation"]))
    assert told["best"]["settings"] == {name: best[name] for name in ("lr", "momentum")}
    run = says(f"run {folder}/best.toml --out again --json")
    assert json.loads(run.stdout)["method"] == "FedAvg"
    with pytest.raises(Error, match="is a sweep"):
        says(f"show {folder}")
    with pytest.raises(Error, match="is not a sweep's folder"):
        says(f"{SWEEP} --out again")
    assert says(f"{SWEEP} --fresh --quiet").stdout.strip() == str(folder)


def test_set_and_over_take_the_same_names() -> None:
    for name, hint in (("lrr", "lr"), ("fedavgg.weights", "fedavg"), ("scor.every", "score")):
        sentences = []
        for line in (f"run --method fedavg --set {name}=1", f"sweep --method fedavg --over {name}=1,2"):
            with pytest.raises(Error, match="there is no setting") as refused:
                says(line)
            sentences.append(str(refused.value))
        assert sentences[0] == sentences[1]
        assert f"did you mean {hint!r}" in sentences[0]
    assert not Path("runs").exists()


def test_a_comparison_says_what_was_tuned() -> None:
    done = says(f"compare --methods fedavg --tune 2 --seeds 1 --out c {SMALL}")
    assert done.exit_code == 0, done.output
    assert re.search(r"│ FedAvg +│ +(tuned|default) │ +2 │", done.output)
    assert "Settings" in (Path("c") / "table.md").read_text()
    assert "trials by validation" in says("show c").output.replace("\n", " ")
    assert says("show c --html").exit_code == 0
    assert "<td>FedAvg" in (Path("c") / "report.html").read_text()


def test_help_groups_the_options_of_a_sweep() -> None:
    said = CliRunner().invoke(app, ["sweep", "--help"], env={"COLUMNS": "100"}).output
    part = said.partition("Sweep:")[2].partition("Method and model:")[0]
    assert re.findall(r"^  (--\w+)", part, re.M) == ["--over", "--trials", "--sampler", "--prune"]
    assert "--track" not in said
