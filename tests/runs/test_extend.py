"""A finished run goes on to the bits of the longer run, and a callback sees every round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small
import torch
from stopping import contents

import pfedsim
from pfedsim.core.method import ServerState
from pfedsim.core.scoring import Scores
from pfedsim.data.federation import Federation
from pfedsim.errors import Error, Notice
from pfedsim.methods import METHODS, parse
from pfedsim.methods.two_stage import TwoStage
from pfedsim.runs.execute import execute
from pfedsim.runs.extend import begin, extended

WORDS = {"epochs": 2, "join": 0.5, "local_steps": 2, "score": {"every": 2}, "workers": 1, "lr": 0.05}
FREE = [name for name in METHODS if not isinstance(parse(name), TwoStage)]
STAGED = [name for name in METHODS if name not in FREE]


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


def test_on_round_must_not_change_the_state(digits: Federation) -> None:
    def meddles(round: int, scores: Scores | None, state: ServerState) -> None:
        if round == 2:
            state.model.add_(torch.ones(()))

    with pytest.raises(Error, match="on_round changed the server's state after round 2"):
        pfedsim.train(digits, "fedavg", rounds=3, on_round=meddles, **WORDS)


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
