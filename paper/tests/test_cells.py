from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pfedsim_paper import protocol
from pfedsim_paper.protocol import Choice, cell, grid

from pfedsim import seal
from pfedsim.errors import Error
from pfedsim.experiments import Cell, Record, Store, plan, read
from pfedsim.experiments.cell import FORMAT
from pfedsim.seal import sealed


def record(of: Cell, micro: float = 0.5, seconds: float = 10.0, **found: Any) -> Record:
    scores = {"micro": micro, "mean": micro - 0.1, "worst_tenth": 0.1}
    curve = {"round": [1, 2], "micro": [micro, micro], "mean": [micro, micro], "train_loss": [2.0, 1.0]}
    found = {"served": scores, "finetuned": {"epochs": 5, **scores}, "curve": curve, **found}
    found.setdefault(
        "clients", {"samples": [10, 30], "labels": [1, 2], "served": [0.2, 0.6], "finetuned": [0.2, 0.6]}
    )
    found |= {"bytes_down_per_client_round": 1000, "bytes_up_per_client_round": 500}
    made = {
        "seconds": seconds,
        "cpu_seconds": seconds,
        "cpu": "x",
        "cores": 2,
        "versions": {"pfedsim": "0"},
    }
    return Record(of, of.settings(), found, made)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def test_a_finished_cell_is_found_again_by_what_was_asked(store: Store) -> None:
    one, other = cell("digits", "fedavg", 0.1, 42, {}), cell("digits", "fedavg", 0.1, 43, {})
    path = store.put(record(one))
    assert store.find(one) == read(path)
    assert store.find(other) is None
    assert [p.name for p in store.folder.rglob("*") if p.is_file()] == [
        path.name
    ]  # nothing is left beside it
    assert "fedavg-seed42" in path.name
    assert store.find(cell("digits", "fedavg", 0.1, 42, {"rounds": 3})) is None


def test_another_value_makes_it_another_run_and_a_new_setting_does_not(store: Store) -> None:
    one = cell("digits", "fedavg", 0.1, 42, {})
    path = store.put(record(one))
    content = seal.load(path, "a cell")
    without = {**content, "settings": {k: v for k, v in content["settings"].items() if k != "lr_decay"}}
    path.write_text(sealed(without))  # as if lr_decay had come to pfedsim since then
    assert store.find(one) is not None
    changed = {**content, "settings": {**content["settings"], "head": "fc"}}
    path.write_text(sealed(changed))
    assert store.find(one) is None
    gone = {**content, "settings": {**content["settings"], "an_old_setting": 1}}
    path.write_text(sealed(gone))
    assert store.find(one) is None
    assert not store.damaged


BROKEN = [
    "",
    "{}",
    "[1]",
    '{"format": "pfedsim cell 1", "kind": "run"}',
    sealed({"format": FORMAT}),
    "\x00",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_damaged_file_is_named_and_its_cell_counts_as_missing(store: Store, text: str) -> None:
    one, other = (cell("digits", "fedavg", 0.1, seed, {}) for seed in (42, 43))
    path = store.put(record(one))
    store.put(record(other))
    path.write_text(text)
    now = plan([one, other], store)
    assert ([r.cell.digest for r in now.done], now.missing) == ([other.digest], [one])
    assert [path.name in why for why in store.damaged.values()] == [True]
    assert len(store.all()) == 1
    store.put(record(one))
    assert store.find(one) is not None
    assert not store.damaged


def test_a_damaged_cell_that_another_process_runs_again_is_whole(store: Store) -> None:
    """`reproduce` runs its cells in processes of their own; it ended with exit code 1 all the same."""
    one = cell("digits", "fedavg", 0.1, 42, {})
    store.put(record(one)).write_text("")
    assert store.find(one) is None
    assert store.damaged
    Store(store.folder).put(record(one))
    assert store.find(one) is not None
    assert not store.damaged


def test_one_changed_digit_is_noticed(store: Store) -> None:
    """87.89 became 97.89 in a table, and nobody noticed."""
    one = cell("digits", "fedavg", 0.1, 42, {})
    path = store.put(record(one, 0.8789))
    path.write_text(path.read_text().replace("0.8789", "0.9789"))
    assert store.find(one) is None
    assert "does not match its sha256" in store.damaged[path]


def test_two_cells_that_change_places_are_noticed(store: Store) -> None:
    one, other = (cell("digits", "fedavg", 0.1, seed, {}) for seed in (42, 43))
    first, second = store.put(record(one, 0.5)), store.put(record(other, 0.6))
    texts = first.read_text(), second.read_text()
    second.write_text(texts[0])
    first.write_text(texts[1])
    assert store.all() == []
    assert all("holds another cell than its name says" in why for why in store.damaged.values())
    assert store.find(one) is store.find(other) is None


def test_a_score_that_is_no_number_is_named(store: Store) -> None:
    one = cell("cifar10", "fedavg", 0.1, 42, {})
    path = store.put(record(one))
    content = seal.load(path, "a cell")
    content["found"]["served"]["micro"] = "abc"
    path.write_text(sealed(content))
    assert store.find(one) is None
    assert store.damaged[path].endswith("is not a valid cell: a score is not a number")


def test_a_cell_that_is_run_again_is_read_again(store: Store) -> None:
    one = cell("cifar10", "fedavg", 0.1, 42, {})
    for micro in (0.5, 0.6):
        store.put(record(one, micro))
        found = store.find(one)
        assert found is not None
        assert found.found["served"]["micro"] == micro


def test_the_same_run_has_one_cell_in_every_study() -> None:
    from pfedsim_paper import accuracy, heterogeneity, questions, rho

    main = {c.digest for c in accuracy.plan(Choice())}
    assert len(main) == 24
    assert (
        sum(c.digest in main for c in rho.plan(Choice())) == 4
    )  # rho = 0.5 is the default, 1 is FedAvg; two alphas
    assert sum(c.digest in main for c in heterogeneity.plan(Choice(seeds=(42,)))) == 8
    assert cell("cifar10", "pfedsim", 0.1, 42, {}).digest in {c.digest for c in questions.plan(Choice())}


def test_settings_change_what_they_name_and_leave_the_rest() -> None:
    assert cell("cifar10", "fedavg", 0.1, 42, {"score": {"finetune": 1}}).words["score"] == {
        "every": 20,
        "finetune": 1,
    }
    assert cell("cifar10", "fedavg", 0.1, 42, {}).words["score"] == {"every": 20, "finetune": 5}


def test_the_main_table_is_the_papers_setting() -> None:
    (one,) = grid(Choice().of(methods=("pfedsim",), alphas=(0.1,)))
    settings = one.settings()
    expected = {
        "clients": 100,
        "partition": "dirichlet",
        "alpha": 0.1,
        "minimum": 40,
        "rounds": 200,
        "join": 0.1,
        "epochs": 5,
        "batch": 32,
        "lr": 0.01,
        "momentum": 0.0,
        "decay": 0.0,
        "shuffle": False,
        "buffers": "local",
        "test": 0.5,
        "model": "lenet5",
        "seed": 42,
        "partition_seed": 42,
        "pfedsim": {"rho": 0.5, "warmup": "fedavg", "similarity": "classwise", "own": 1.0},
    }
    assert {k: settings[k] for k in expected} == expected
    assert len(grid(Choice(full=True).of(full_data=("cifar10",)))) == 12 * 2 * 5


def test_fedgen_means_the_benchmarks_form_in_a_study() -> None:
    """Its name, and so its file, is that of the plain word; a form that is spelt out stands for itself."""
    asked = cell("digits", "fedgen", 0.1, 42, {})
    assert asked.words["method"] == "fedgen"
    assert asked.settings()["fedgen"]["labels"] == "own"
    assert "-fedgen-seed42-" in asked.name
    assert cell("digits", "fedgen(labels=all)", 0.1, 42, {}).settings()["fedgen"]["labels"] == "all"


def test_an_option_that_came_later_leaves_a_finished_cell_valid(store: Store) -> None:
    """As a setting does; an option that is gone or has another value does not."""
    asked = cell("digits", "fedfomo", 0.1, 42, {})
    now = asked.settings()
    without = {k: v for k, v in now["fedfomo"].items() if k != "baseline"}
    for options, valid in (
        (without, True),
        ({**without, "models": 4}, False),
        ({**without, "gone": 1}, False),
    ):
        store.put(replace(record(asked), settings={**now, "fedfomo": options}))
        assert (store.find(asked) is not None) == valid


def test_a_part_is_chosen(store: Store) -> None:
    from pfedsim_paper import accuracy

    chosen = accuracy.plan(
        Choice(
            methods=("fedavg", "pfedsim"),
            data=("digits",),
            alphas=(0.3,),
            seeds=(1, 2),
            settings={"rounds": 3},
        )
    )
    assert [(c.words["seed"], c.words["method"]) for c in chosen] == [
        (1, "fedavg"),
        (1, "pfedsim"),
        (2, "fedavg"),
        (2, "pfedsim"),
    ]
    assert {(c.words["alpha"], c.words["rounds"], c.words["data"]) for c in chosen} == {(0.3, 3, "digits")}
    with pytest.raises(Error, match="did you mean 'digits'"):
        accuracy.plan(Choice(data=("digit",)))


def test_time_left_comes_from_what_is_finished(store: Store) -> None:
    cells = [cell("digits", m, 0.1, s, {}) for s in (42, 43, 44) for m in ("fedavg", "fedgen")]
    assert plan(cells, store).unknown == 6
    store.put(record(cells[0], seconds=10))
    store.put(record(cells[1], seconds=70))
    now = plan([*cells, cells[0]], store)  # a cell asked twice is run once
    assert (len(now.done), len(now.missing), now.unknown) == (2, 4, 0)
    assert now.seconds == pytest.approx(2 * 10 + 2 * 70)
    assert plan([cell("digits", "fedgen", 0.5, 42, {})], store).seconds == pytest.approx(
        70
    )  # of another study
    other = plan([*cells[:2], cell("digits", "fedper", 0.1, 42, {"rounds": 10})], store)
    assert other.seconds == pytest.approx(
        40 / protocol.SETS["digits"]["rounds"] * 10
    )  # as others of its data, by rounds
