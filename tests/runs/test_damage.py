"""Files that go bad: found, named, and never a wrong result or a traceback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import small
from damaging import damaged
from stopping import FEDERATION, config, contents, go_on, stop_after, whole
from torch import Tensor

from pfedsim.data import partition
from pfedsim.errors import Error
from pfedsim.runs import config as configs
from pfedsim.runs.checkpoint import FOLDER, read
from pfedsim.runs.doctor import examine
from pfedsim.runs.reader import Run
from pfedsim.runs.resume import stopped
from pfedsim.runs.setup import prepare
from pfedsim.runs.state import to_tensors


@pytest.fixture(autouse=True)
def _no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here, and a hundred runs need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def sentence(call: Callable[[], object]) -> str:
    """What an Error says; nothing where there was none. Anything else is a failure."""
    try:
        call()
        return ""
    except Error as error:
        return str(error)


SHORT = {"rounds": 5, "score": {"every": 4, "finetune": 0}}


def test_a_stopped_run_with_any_file_damaged_goes_on_from_the_right_bits_or_is_refused_by_name(
    tmp_path: Path,
) -> None:
    """Every file, every way. What it would go on from is held against the rounds themselves; one way a file
    runs to the end."""
    stop_after(tmp_path / "stopped", 4, **SHORT)
    stop_after(tmp_path / "other", 4, seed=5, **SHORT)
    expected = contents(whole(tmp_path / "whole", **SHORT).path)
    s = prepare(config(**SHORT), FEDERATION)
    right = [to_tensors(r.state) for r in small.rounds(s)]
    newest = max((tmp_path / "stopped" / FOLDER).glob("*.json"))
    record = read(newest)
    needed = {
        *record["files"],
        *record["logs"],
        f"{FOLDER}/{newest.name}",
        *(f"{FOLDER}/{e['file']}" for e in record["state"]),
    }
    needed -= {"timings.jsonl"}
    names: dict[str, int] = {}
    refused = 0
    for name, kind, damage in damaged(tmp_path / "stopped", tmp_path / "other"):
        copy = tmp_path / f"{name.replace('/', '-')} {kind}"
        shutil.copytree(tmp_path / "stopped", copy)
        damage(copy)
        names[name] = names.get(name, 0) + 1
        said: list[str] = []
        why = sentence(lambda said=said, copy=copy: said.extend(_held_to(right, copy)))
        if why:
            refused += 1
            assert name == "config.toml", f"{copy}: {why}"
            continue
        behind = (
            record["logs"].get(name, {}).get("bytes") == 0
        )  # what stands behind what counts is what a kill leaves
        if name in needed and not behind and not (kind == "missing" and name.endswith(newest.name)):
            assert any(name in note for note in said), f"{copy}: nothing was said"
            doctors: list[str] = []
            sentence(lambda copy=copy, doctors=doctors: doctors.extend(examine(copy).wrong))
            assert any(name in wrong for wrong in doctors), f"{copy}: the doctor is silent"
        if names[name] == 1 + len(names) % 3:
            go_on(copy)
            assert contents(copy) == expected, copy
    print(
        f"stopped run: {sum(names.values())} damages to {len(names)} files; {refused} refused by name, "
        "the rest went on rightly"
    )
    assert sum(names.values()) > 60
    assert refused >= 5


def _held_to(right: list[dict[str, Tensor]], run: Path) -> list[str]:
    """What is said where this run goes on from; fails where that is not what the rounds give."""
    was = stopped(None, run, FEDERATION, False)
    if was.found is not None:
        found, round = to_tensors(was.found.state), right[was.found.state.server.round - 1]
        assert found.keys() == round.keys()
        assert all(found[n].nan_to_num(9.0).equal(round[n].nan_to_num(9.0)) for n in found)
    return was.notes


def test_the_doctor_finds_every_damaged_file_of_a_finished_run_and_reading_it_never_fails_but_in_a_sentence(
    tmp_path: Path,
) -> None:
    run = whole(tmp_path / "run", **SHORT)
    other = whole(tmp_path / "other", seed=5, **SHORT)
    assert examine(run.path).wrong == []
    assert (
        examine(run.path).checked
        == len(
            [
                name
                for name in contents(run.path)
                if name not in ("SHA256SUMS", "manifest.json", "timings.jsonl")
            ]
        )
        + 2
    )
    cases = 0
    for name, kind, damage in damaged(run.path, other.path):
        if name in ("timings.jsonl", "manifest.json"):  # no result depends on them
            continue
        case = f"{name}, {kind}"
        shutil.copytree(run.path, tmp_path / "copy")
        damage(tmp_path / "copy")
        wrong = examine(tmp_path / "copy").wrong
        assert any(name in said for said in wrong) or (name == "SHA256SUMS" and wrong), f"{case}: {wrong}"
        for read_it in (
            lambda r: r.summary,
            lambda r: r.config,
            lambda r: r.metrics(),
            lambda r: r.client_values(),
            lambda r: r.hits(),
            lambda r: r.similarity(),
            lambda r: r.client(0),
            lambda r: r.client(3),
            lambda r: r.client(0).predict(FEDERATION.data.x[:2]),
        ):
            assert "\n" not in sentence(lambda read_it=read_it: read_it(Run(tmp_path / "copy"))), case
        shutil.rmtree(tmp_path / "copy")
        cases += 1
    print(f"finished run: {cases} damages, all found by the doctor")
    assert cases > 60


def test_the_doctor_says_what_does_not_belong(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    (run.path / "models" / "client-00099.safetensors").write_bytes(b"x")
    (run.path / FOLDER).mkdir()
    (run.path / FOLDER / "00001.json").write_text("{}")
    (run.path / "summary.json.tmp").write_text("{")
    (run.path / "notes.txt").write_text("mine")  # the user's own
    wrong = examine(run.path).wrong
    assert len(wrong) == 3
    assert "pfedsim resume removes it" in wrong[1]
    with pytest.raises(Error, match="is not a run's folder"):
        examine(tmp_path)


def test_damaged_partitions_and_configurations_are_refused_by_name(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    other = whole(tmp_path / "other", seed=5, partition_seed=3, **SHORT)
    data, samples = FEDERATION.data.digest, len(FEDERATION.data.y)
    expected = partition.load(run.path / "partition.json", data, samples)
    for name, kind, damage in damaged(run.path, other.path):
        if name not in ("partition.json", "config.toml"):
            continue
        shutil.copytree(run.path, tmp_path / "copy")
        damage(tmp_path / "copy")
        path = tmp_path / "copy" / name
        if name == "config.toml":  # a flip may give another valid one; a run's digests tell
            assert "\n" not in sentence(lambda path=path: configs.check(configs.load(path)))
        elif not sentence(lambda path=path: partition.load(path, data, samples)):
            assert partition.load(path, data, samples).digest == expected.digest, kind
        shutil.rmtree(tmp_path / "copy")
