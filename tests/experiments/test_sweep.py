"""Sweeps against the same runs one by one: what is found, pruned, reused and left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trying
from trying import FEDERATION, OVER, WORDS, alone, swept, validation

import pfedsim
from pfedsim.durable import Busy, locked
from pfedsim.errors import Error
from pfedsim.experiments import runner
from pfedsim.experiments.store import Store
from pfedsim.experiments.sweep_folder import delete, is_sweep
from pfedsim.report.sweep import best_toml, table, text, write
from pfedsim.runs.config import check, load
from pfedsim.runs.execute import execute
from pfedsim.runs.reader import Run

ALL = [{"lr": lr, "momentum": m} for lr in OVER["lr"] for m in OVER["momentum"]]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Every trial of the sweep, run by itself."""
    return [alone(settings) for settings in ALL]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pruned sweep and its files."""
    place = tmp_path_factory.mktemp("sweep") / "s"
    write(swept(place), place)
    return place


def test_a_trial_is_the_run_with_its_settings(runs: list[Run]) -> None:
    found = swept(how={"prune": 0})
    assert [t.settings for t in found.trials] == ALL
    assert [t.validation for t in found.trials] == pytest.approx([validation(r) for r in runs])
    digests = [t.record.found["models_digest"] for t in found.trials if t.record]
    assert digests == [run.summary["models_digest"] for run in runs]
    best = max(range(6), key=lambda k: validation(runs[k]))
    assert found.best is found.trials[best]


def test_the_worse_half_is_pruned_by_its_validation_at_a_scored_round(
    folder: Path, runs: list[Run]
) -> None:
    found = swept(folder)
    at = 1  # a quarter of four
    scores = [validation(run, at) for run in runs]
    least = sorted(scores)[3]  # three of six go on, and those that equal the third
    for trial, score, run in zip(found.trials, scores, runs, strict=True):
        if score >= least:
            assert (trial.outcome, trial.round) == ("finished", 4)
            assert trial.record is not None
            assert trial.record.found["models_digest"] == run.summary["models_digest"]
        else:
            assert (trial.outcome, trial.round, trial.record) == ("pruned", at, None)
            assert trial.validation == pytest.approx(score)
    assert {t.outcome for t in found.trials} == {"finished", "pruned"}


def test_neither_the_order_nor_the_number_of_processes_changes_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.run
    monkeypatch.setattr(
        "pfedsim.experiments.trials.run_side_by_side",
        lambda cells, work, jobs, watch: real(list(reversed(cells)), work, 3, watch),
    )
    assert swept().table() == swept(folder).table()


def test_finished_trials_are_reused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    real = runner.run

    def counted(cells, work, jobs, watch):  # type: ignore[no-untyped-def]
        ran.append(len(cells))
        return real(cells, work, jobs, watch)

    monkeypatch.setattr("pfedsim.experiments.trials.run_side_by_side", counted)
    before = table(swept(folder))
    assert ran == []
    more = swept(folder, {**OVER, "momentum": [0.0, 0.9, 0.5]}, how={"prune": 0})
    assert ran == [3 + 3]  # the new values, and those that were pruned
    assert len(more.trials) == 9
    assert table(swept(folder)) == before  # what was finished since changes no decision
    assert not (folder / "trials" / ".runs").exists()


def test_best_toml_is_the_trial_again(folder: Path, tmp_path: Path) -> None:
    found = swept(folder)
    assert (folder / "best.toml").read_text() == best_toml(found)
    again = execute(check({**load(folder / "best.toml"), "state": True}), tmp_path / "again", FEDERATION)
    words = {**WORDS, **found.best.settings}
    first = execute(check(words), tmp_path / "first", FEDERATION)
    assert again.files == first.files
    assert found.best.record is not None
    for name in ("models_digest", "config_digest"):
        assert found.best.record.found[name] == again.summary[name]


def is_free(run: Path) -> bool:
    try:
        with locked(run):
            return True
    except Busy:
        return False


def test_a_sweep_that_is_killed_and_repeated_ends_alike(folder: Path, tmp_path: Path) -> None:
    place, tests = tmp_path / "s", Path(trying.__file__).parent
    script = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
    script += f"from trying import swept\nfrom pathlib import Path\nswept(Path({str(place)!r}))"
    for wanted in (3, 10):  # files of finished cells; eight are up to the round of pruning
        process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        for _ in range(3000):
            if len(list(place.rglob("*.json"))) >= wanted and list(
                place.glob("trials/.runs/*/checkpoint/*")
            ):
                break
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)  # with those that run its trials
        process.wait()
    while not all(map(is_free, place.glob("trials/.runs/*"))):  # until the killed processes have ended
        time.sleep(0.01)
    assert list(place.glob("trials/.runs/*/checkpoint/*"))
    again = swept(place)
    assert again.table() == swept(folder).table()
    write(again, place)
    for name in ("best.toml", "table.md", "table.csv", "figures/sweep.png"):
        assert (place / name).read_bytes() == (folder / name).read_bytes()


def test_test_labels_choose_nothing(folder: Path) -> None:
    y = FEDERATION.data.y.copy()
    for split in FEDERATION.partition.clients:
        y[split.test] = np.roll(y[split.test], 1)
    other = replace(FEDERATION, data=replace(FEDERATION.data, y=y))
    assert other.data.digest != FEDERATION.data.digest
    mine, theirs = swept(folder), swept(federation=other)
    assert theirs.table() == mine.table()
    assert theirs.best.settings == mine.best.settings
    assert theirs.best.record is not None
    assert mine.best.record is not None
    assert theirs.best.record.found["served"] != mine.best.record.found["served"]


def test_the_reported_round_is_the_one_that_validation_chose() -> None:
    stop = {"round": "best", "patience": 2}
    found = swept(over={"lr": [0.1, 0.3]}, how={"prune": 0}, stop=stop)
    for trial in found.trials:
        run = alone(trial.settings, stop=stop)
        assert trial.round == run.summary["chosen"]["round"]
        assert trial.validation == pytest.approx(
            max(validation(run, r) for r in run.scored("validation")), abs=1e-5
        )


def test_a_trial_that_diverges_does_not_end_the_sweep() -> None:
    found = swept(over={"lr": [0.1, 1e30]}, how={"prune": 0})
    assert [t.outcome for t in found.trials] == ["finished", "diverged"]
    assert found.best.settings == {"lr": 0.1}
    assert "diverged" in text(found)
    with pytest.raises(Error, match="every trial diverged"):
        swept(over={"lr": [1e30, 1e31]})


def test_what_was_finished_before_changes_no_decision(tmp_path: Path) -> None:
    over = {"lr": [0.05, 0.1, 0.3, 1e30]}
    swept(tmp_path, over, how={"prune": 0})
    assert swept(tmp_path, over).table() == swept(over=over).table()


def test_random_trials_from_python(tmp_path: Path) -> None:
    words = {k: v for k, v in WORDS.items() if k not in ("method", "validation")}
    told: list[str] = []
    found = pfedsim.sweep(
        FEDERATION,
        "fedavg",
        {"lr": "0.01..0.3:log", "momentum": [0.0, 0.9]},
        trials=3,
        out=tmp_path / "s",
        watch=lambda done: told.append(f"{done.method}: {done.micro}"),
        **{**words, "rounds": 2},
    )
    assert len(found.trials) == 3
    assert found.best.config.validation == 0.2
    assert found.prune == 0.25
    assert found.trials[0].name in " ".join(told)
    assert all(line.endswith(": None") for line in told)  # no test score is seen before the choice
    assert "On the test parts, by which nothing was" in str(found)
    assert "<table" in found._repr_html_()
    again = pfedsim.train(
        FEDERATION, "fedavg", **{**words, "rounds": 2, "validation": 0.2, **found.best.settings}
    )
    assert found.best.record is not None
    assert again.summary["models_digest"] == found.best.record.found["models_digest"]


@pytest.mark.parametrize(
    ("over", "how", "words", "said"),
    [
        ({"lrr": [1, 2]}, {}, {}, "did you mean 'lr'"),
        ({"fedavg.weight": ["uniform"]}, {}, {}, "did you mean 'weights'"),
        ({"fedavgg.weights": ["uniform"]}, {}, {}, "did you mean 'fedavg'"),
        ({"lr": [0.1, -1]}, {}, {}, "must be above 0"),
        ({"pfedsim.rho": [0.1, 0.2]}, {}, {}, "has no effect on the method"),
        ({"pfedsim.rho": [0.1]}, {}, {"method": "pfedsim(rho=0.4)"}, "has no effect on 'pfedsim"),
        ({"momentum": [0, 0.0]}, {}, {}, "given twice"),
        ({"alpha": [1, 2]}, {}, {}, "which client holds which samples"),
        ({"seed": [1, 2]}, {}, {}, "repeated, not chosen"),
        ({"workers": [1, 2]}, {}, {}, "decides no result"),
        ({"score.every": [1, 2]}, {}, {}, "when clients are scored"),
        ({}, {}, {}, "settings to vary"),
        ({"lr": 0.1}, {}, {}, "a list of values"),
        ({"lr": [0.1, 0.2]}, {"sampler": "optuna"}, {}, "no effect on a grid"),
        ({"lr": [0.1, 0.2]}, {"sampler": "rondom"}, {}, "did you mean 'random'"),
        ({"lr": [0.1, 0.2]}, {"trials": 3}, {}, "only 2 combinations"),
        ({"lr": [0.1, 0.2]}, {"prune": 0.9}, {}, "no round between 90%"),
        ({"lr": [0.1, 0.2]}, {"prune": 1.5}, {}, "between 0 and 1"),
        ({"lr": [0.1, 0.2]}, {}, {"validation": 0}, "judged on validation parts"),
        ({"planned": [6, 6.0, 7]}, {}, {}, "given twice"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(over, how, words, said, tmp_path):
    with pytest.raises(Error, match=said):
        swept(tmp_path / "s", over, how=how, **words)
    assert not (tmp_path / "s").exists()


def test_two_trials_are_never_the_same_run() -> None:
    with pytest.raises(Error, match="are the same run"):
        swept(over={"method": ["fedavg", "fedavg(weights='samples')"]})


def test_optuna_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(Error, match=r"pip install 'pfedsim\[optuna\]'"):
        swept(over={"lr": [0.1, 0.2]}, how={"sampler": "optuna", "trials": 2})


def test_optuna_suggests_the_same_again_and_learns() -> None:
    pytest.importorskip("optuna")
    how = {"sampler": "optuna", "trials": 10, "prune": 0}
    over = {"lr": "0.0001..0.3:log", "momentum": [0.0, 0.9]}
    first, again = (swept(over=over, how=how, rounds=2) for _ in range(2))
    assert first.table() == again.table()
    assert len({t.name for t in first.trials}) == 10
    with pytest.raises(Error, match="only 2 combinations"):
        swept(over={"lr": [0.1, 0.2]}, how=how)


def test_a_sweep_folder_is_deleted_with_nothing_else(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "s"
    write(swept(place, {"lr": [0.1, 0.2]}, rounds=2), place)
    assert is_sweep(place)
    (place / "notes.txt").write_text("mine")
    assert not is_sweep(place)
    with pytest.raises(Error, match="not written by pfedsim"):
        delete(place)
    (place / "notes.txt").unlink()
    delete(place)
    assert not place.exists()


def test_a_damaged_trial_runs_again(tmp_path: Path) -> None:
    first = swept(tmp_path, {"lr": [0.1, 0.2]}, how={"prune": 0}, rounds=2)
    path = Store(tmp_path / "trials").path(first.trials[0].cell)
    path.write_text(path.read_text().replace("0.", "1.", 1))
    assert swept(tmp_path, {"lr": [0.1, 0.2]}, how={"prune": 0}, rounds=2).table() == first.table()
