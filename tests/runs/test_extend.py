"""A finished run goes on to the bits of the longer run, and a callback sees every round."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from stopping import Stop, contents
from typer.testing import CliRunner

import pfedsim
from pfedsim.cli.app import app
from pfedsim.core.engine import HeldMemories
from pfedsim.core.method import ServerState
from pfedsim.core.scoring import Scores
from pfedsim.data.federation import Federation
from pfedsim.engines.serial import Serial
from pfedsim.errors import Error, Notice
from pfedsim.methods import TWELVE, parse
from pfedsim.methods.two_stage import TwoStage
from pfedsim.runs import manifest
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import Execution, Progress
from pfedsim.runs.extend import begin, extended
from pfedsim.runs.reader import Run
from pfedsim.runs.resume import Stopped
from pfedsim.runs.setup import Session, prepare

WORDS = {"epochs": 2, "join": 0.5, "local_steps": 2, "score": {"every": 2}, "workers": 1, "lr": 0.05}
FREE = [name for name in TWELVE if not isinstance(parse(name), TwoStage)]
STAGED = [name for name in TWELVE if name not in FREE]


@pytest.mark.parametrize("name", FREE)
def test_an_extended_run_is_the_longer_run_to_the_byte(
    digits: Federation, tmp_path: Path, name: str
) -> None:
    short = pfedsim.train(digits, name, tmp_path / "short", rounds=2, **WORDS)
    before = contents(short.path)
    longer = short.extend(rounds=5, out=tmp_path / "extended")
    fresh = pfedsim.train(digits, name, tmp_path / "fresh", rounds=5, **WORDS)
    assert contents(longer.path) == contents(fresh.path)
    assert contents(short.path) == before
    assert longer.summary["rounds"] == 5


@pytest.mark.parametrize("name", STAGED)
def test_a_two_stage_method_keeps_its_switch(digits: Federation, tmp_path: Path, name: str) -> None:
    short = pfedsim.train(digits, name, tmp_path / "short", rounds=2, **WORDS)
    with pytest.warns(Notice, match="keeps to its plan for 2 rounds"):
        longer = short.extend(rounds=4, out=tmp_path / "extended")
    planned = pfedsim.train(digits, name, tmp_path / "planned", rounds=4, planned=2, **WORDS)
    assert contents(longer.path) == contents(planned.path)
    fresh = pfedsim.train(digits, name, tmp_path / "fresh", rounds=4, **WORDS)
    assert longer.summary["models_digest"] != fresh.summary["models_digest"]
    with pytest.warns(Notice, match="keeps to its plan for 2 rounds"):
        assert longer.extend(rounds=5).config.planned == 2


def test_a_run_of_arrays_without_a_folder_is_extended() -> None:
    words = {**WORDS, "model": "small:Net", "backend": "torch"}
    federation = small.table()
    run = pfedsim.train(federation, "fedavg", rounds=2, **words)
    assert (
        run.extend(rounds=3).summary["models_digest"]
        == (pfedsim.train(federation, "fedavg", rounds=3, **words).summary["models_digest"])
    )


def test_an_extension_that_was_stopped_goes_on(digits: Federation, tmp_path: Path) -> None:
    short = pfedsim.train(digits, "fedavg", tmp_path / "short", rounds=2, **WORDS)
    config, notice = extended(short, 5, {"workers": 1})
    assert notice == ""
    begin(short, config, tmp_path / "extended")

    def stop(now: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(None, tmp_path / "extended", digits, stop, resume=True)
    execute(None, tmp_path / "extended", digits, resume=True)
    fresh = pfedsim.train(digits, "fedavg", tmp_path / "fresh", rounds=5, **WORDS)
    assert contents(tmp_path / "extended") == contents(fresh.path)


def test_what_cannot_be_extended_is_refused(digits: Federation, tmp_path: Path) -> None:
    run = pfedsim.train(digits, "fedavg", tmp_path / "run", rounds=2, state=False, **WORDS)
    assert not run.has_state
    with pytest.raises(Error, match=r"kept no final state \(it ran with --no-state\)"):
        run.extend(rounds=3)
    run = pfedsim.train(digits, "fedavg", tmp_path / "kept", rounds=2, **WORDS)
    with pytest.raises(Error, match="has 2 rounds already: ask for more than that, not for 2"):
        run.extend(rounds=2)
    with pytest.raises(Error, match="exists and is not empty"):
        run.extend(rounds=3, out=tmp_path / "run")
    state = tmp_path / "kept" / "final" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-4] + b"zzzz")
    with pytest.raises(Error, match=r"state\.safetensors is damaged"):
        run.extend(rounds=3, out=tmp_path / "longer")
    assert not (tmp_path / "longer").exists()
    assert not list(tmp_path.glob(".*"))


# a callback


def test_on_round_sees_every_round_with_its_scores(digits: Federation) -> None:
    seen: list[tuple[int, Scores | None, ServerState]] = []
    run = pfedsim.train(digits, "fedavg", rounds=5, on_round=lambda *now: seen.append(now), **WORDS)
    assert [number for number, _, _ in seen] == [1, 2, 3, 4, 5]
    assert [scores is not None for _, scores, _ in seen] == [False, True, False, True, True]
    last = seen[-1][1]
    assert last is not None
    assert last.micro == run.accuracy
    assert [state.round for _, _, state in seen] == [1, 2, 3, 4, 5]
    assert seen[-1][2].model.isfinite().any()


def test_nothing_that_on_round_does_changes_the_run(digits: Federation, tmp_path: Path) -> None:
    def meddles(round: int, scores: Scores | None, state: ServerState) -> None:
        state.model.data.add_(torch.ones(()))
        state.model.numpy()[:] = 0
        state.extra["similarity"].rows()[0][1].clear()
        for client in scores.clients if scores else ():
            client.predicted[:] = client.labels
            client.confusion[:] = 0
            client.metrics["accuracy"] = 1.0

    words = {**WORDS, "rounds": 3, "pfedsim": {"rho": 0}}
    quiet = pfedsim.train(digits, "pfedsim", tmp_path / "quiet", **words)
    told = pfedsim.train(digits, "pfedsim", tmp_path / "told", on_round=meddles, **words)
    assert contents(told.path) == contents(quiet.path)


def test_the_last_word_to_a_watcher_has_a_loss(digits: Federation) -> None:
    losses: list[float] = []
    run = pfedsim.train(digits, "fedavg", rounds=2, watch=lambda now: losses.append(now.loss), **WORDS)
    trained = [m["train_loss"] for m in run.metrics() if "train_loss" in m]
    assert losses == pytest.approx(trained)


def test_the_final_state_is_listed_and_the_same_for_any_workers(digits: Federation, tmp_path: Path) -> None:
    words = {**WORDS, "rounds": 2}
    one = pfedsim.train(digits, "feddyn", tmp_path / "one", **words)
    two = pfedsim.train(digits, "feddyn", tmp_path / "two", **{**words, "workers": 2})
    assert "final/state.safetensors" in (one.path / "SHA256SUMS").read_text()
    for name in ("state.safetensors", "state.json"):
        assert (one.path / "final" / name).read_bytes() == (two.path / "final" / name).read_bytes()
    record = json.loads((one.path / "final" / "state.json").read_text())
    assert record["round"] == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds."""
    path = tmp_path_factory.mktemp("finished") / "run"
    words = ("--clients", "6", "--join", "0.5", "--local-steps", "2", "--workers", "1")
    assert said("run", "--method", "fedavg", "--rounds", "2", "--out", path, *words, "--quiet") == ""
    return path


def said(*words: str | Path) -> str:
    """The sentence with which a command is refused; nothing if it succeeds."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0 or isinstance(done.exception, Error), done.output
    return str(done.exception or "")


def test_extending_never_touches_the_run_that_it_extends(finished: Path, tmp_path: Path) -> None:
    before = contents(finished)
    for place in (finished, finished / "more", finished.parent):
        assert "overlaps" in said("run", "--extend", finished, "--rounds", "4", "--fresh", "--out", place)
    assert contents(finished) == before


def test_no_state_also_holds_for_an_extension(finished: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    assert said("run", "--extend", finished, "--rounds", "3", "--no-state", "--out", longer) == ""
    assert list((longer / "final").iterdir()) == []
    assert "--no-state" in said("run", "--extend", longer, "--rounds", "4", "--out", tmp_path / "next")


def test_the_same_extension_asked_for_twice_is_one_run(finished: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    words = ("run", "--extend", finished, "--rounds", "4", "--out", longer, "--workers", "1")
    begin(Run(finished), extended(Run(finished), 4)[0], longer)

    def stops(now: Progress) -> None:
        if now.round == 3 and not now.note:
            raise Stop

    with pytest.raises(Stop):
        execute(None, longer, watch=stops, resume=True)
    assert not (longer / "summary.json").exists()
    assert said(*words) == ""
    once = contents(longer)
    assert said(*words) == ""
    assert contents(longer) == once
    assert "already exists" in said("run", "--extend", finished, "--rounds", "5", "--out", longer)


def test_other_software_is_refused_before_a_folder_is_made(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = manifest.made_with
    monkeypatch.setattr(manifest, "made_with", lambda config: {**here(config), "cpu": "Abacus 3000"})
    with pytest.raises(Error, match=r"cpu: .* -> Abacus 3000.*allow_drift=True"):
        Run(finished).extend(rounds=3, out=tmp_path / "longer")
    assert list(tmp_path.iterdir()) == []
    marked = Run(finished).extend(rounds=3, out=tmp_path / "longer", allow_drift=True)
    assert "Abacus 3000" in marked.summary["drift"][0]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rounds": None}, "ask for more than that, not for None"),
        ({"rounds": 5.5}, "rounds = 5.5"),
        ({"rounds": "many"}, "rounds"),
        ({"rounds": 2}, "has 2 rounds already"),
        ({"rounds": 4, "workers": 0}, "workers = 0"),
        ({"rounds": 4, "workers": "two"}, "workers"),
    ],
)
def test_wrong_arguments_of_extend_get_a_sentence(finished: Path, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(Error, match=says):
        Run(finished).extend(**asked)


def test_a_lost_final_state_is_not_called_no_state(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "final" / "state.json").unlink()
    with pytest.raises(Error, match=r"state\.json.*(missing|cannot be read)"):
        Run(tmp_path / "run").extend(rounds=3)


def test_a_final_state_names_the_memories_that_clients_keep_themselves(tmp_path: Path) -> None:
    session = prepare(check({**WORDS, "method": "fedper", "data": "digits", "rounds": 2, "clients": 6}))

    class Away(HeldMemories):
        def elsewhere(self) -> dict[int, str]:
            return {1: "a", 3: "b"}

    session.engine.memories = Away()
    run_all(session, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "final" / "state.json").read_text())
    assert record["elsewhere"] == {"1": "a", "3": "b"}
    with pytest.raises(Error, match="clients 1, 3 keep their memories themselves"):
        Run(tmp_path / "run").extend(rounds=3)


def test_a_run_of_clients_that_are_not_simulated_ends_without_their_models(tmp_path: Path) -> None:
    session = prepare(check({**WORDS, "method": "fedavg", "data": "digits", "rounds": 2, "clients": 6}))
    worker = replace(session.worker, simulated=False)
    away = replace(session, worker=worker, side=replace(session.side, engine=Serial(worker)))
    run_all(away, tmp_path / "run")
    run_all(session, tmp_path / "simulated")
    there, here = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "simulated")
    )
    assert there["models_digest"] is None
    assert there["served"] == here["served"]
    assert list((tmp_path / "run" / "models").iterdir()) == []
    assert not (tmp_path / "run" / "predictions.safetensors").exists()


def run_all(session: Session, out: Path) -> None:
    """Execute this very session to its end."""
    out.mkdir()
    execution = Execution(Stopped(session), out, lambda _: None, [], None, saves=True)
    with closing(execution):
        execution.run(session.begin())
