"""The round that validation chooses is the round that it would be: a run that ends there has the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stopping import contents, go_on, stop_after, whole

from pfedsim.errors import Error
from pfedsim.runs.config import check
from pfedsim.runs.reader import Run

BEST = {"round": "best"}
WORDS: dict[str, Any] = {
    "rounds": 9,
    "lr": 0.5,  # too high, so that the last round is not the best
    "validation": 0.3,
    "score": {"every": 1, "finetune": 1},
}


def _best(run: Run) -> int:
    """The earliest of the best rounds, by a plain loop over the metrics."""
    best, found = -1.0, 0
    for line in run.metrics():
        if line.get("split") == "validation" and line["model"] == "served" and line["micro"] > best:
            best, found = line["micro"], line["round"]
    return found


@pytest.mark.parametrize("method", ["local", "fedavg", "fedper", "fedbn", "pfedsim(rho=0.2)", "fedfomo"])
def test_the_chosen_round_has_the_models_of_a_run_that_ends_there(tmp_path: Path, method: str) -> None:
    last = whole(tmp_path / "last", method=method, **WORDS)
    chosen = whole(tmp_path / "chosen", method=method, stop=BEST, **WORDS)
    number = _best(last)
    short = {**WORDS, "rounds": number, "planned": 9}
    there = whole(tmp_path / "there", method=method, **short)
    assert chosen.summary["chosen"] == {"round": number, "by": "validation"}
    assert chosen.round == number
    assert chosen.summary["rounds"] == 9
    for what in ("models_digest", "served", "finetuned"):
        assert chosen.summary[what] == there.summary[what], what
    assert [c.tolist() for c in chosen.hits()] == [c.tolist() for c in there.hits()]
    for model in ("served", "finetuned"):
        assert chosen.client_values(model=model) == there.client_values(model=model)
    curve = [m for m in last.metrics() if m.get("model") != "finetuned"]
    assert [m for m in chosen.metrics() if m.get("model") != "finetuned"] == curve


def test_some_chosen_round_is_not_the_last(tmp_path: Path) -> None:
    """Otherwise the test above says nothing."""
    assert 1 < whole(tmp_path / "run", method="fedavg", stop=BEST, **WORDS).round < 9


def test_best_on_test_is_the_highest_point_of_the_curve(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", method="fedavg", stop=BEST, **WORDS)
    points = [m["micro"] for m in run.metrics() if m.get("split") == "test" and m["model"] == "served"]
    assert len(points) == 9
    assert run.best_on_test == max(points) >= run.accuracy


@pytest.mark.parametrize("stop", [{"round": "best", "patience": 3}, {"patience": 3}])
def test_patience_stops_every_method_by_the_same_rule(tmp_path: Path, stop: dict[str, Any]) -> None:
    for method in ("local", "fedavg"):
        words = {**WORDS, "method": method, "rounds": 40}
        full = whole(tmp_path / f"{method}-full", **words)
        early = whole(tmp_path / f"{method}-early", stop=stop, **words)
        scores = [
            m["micro"] for m in full.metrics() if m.get("split") == "validation" and m["model"] == "served"
        ]
        best, since, expected = -1.0, 0, 0
        for number, value in enumerate(scores, 1):
            best, since = (value, 0) if value > best else (best, since + 1)
            if since == 3:
                expected = number
                break
        assert 0 < expected < 40
        assert early.summary["rounds"] == expected
        assert early.round == (expected - 3 if "round" in stop else expected)
        assert early.summary["chosen"]["stopped"] == "3 scores without a higher validation accuracy"
        rows = [(r["round"], r["client"], r["model"], r["split"], r["metric"]) for r in early.clients()]
        assert len(rows) == len(set(rows))


@pytest.mark.parametrize("stop", [BEST, {"round": "best", "patience": 2}])
def test_a_stopped_run_ends_in_the_same_bytes(tmp_path: Path, stop: dict[str, Any]) -> None:
    words = {**WORDS, "method": "fedper", "stop": stop}
    full = whole(tmp_path / "whole", **words)
    for round in range(1, full.summary["rounds"]):
        place = tmp_path / f"at-{round}"
        stop_after(place, round, **words)
        go_on(place)
        assert contents(place) == contents(full.path)


@pytest.mark.parametrize("stop", [BEST, {"round": "best", "patience": 2}, {"patience": 2}])
def test_an_extended_run_is_the_longer_run(tmp_path: Path, stop: dict[str, Any]) -> None:
    """Also where the best round is one of the short run, and where the short run was stopped."""
    for rounds in (5, 9):
        words = {**WORDS, "method": "fedper", "stop": stop}
        short = whole(tmp_path / f"short-{rounds}", **{**words, "rounds": rounds})
        longer = whole(tmp_path / f"longer-{rounds}", **{**words, "rounds": rounds + 3})
        extended = short.extend(rounds + 3, tmp_path / f"extended-{rounds}")
        assert contents(extended.path) == contents(longer.path)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"stop": BEST}, "needs a validation part: set validation"),
        ({"stop": {"patience": 2}}, "stop.patience needs a validation part"),
        ({"stop": BEST, "validation": 0.2, "score": {"every": 0}}, "score.every must be at least 1"),
        ({"stop": {"patience": 0}, "validation": 0.2}, "stop.patience = 0: must be at least 1"),
        ({"stop": {"round": "test"}, "validation": 0.2}, "stop.round"),
        ({"stop": {"rounds": 3}}, "stop.rounds"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(words: dict[str, Any], match: str) -> None:
    with pytest.raises(Error, match=match):
        check(words)


def test_a_federation_too_small_to_hold_anything_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="no client holds a sample back; raise validation"):
        whole(tmp_path / "run", method="fedavg", stop=BEST, **{**WORDS, "validation": 0.01})
