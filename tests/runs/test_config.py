from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from pfedsim.data.task import Defaults
from pfedsim.errors import Error
from pfedsim.runs.config import Config, assign, check, load

DIGITS = Defaults(clients=20, minimum=10, join=0.5, rounds=20)


def test_the_papers_settings_are_the_defaults() -> None:
    c = check({"data": "cifar10"}).resolved(Defaults(), 100)
    assert (c.rounds, c.epochs, c.batch, c.lr, c.momentum, c.decay, c.join) == (
        200,
        5,
        32,
        0.01,
        0.0,
        0.0,
        0.1,
    )
    assert (c.partition, c.alpha, c.minimum, c.test, c.partition_seed, c.seed) == (
        "dirichlet",
        0.1,
        40,
        0.5,
        42,
        42,
    )
    assert (c.buffers, c.shuffle, c.validation, c.lr_decay, c.local_steps) == ("local", False, 0.0, 1.0, 0)
    assert (c.model, c.head, c.score.finetune) == ("lenet5", "classifier", 5)


@pytest.mark.parametrize(
    ("clients", "join"), [(1, 1.0), (10, 1.0), (11, 0.5), (29, 0.5), (30, 0.1), (500, 0.1), (20, 0.5)]
)
def test_the_join_ratio_suits_the_number_of_clients(clients: int, join: float) -> None:
    assert check({"clients": clients}).resolved(DIGITS, clients).join == join
    assert check({"clients": clients, "join": 0.7}).resolved(DIGITS, clients).join == 0.7


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"lerning_rate": 0.1}, "there is no setting 'lerning_rate'; did you mean 'lr'?"),
        ({"learning_rate": 0.1}, "did you mean 'lr'?"),
        ({"batch_size": 8}, "did you mean 'batch'?"),
        ({"num_clients": 8}, "did you mean 'clients'?"),
        ({"epoch": 8}, "did you mean 'epochs'?"),
        ({"suffle": True}, "did you mean 'shuffle'?"),
        ({"score": {"evry": 3}}, "'score.evry'; did you mean 'score.every'?"),
        ({"zzz": 1}, "there is no setting 'zzz'; pfedsim run --help lists all settings"),
        ({"lr": {"a": "b" * 100}}, "lr = {'a': '" + 53 * "b" + "...: must be a valid number"),
        ({"pfedsim": 1}, "pfedsim = 1: set one of its options, as in pfedsim.OPTION"),
        ({"dropouts": {"late_clients": 3}}, "dropouts.late_clients = 3: must be a list, as in [3, 7]"),
        ({"fedprxo": {"mu": 1}}, "there is no setting 'fedprxo'"),
        ({"options": {"pfedsim": {"rho": 0.1}}}, "there is no setting 'options'"),
        ({"alpha": -1}, "alpha = -1: must be above 0"),
        ({"rounds": 0}, "rounds = 0: must be at least 1"),
        ({"rounds": "-3"}, "rounds = -3: must be at least 1"),
        ({"partition_seed": 2**32}, "partition_seed = 4294967296: must be below 4294967296"),
        ({"clients": 0}, "clients = 0"),
        ({"join": 1.5}, "join = 1.5: must be at most 1"),
        ({"join": 0}, "join = 0"),
        ({"lr": 0}, "lr = 0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": float("inf")}, "lr = inf"),
        ({"batch": 1}, "batch = 1: must be at least 2"),
        ({"momentum": 1}, "momentum = 1"),
        ({"test": 1}, "test = 1"),
        ({"validation": 1}, "validation = 1"),
        ({"minimum": 1}, "minimum = 1"),
        ({"time_limit": 1e30}, "time_limit = 1e+30: must be at most 10000000"),
        ({"epochs": 1.5}, "epochs = 1.5"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"buffers": "global"}, "buffers = 'global': must be 'local' or 'shared'"),
        ({"device": "tpu"}, "device = 'tpu'"),
        ({"score": {"every": -1}}, "score.every = -1"),
        ({"score": 3}, "score = 3"),
        ({"model": "lenet"}, "did you mean 'lenet5'?"),
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'?"),
        ({"method": "fedavgg"}, "there is no method 'fedavgg'; did you mean 'fedavg'?"),
        ({"method": "pfedsim:papre"}, "pfedsim has no preset 'papre'; did you mean 'paper'?"),
        ({"method": "fedavg:paper"}, "it has none"),
        ({"method": "pfedsim(rho)"}, "'rho' should have the form option=value"),
        ({"method": "pfedsim(rho=2)"}, "pfedsim.rho = 2: must be at most 1"),
        ({"method": "pfedsim(roh=0.2)"}, "pfedsim has no option 'roh'; did you mean 'rho'?"),
        ({"pfedsim": {"roh": 0.2}}, "pfedsim has no option 'roh'; did you mean 'rho'?"),
        ({"method": "fedavg", "pfedsim": {"rho": -1}}, "pfedsim.rho = -1"),
        ({"method": "local", "local": {"x": 1}}, "local has no option 'x'; it has no options"),
        ({"method": "nosuch.py:Mine"}, "there is no file"),
        ({"method": "nosuch.py"}, "there is no file nosuch.py"),
        ({"method": ")("}, "is not a method"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(words: dict[str, Any], says: str) -> None:
    with pytest.raises(Error) as caught:
        check(words)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pfedsim", {"rho": 0.5, "similarity": "classwise", "own": 1.0}),
        ("pfedsim:uniform", {"similarity": "constant"}),
        (
            "pfedsim:reference(rho=0.25)",
            {"rho": 0.25, "similarity": "mean", "own": pytest.approx(9.210340)},
        ),
        (" pfedsim( rho = 1 , own=0 ) ", {"rho": 1.0, "own": 0.0}),
        (
            "pfedsim(warmup=fedavg(weights=uniform), rho=0.2)",
            {"warmup": "fedavg(weights=uniform)", "rho": 0.2},
        ),
    ],
)
def test_a_method_is_a_name_perhaps_a_preset_perhaps_options(method: str, options: dict[str, Any]) -> None:
    made = check({"method": method}).method_made()
    for name, value in options.items():
        assert getattr(made, name) == value


def test_the_methods_own_words_win_over_its_table() -> None:
    made: Any = check({"method": "pfedsim(rho=0.25)", "pfedsim": {"rho": 0.75, "own": 3.0}}).method_made()
    assert (made.rho, made.own) == (0.25, 3.0)


def test_a_users_method_by_file_with_options(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom pfedsim import Method\n\n"
        "@dataclass(frozen=True)\nclass FedAvg(Method):\n    pull: float = 1.0\n\nclass Other:\n    pass\n"
    )
    spec = f"{tmp_path / 'mine.py'}:FedAvg"
    made: Any = check(
        {"method": spec, "fedavg": {"pull": 2.5}}
    ).method_made()  # even by the name of one of ours
    assert made.pull == 2.5
    resolved = check({"method": f"{spec}(pull=3.5)"}).resolved(DIGITS, 20)
    again: Any = check(resolved.plain()).method_made()
    assert again.pull == 3.5
    with pytest.raises(Error, match=r"is not a pfedsim\.Method"):
        check({"method": f"{tmp_path / 'mine.py'}:Other"})
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(Error, match=r"broken\.py, line 1"):
        check({"method": f"{tmp_path / 'broken.py'}:Mine"})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "method": st.sampled_from(
                ["local", "fedavg(weights=uniform)", "pfedsim:reference", "pfedsim(rho=0.1)"]
            ),
            "clients": st.integers(1, 500),
            "alpha": st.floats(1e-3, 100),
            "lr": st.floats(1e-6, 1),
            "rounds": st.integers(1, 500),
            "join": st.floats(0.01, 1),
            "shuffle": st.booleans(),
            "buffers": st.sampled_from(["local", "shared"]),
            "score": st.fixed_dictionaries(
                {}, optional={"every": st.integers(0, 9), "finetune": st.integers(0, 9)}
            ),
        },
    ),
    st.integers(1, 200),
)
def test_a_resolved_configuration_is_toml_and_resolves_to_itself(
    words: dict[str, Any], clients: int
) -> None:
    resolved = check(words).resolved(DIGITS, clients)
    text = tomli_w.dumps(resolved.plain())
    again = check(tomllib.loads(text)).resolved(DIGITS, clients)
    assert tomli_w.dumps(again.plain()) == text
    assert again.digest() == resolved.digest()


def test_a_digest_depends_on_what_decides_the_result_only() -> None:
    def digest(**words: Any) -> str:
        return check(words).resolved(DIGITS, 20).digest()

    assert digest() == digest(data_dir="/elsewhere", device="cuda") == digest(lr=0.01)
    assert digest() != digest(lr=0.02)
    assert digest() != digest(seed=1)


@pytest.mark.parametrize("content", [b"rounds = ", b"rounds = 1\nrounds = 2", b"\xff\xfe"])
def test_a_broken_file_is_said_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.toml").write_bytes(content)
    with pytest.raises(Error, match=r"broken\.toml is not TOML"):
        load(tmp_path / "broken.toml")
    for missing in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(Error, match="cannot be read"):
            load(missing)


def test_words_of_nested_tables() -> None:
    values: dict[str, Any] = {"lr": 0.1}
    assign(values, "score.every", 3)
    assign(values, "pfedsim.rho", 0.3)
    config = check(values)
    assert (config.score.every, config.options) == (3, {"pfedsim": {"rho": 0.3}})
    with pytest.raises(Error, match="'lr' is not a table"):
        assign(values, "lr.x", 1)


def test_every_setting_says_what_it_is() -> None:
    for name, field in Config.model_fields.items():
        assert field.description or name in ("score", "digests"), name


@pytest.mark.parametrize("setting", ["method", "model"])
def test_a_file_without_its_class_is_told_which_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, names in (
        ("class FedAvgM: pass", "mine.py:FedAvgM"),
        ("class A: pass\nclass B: pass", "mine.py:A or mine.py:B"),
        ("no python", "mine.py:Class"),
    ):
        Path("mine.py").write_text(text)
        with pytest.raises(Error, match=f"^mine.py is a file; name the class: {names}$"):
            check({setting: "mine.py"})


def test_a_dataclass_that_is_not_frozen_is_told_the_decorator(tmp_path: Path) -> None:
    text = "import dataclasses, pfedsim\n@dataclasses.dataclass\nclass Mine(pfedsim.Method):\n    mu: float = 1.0\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(
        Error, match=r"mine.py cannot be imported: .*; write @dataclass\(frozen=True\) above the class"
    ):
        check({"method": f"{tmp_path / 'mine.py'}:Mine"})
