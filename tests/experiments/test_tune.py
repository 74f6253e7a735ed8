"""Equal budgets: what is tried for each method, how it is chosen, and a comparison of what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trying import FEDERATION, WORDS, alone, validation

import pfedsim
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.experiments.compare import load
from pfedsim.experiments.folders import delete, is_comparison
from pfedsim.experiments.space import Range
from pfedsim.experiments.store import Store
from pfedsim.experiments.tune import Tuned, space_of, tuned, tuning_seed
from pfedsim.methods import METHODS
from pfedsim.report.comparison import tables
from pfedsim.runs.config import check

SMALL: dict[str, Any] = {k: v for k, v in WORDS.items() if k != "method"} | {"rounds": 2}
METHODS_TUNED = ("local", "fedavg", "ditto(lam=0.1)", "pfedsim:uniform")


def chosen(
    federation: Federation, folder: Path, methods: Sequence[str] = METHODS_TUNED
) -> dict[str, Tuned]:
    return tuned(check(SMALL), methods, 3, Store(folder), federation, seeds=[42, 0])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tuned]:
    return chosen(FEDERATION, tmp_path_factory.mktemp("tune"))


def test_every_method_gets_the_same_trials_and_learning_rates(found: dict[str, Tuned]) -> None:
    assert list(found) == list(METHODS_TUNED)
    rates = [[t.settings.get("lr") for t in method.trials] for method in found.values()]
    assert all(len(method.trials) == 3 and method.trials[0].settings == {} for method in found.values())
    assert all(row == rates[0] for row in rates)
    assert rates[0][1:] == [0.0158, 0.158]  # 0.05 times 10 to the -1/2 and 1/2
    assert {t.config.seed for method in found.values() for t in method.trials} == {1}
    assert {t.settings.get("pfedsim.rho") for t in found["pfedsim:uniform"].trials} == {None, 0.3, 0.7}
    assert {t.config.method_made().lam for t in found["ditto(lam=0.1)"].trials} == {0.1}  # type: ignore[attr-defined]


def test_the_choice_is_the_best_on_validation(found: dict[str, Tuned]) -> None:
    for name, result in found.items():
        runs = [alone(t.settings, **SMALL, method=name, seed=1) for t in result.trials]
        scores = [validation(run) for run in runs]
        assert [t.validation for t in result.trials] == pytest.approx(scores)
        assert result.best.number == 1 + int(np.argmax(scores))  # the first of equal ones
        assert result.chosen == result.trials[int(np.argmax(scores))].settings


def test_test_labels_choose_nothing(found: dict[str, Tuned], tmp_path: Path) -> None:
    y = FEDERATION.data.y.copy()
    for split in FEDERATION.partition.clients:
        y[split.test] = (y[split.test] + 1) % 3
    other = chosen(replace(FEDERATION, data=replace(FEDERATION.data, y=y)), tmp_path, METHODS_TUNED[2:])
    for name, result in other.items():
        assert result.chosen == found[name].chosen
        assert [t.validation for t in result.trials] == [t.validation for t in found[name].trials]


def test_a_comparison_of_tuned_methods(tmp_path: Path) -> None:
    methods, told = ["fedavg", "pfedsim"], list[str]()
    made = pfedsim.compare(
        FEDERATION, methods, [3, 4], tmp_path, lambda d: told.append(d.method), tune=3, **SMALL
    )
    assert made.tuning is not None
    assert made.methods == ["Local-Only", "FedAvg", "pFedSim"]
    assert (made.tuning.trials, made.tuning.seed, made.tuning.validation) == (3, 0, 0.4)
    for title, name in (("Local-Only", "local"), ("FedAvg", "fedavg"), ("pFedSim", "pfedsim")):
        settings = made.tuning.methods[title]["chosen"]
        assert len(made.tuning.methods[title]["trials"]) == 3
        again = alone(settings, **SMALL, method=name, seed=4)
        assert made.runs[title][4].files == again.files
    assert "FedAvg: lr=0.0158" in told
    settings_table = tables(made)[-1]
    assert [row[0].text for row in settings_table.rows] == made.methods
    assert {row[1].text for row in settings_table.rows} <= {"tuned", "default"}
    assert all(row[2].text == "3" for row in settings_table.rows)
    assert "the best of 3 trials by validation" in " ".join(str(made).split())
    told.clear()
    assert pfedsim.compare(FEDERATION, methods, [3, 4], tmp_path, told.append, tune=3, **SMALL).tuning
    assert not told
    back = load(tmp_path)
    assert (back.methods, back.tuning) == (made.methods, made.tuning)
    assert is_comparison(tmp_path)
    delete(tmp_path)
    assert not tmp_path.exists()


def test_a_comparison_that_was_stopped_while_tuning_is_one(tmp_path: Path) -> None:
    tuned(check(SMALL), ["fedavg"], 2, Store(tmp_path / "tuning"), FEDERATION)
    assert is_comparison(tmp_path)


def test_tuning_stops_and_chooses_the_round_as_the_final_runs_do(tmp_path: Path) -> None:
    words = {**SMALL, "rounds": 4, "stop": {"round": "best"}}
    result = tuned(check(words), ["fedavg"], 2, Store(tmp_path), FEDERATION)["fedavg"]
    for trial in result.trials:
        run = alone(trial.settings, **words, method="fedavg", seed=0)
        assert trial.validation == pytest.approx(
            max(m["micro"] for m in run.scored("validation").values()), abs=1e-5
        )
    assert result.cell(7).config.stop == check(words).stop


def test_a_learning_rate_of_its_own_is_the_one_that_is_varied() -> None:
    config = check({"lr": 0.02})
    assert space_of(config, "fedavg") == {"lr": Range(0.002, 0.2, log=True)}
    own = space_of(config, "perfedavg")
    assert own == {"perfedavg.beta": Range(0.0001, 0.01, log=True), "perfedavg.alpha": [0.001, 0.01, 0.1]}
    assert space_of(config, "perfedavg(beta=0.5)") == {"perfedavg.alpha": [0.001, 0.01, 0.1]}
    assert space_of(check({"pfedsim": {"rho": 0.4}}), "pfedsim").keys() == {"lr"}
    assert space_of(config, "fedavgft:head").keys() == {"lr", "fedavgft.tune_epochs"}


@pytest.mark.parametrize("name", METHODS)
def test_the_rate_that_tuning_varies_moves_the_served_models(name: str) -> None:
    words = {**SMALL, "method": name, "rounds": 1, "epochs": 2, "local_steps": 1}
    runs = [alone({"lr": lr}, **words).summary["models_digest"] for lr in (0.05, 0.2)]
    assert (runs[0] != runs[1]) == (METHODS[name].rate == "lr")


def test_the_seed_of_tuning_is_none_of_those_compared() -> None:
    assert tuning_seed([42, 43]) == 0
    assert tuning_seed([0, 1, 3]) == 2
    assert tuning_seed([]) == 0


def test_values_that_a_method_refuses_are_not_tried(tmp_path: Path) -> None:
    words = {**SMALL, "epochs": 2}
    result = tuned(check(words), ["fedrep"], 5, Store(tmp_path), FEDERATION)["fedrep"]
    assert {t.settings.get("fedrep.body_epochs") for t in result.trials} == {None, 1}  # of 1, 2, 3
    with pytest.raises(Error, match="leaves no epoch for the classifier"):
        tuned(check(SMALL), ["fedavg", "fedrep"], 5, Store(tmp_path), FEDERATION)


def test_one_trial_is_no_choice(tmp_path: Path) -> None:
    with pytest.raises(Error, match="at least 2"):
        tuned(check(SMALL), ["fedavg"], 1, Store(tmp_path), FEDERATION)
    with pytest.raises(Error, match="judged on validation parts"):
        tuned(check({**SMALL, "validation": 0}), ["fedavg"], 2, Store(tmp_path), FEDERATION)


def test_a_method_with_fewer_combinations_runs_them_all(tmp_path: Path) -> None:
    result = tuned(check(SMALL), ["perfedavg(beta=0.01)"], 9, Store(tmp_path), FEDERATION)
    settings = [t.settings.get("perfedavg.alpha") for t in result["perfedavg(beta=0.01)"].trials]
    assert sorted(settings[1:]) == [0.001, 0.1]  # 0.01 is how it is
