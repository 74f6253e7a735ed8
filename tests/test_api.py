"""`federate`, `train` and the public names as a Python user meets them."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import Net, table
from torch import nn

import pfedsim
from pfedsim import Error, Federation, Pairs
from pfedsim.methods import parse
from pfedsim.runs.reader import Run

QUICK: dict[str, Any] = {"rounds": 1, "epochs": 1, "join": 1.0, "workers": 1}


def test_dir_lists_the_public_names() -> None:
    assert set(pfedsim.__all__) <= set(dir(pfedsim))
    assert {"federate", "train", "compare", "check", "Method"} <= set(dir(pfedsim))


def test_a_setting_with_a_dot_works_as_on_the_command_line() -> None:
    score: dict[str, Any] = {"every": 1}
    run = pfedsim.train(table(), "fedavg", model="small:Net", score=score, **{"score.finetune": 0}, **QUICK)
    assert run.summary["finetuned"] is None
    assert (run.config.score.every, run.config.score.finetune) == (1, 0)
    assert score == {"every": 1}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (np.zeros((400, 28, 28)), r"not ndarray of shape \(400, 28, 28\); save arrays with numpy\.savez"),
        ({"x": np.zeros(9999), "y": np.zeros(9999)}, "not dict; save arrays"),
    ],
)
def test_data_that_is_no_data_set_is_refused_in_short(data: Any, says: str) -> None:
    with pytest.raises(Error, match=says) as caught:
        pfedsim.federate(data)
    assert len(str(caught.value)) < 250


def test_a_module_instance_is_refused_in_short() -> None:
    with pytest.raises(Error, match="not Sequential: give the class itself") as caught:
        pfedsim.train(table(), "fedavg", model=nn.Sequential(*[nn.Linear(6, 6)] * 50), **QUICK)
    assert len(str(caught.value)) < 250


def test_what_is_no_method_or_federation_is_refused_in_short() -> None:
    wrong: Any = np.zeros(10_000)
    with pytest.raises(Error, match=r"not ndarray of shape \(10000,\)"):
        pfedsim.train(wrong)
    with pytest.raises(Error, match=r"not ndarray of shape \(10000,\)"):
        pfedsim.train(table(), wrong)
    kind: Any = pfedsim.Method
    with pytest.raises(Error, match=r"not the class Method: write Method\(\)"):
        pfedsim.train(table(), kind)


@pytest.mark.parametrize("what", ["method", "model"])
def test_a_class_of_a_script_is_refused_before_anything_is_written(tmp_path: Path, what: str) -> None:
    script = tmp_path / "script.py"
    given = {"method": "Mine(), 'out'", "model": "'fedavg', 'out', model=Net"}[what]
    script.write_text(
        "from dataclasses import dataclass\nimport pfedsim\nfrom torch import nn\n\n"
        "@dataclass(frozen=True)\nclass Mine(pfedsim.Method):\n    pass\n\n"
        "class Net(nn.Module):\n    pass\n\n"
        f"pfedsim.train(pfedsim.federate(clients=3), {given})\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    name = "Mine" if what == "method" else "Net"
    assert f"{name} is defined in a script or notebook" in done.stderr
    assert f"'mine.py:{name}'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_class_of_a_function_is_refused() -> None:
    class Mine(Net):
        pass

    with pytest.raises(Error, match="Mine is defined in a function"):
        pfedsim.train(table(), "fedavg", model=Mine, **QUICK)


def test_check_takes_names_and_objects() -> None:
    results = pfedsim.check("fedavg")
    assert len(results) > 5
    assert [result.why for result in results] == [""] * len(results)
    assert [result.name for result in pfedsim.check(parse("fedavg"))] == [result.name for result in results]
    wrong: Any = 3
    with pytest.raises(Error, match=r"a pfedsim\.Method object, not int"):
        pfedsim.check(wrong)


def test_compare_runs_names_and_objects_on_one_federation(tmp_path: Path) -> None:
    methods = ["fedavg", parse("pfedsim(rho=0.3)"), parse("fedprox(mu=0.1)")]
    quick = QUICK | {"rounds": 2}
    result = pfedsim.compare(table(), methods, range(7, 9), tmp_path / "out", model="small:Net", **quick)
    assert result.methods == ["Local-Only", "FedAvg", "pFedSim(rho=0.3)", "FedProx(mu=0.1)"]
    assert result.seeds == (7, 8)
    alone = pfedsim.train(table(), "fedprox", seed=8, model="small:Net", **{"fedprox.mu": 0.1}, **quick)
    assert result.runs["FedProx(mu=0.1)"][8].summary == alone.summary


def test_compare_without_a_folder_keeps_its_runs_as_long_as_the_result() -> None:
    result = pfedsim.compare(table(), ["fedavg"], model="small:Net", **QUICK)
    run = result.runs["FedAvg"][42]
    assert run.metrics()
    folder = run.path
    del result, run
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"methods": "fedavg"}, r"compare takes a list of methods, such as .*, not 'fedavg'"),
        ({"methods": []}, r"compare takes a list of methods, such as .*, not \[\]"),
        ({"seeds": 3}, r"compare takes a list of seeds, such as \[42, 43\], not 3"),
        ({"seeds": ["a"]}, r"compare takes a list of seeds, such as \[42, 43\], not \['a'\]"),
        ({"seed": 3}, r"compare takes seeds = \[\.\.\.\], not seed = 3"),
        (
            {"methods": ["fedavg"], "fedprox.mu": 0.1},
            r"fedprox\.mu = 0\.1 has no effect on the methods fedavg: leave it out, or add the method fedprox",
        ),
    ],
)
def test_compare_refuses_what_it_cannot_use(words: dict[str, Any], says: str) -> None:
    with pytest.raises(Error, match=says):
        pfedsim.compare(table(), **words)


def test_a_method_objects_options_are_set_once() -> None:
    with pytest.raises(Error, match="set the options of a method object when you make it"):
        pfedsim.train(table(), parse("pfedsim(rho=0.3)"), **{"pfedsim.rho": 0.1})


def test_similarities_as_an_array() -> None:
    pairs = Pairs({0: {2: 0.5}, 2: {0: 0.25, 1: 1.0}})
    assert repr(pairs) == "Pairs(3 pairs of 3 clients)"
    array = pairs.array(4)
    assert array.shape == (4, 4)
    known = {(i, j): array[i, j] for i, j in np.argwhere(~np.isnan(array)).tolist()}
    assert known == {(0, 2): 0.5, (2, 0): 0.25, (2, 1): 1.0}


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_notebooks_show_a_federation_as_a_table(digits: Federation) -> None:
    head, *rows = cells(digits._repr_html_())
    assert head == ["client", "train", "test", *map(str, range(10))]
    assert len(rows) == 6
    for row, split in zip(rows, digits.partition.clients, strict=True):
        assert [int(v) for v in row[1:3]] == [len(split.train), len(split.test)]
        labels = digits.data.y[np.concatenate([split.train, split.test])].tolist()
        assert [int(v) for v in row[3:]] == [labels.count(c) for c in range(10)]


def test_notebooks_show_a_run_as_a_table() -> None:
    run: Run = pfedsim.train(table(), "fedavg", model="small:Net", **QUICK)
    shown = dict(cells(run._repr_html_()))
    assert (shown["clients"], shown["rounds"]) == ("4", "1")
    assert shown["accuracy, served"].startswith(f"{100 * run.accuracy:.2f}% of all test samples")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partition": "iid", "alpha": 0.5}, "alpha = 0.5 has no effect with the partition 'iid'"),
        ({"classes_each": 3}, "classes_each = 3 has no effect with the data set's default partition"),
        ({"partition": "shards", "classes_each": 2}, "classes_each = 2 has no effect"),
        ({"partition": "classes", "shards_each": 2}, "shards_each = 2 has no effect"),
        (
            {"partition": "mine.json", "test": 0.5},
            "test = 0.5 has no effect with the partition mine.json",
        ),
        ({"partition": "mine.json", "partition_seed": 1}, "partition_seed = 1 has no effect"),
    ],
)
def test_partition_settings_without_effect_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(Error, match=says):
        pfedsim.federate(clients=4, **settings)


def test_errors_in_python_name_no_options_of_the_command_line(tmp_path: Path) -> None:
    settings = QUICK | {"model": "small:Net"}
    (tmp_path / "file").touch()
    pfedsim.train(table(), "fedavg", tmp_path / "run", **settings)
    for place, more in (("file", {}), ("run", {}), ("run", {"resume": True, "lr": 0.5})):
        with pytest.raises(Error, match="choose another folder") as caught:
            pfedsim.train(table(), "fedavg", tmp_path / place, **settings, **more)  # type: ignore[arg-type]
        assert "--" not in str(caught.value)


def test_a_federation_takes_no_settings_of_a_run() -> None:
    with pytest.raises(Error, match="rounds is a setting of a run, not of a federation: give it to train"):
        pfedsim.federate("digits", rounds=3)


def test_options_of_another_method_are_refused() -> None:
    with pytest.raises(Error, match=r"pfedsim\.rho = 0\.1 has no effect on the method 'fedavg'"):
        pfedsim.train(table(), "fedavg", **{"pfedsim.rho": 0.1}, **QUICK)


@pytest.mark.parametrize("wrong", [3, lambda round: None, lambda round, scores, state, more: None])
def test_a_wrong_on_round_is_refused_before_training(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"on_round is called with \(round, scores, state\)"):
        pfedsim.train(table(), "fedavg", tmp_path / "run", on_round=wrong, model="small:Net", **QUICK)
    assert not (tmp_path / "run").exists()
