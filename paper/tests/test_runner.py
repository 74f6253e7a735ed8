"""A study that is killed goes on where it was; a cell that cannot be run is named and the others are."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from pfedsim_paper import measure
from pfedsim_paper.command import run_missing
from pfedsim_paper.protocol import Choice, cell
from rich.console import Console

from pfedsim.experiments import Store, read, unpacked
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import Progress
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate

QUICK = {"clients": 6, "minimum": 40, "rounds": 4, "epochs": 2, "score": {"every": 2, "finetune": 1}}


def reproduce(*words: str, cwd: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pfedsim",
        "reproduce",
        *words,
        "--results",
        str(cwd / "results"),
        "--out",
        str(cwd / "out"),
    ]


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_was(tmp_path: Path) -> None:
    words = ["accuracy", "--data", "digits", "--methods", "local,pfedsim", "--alpha", "0.5", "--jobs", "1"]
    words += [w for k in ("clients=6", "minimum=40", "rounds=15", "epochs=4") for w in ("--set", k)]
    results = tmp_path / "results"
    study = subprocess.Popen(reproduce(*words, cwd=tmp_path), stdout=subprocess.DEVNULL)
    while not list(results.glob("digits/*.json")):
        assert study.poll() is None
        time.sleep(0.02)
    study.send_signal(signal.SIGKILL)
    study.wait()
    (first,) = results.glob("digits/*.json")  # the second was on its way
    kept, written = first.read_bytes(), first.stat().st_mtime_ns
    dry = subprocess.run(
        reproduce(*words, "--dry-run", cwd=tmp_path), capture_output=True, text=True, check=True
    ).stdout
    assert "done     digits/dir0.5-local-only-seed42" in dry
    assert "missing  digits/dir0.5-pfedsim-seed42" in dry
    assert (
        dry.count("  epochs=4 clients=6 minimum=40 rounds=15\n") == 2
    )  # what was switched, where names cannot tell
    assert f"1 of 2 runs are done and kept in {results}; about" in dry
    slower = subprocess.run(
        reproduce(*words, "--set", "backend=torch", "--dry-run", cwd=tmp_path),
        capture_output=True,
        text=True,
    ).stdout
    assert (
        "how long the rest takes is known when one like it is finished" in slower
    )  # another backend's time says nothing
    again = subprocess.run(
        reproduce(*words, cwd=tmp_path), capture_output=True, text=True, check=True
    ).stdout
    assert "1/1  digits/dir0.5-pfedsim" in again
    assert (first.read_bytes(), first.stat().st_mtime_ns) == (kept, written)
    assert len(list(results.glob("digits/*.json"))) == 2
    assert {p.suffix for p in (tmp_path / "out").iterdir() if p.is_file()} == {
        ".md",
        ".tex",
        ".csv",
        ".json",
        ".html",
    }
    assert {p.suffix for p in (tmp_path / "out" / "figures").iterdir()} == {".png", ".svg"}
    second = next(p for p in results.glob("digits/*pfedsim*.json"))
    by_hand = execute(read(second).cell.config.model_copy(update={"workers": 2}))
    assert read(second).found["models_digest"] == by_hand.summary["models_digest"]


@pytest.mark.slow
def test_a_cell_that_cannot_run_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    wrong = cell("digits", "fedrep", 0.5, 42, {**QUICK, "epochs": 1})
    right = cell("digits", "fedavg", 0.5, 42, QUICK)
    without_data = [cell("cifar10", "fedavg", 0.5, seed, QUICK) for seed in (42, 43)]
    monkeypatch.setenv("PFEDSIM_DATA", str(tmp_path / "nowhere"))
    console = Console(record=True, width=400, file=StringIO())
    failed = run_missing([wrong, *without_data, right], store, 1, console)
    said = console.export_text().splitlines()
    assert list(failed) == [*(c.name for c in without_data), wrong.name]
    assert "increase epochs" in failed[wrong.name]
    assert "no cifar10 in" in failed[without_data[1].name]
    assert store.find(right) is not None
    assert len(said) == 3  # data that are not at hand are looked for once


def test_what_is_kept_of_a_run_is_what_the_run_found(tmp_path: Path) -> None:
    one = cell("digits", "pfedsim", 0.5, 42, QUICK)
    store = Store(tmp_path)
    measure.execute(store, one)
    path = store.path(one)
    assert path.stat().st_size < 5000
    found, made = read(path).found, read(path).made
    federation = federate(one.config)
    run: Run = execute(one.config, federation=federation)
    hits = np.concatenate(run.hits())
    assert found["served"]["micro"] == pytest.approx(hits.mean(), abs=1e-5)
    tuned = run.hits("finetuned")
    assert found["finetuned"]["mean"] == pytest.approx(np.mean([h.mean() for h in tuned]), abs=1e-5)
    assert found["clients"]["finetuned"] == pytest.approx([h.mean() for h in tuned], abs=1e-5)
    assert found["clients"]["samples"] == [len(s.train) + len(s.test) for s in federation.partition.clients]
    labels = [
        len({int(federation.data.y[p]) for p in [*s.train, *s.test]}) for s in federation.partition.clients
    ]
    assert found["clients"]["labels"] == labels
    assert found["curve"]["round"] == [2, 4]
    assert found["models_digest"] == run.summary["models_digest"]
    assert read(path).settings["digests"]["partition"] == federation.partition.digest
    assert made["versions"]["torch"] == torch.__version__
    pairs = run.similarity()
    assert pairs is not None
    matrix = unpacked(found["similarity"], 6)
    for i in range(6):
        for j, value in pairs.row(i).items():
            assert matrix[i, j] == pytest.approx(value, abs=found["similarity"]["largest"] / 254)
    assert np.isfinite(matrix).sum() == sum(len(pairs.row(i)) for i in range(6))


def test_a_killed_study_continues_inside_the_run_it_was_in(tmp_path: Path) -> None:
    one = cell("digits", "pfedsim", 0.5, 42, QUICK)
    whole, stopped = Store(tmp_path / "whole"), Store(tmp_path / "stopped")
    measure.execute(whole, one)

    def stop(done: Progress) -> None:
        if done.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.execute(stopped, one, stop)
    assert stopped.find(one) is None
    rounds: list[int] = []
    measure.execute(stopped, one, lambda done: rounds.append(done.round))
    assert min(rounds) == 3  # rounds 1 and 2 are not run again
    first, second = whole.find(one), stopped.find(one)
    assert first is not None
    assert second is not None
    assert (first.found, first.settings) == (second.found, second.settings)
    assert not stopped.run_folder(one).exists()
    stopped.tidy()
    assert [p.name for p in (tmp_path / "stopped").iterdir()] == ["digits"]


def test_a_run_of_other_software_starts_again(tmp_path: Path) -> None:
    one, store = cell("digits", "fedavg", 0.5, 42, QUICK), Store(tmp_path)

    def stop(done: Progress) -> None:
        if done.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.execute(store, one, stop)
    for checkpoint in (store.run_folder(one) / "checkpoint").iterdir():
        checkpoint.write_bytes(b"damaged")
    (store.run_folder(one) / "config.toml").write_text("rounds = 3")
    measure.execute(store, one)
    found = store.find(one)
    assert found is not None
    assert found.found["curve"]["round"] == [2, 4]


def test_the_choice_reaches_the_report(tmp_path: Path) -> None:
    from pfedsim_paper import accuracy

    store = Store(tmp_path)
    choice = Choice(data=("digits",), methods=("local", "fedavg"), alphas=(0.5,), settings=QUICK)
    for one in accuracy.plan(choice):
        measure.execute(store, one)
    document = accuracy.report(store, choice)
    table = next(t for t in document.tables() if t.name == "accuracy-digits")
    assert [row[0].text for row in table.rows] == ["Local-Only", "FedAvg"]
    found = [store.find(one) for one in accuracy.plan(choice)]
    assert [row[1].text for row in table.rows] == [
        f"{100 * r.found['served']['micro']:.2f}" for r in found if r
    ]


def test_a_folder_of_ones_own_domains_is_studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DomainNet's study takes any domain/class folder that was added: twenty clients a domain."""
    from pfedsim_paper import domains
    from PIL import Image

    from pfedsim.data.own import Own, add
    from pfedsim.errors import Error

    monkeypatch.setenv("PFEDSIM_DATA", str(tmp_path / "data"))
    stream = np.random.default_rng(0)
    for domain in ("ink", "paint"):
        for label, shade in (("cat", 60), ("dog", 190)):
            folder = tmp_path / "pictures" / domain / label
            folder.mkdir(parents=True)
            for k in range(60):
                pixels = np.clip(stream.normal(shade, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{k}.png")
    add("mine", Own(str(tmp_path / "pictures"), "domain/class"), tmp_path / "data")
    add("flat", Own(str(tmp_path / "pictures" / "ink")), tmp_path / "data")
    quick = {
        "model": "lenet5",
        "pretrained": None,
        "size": 16,
        "minimum": 4,
        "rounds": 2,
        "epochs": 1,
        "score": {"every": 1},
    }
    choice = Choice(data=("mine",), methods=("local", "pfedsim"), settings=quick)
    cells = domains.plan(choice)
    assert {c.words["clients"] for c in cells} == {40}
    store = Store(tmp_path / "results")
    for one in cells:
        measure.execute(store, one)
    document = domains.report(store, choice)
    table = next(t for t in document.tables() if t.name == "domains-mine")
    assert list(table.head[1:3]) == ["ink", "paint"]
    assert [f.name for f in document.figures()] == ["sheet-mine", "curves-mine", "clients-mine"]
    assert document.figures()[0].draw(tmp_path / "sheet.png", 6.0).stat().st_size > 1000
    with pytest.raises(Error, match="flat was added as class: only a domain/class folder has domains"):
        domains.plan(Choice(data=("flat",)))
