"""Power losses at every file operation: the short form of benchmarks/powerloss.py, and that it can fail."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pfedsim import durable
from pfedsim.errors import Error
from pfedsim.runs import execute as executing
from pfedsim.runs.execute import execute
from pfedsim.runs.names import CHECKPOINT
from pfedsim.runs.reader import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import powerloss
from disk import Disk


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(powerloss.WORDS, "rounds", 2)


@pytest.mark.parametrize("name", [name for name in powerloss.WORKS if "background" not in name])
def test_nothing_is_lost_at_any_operation(name: str, tmp_path: Path) -> None:
    """Runs at every operation; what consists of runs at every fourth."""
    every = 4 if name in ("resume", "run --extend", "compare", "reproduce") else 1
    found = powerloss.trial(
        powerloss.WORKS[name](), tmp_path, 1, lambda losses: powerloss.sample(losses, every)
    )
    assert found["operations"] > 10


@pytest.mark.parametrize(
    ("name", "holder", "function"),
    [
        ("run fedavg", durable.Log, "flush"),
        ("run fedavg", durable, "flush_folder"),
        ("export --all", durable, "flush_tree"),
        ("data get", durable, "flush_tree"),
        ("data add", durable, "flush_folder"),
        ("reproduce", durable, "flush_folder"),
    ],
)
def test_a_flush_that_is_left_out_is_noticed(
    name: str, holder: Any, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, function, lambda *_: None)
    with pytest.raises(AssertionError, match=r"operation \d+, "):
        powerloss.trial(powerloss.WORKS[name](), tmp_path, 0, lambda losses: losses[::-1])


def test_what_the_disk_may_lose(tmp_path: Path) -> None:
    disk = Disk(tmp_path, draws=0)
    with disk.recording():
        file = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"1234")
        os.fsync(file)
        os.write(file, b"5678")
        durable.flush_folder(tmp_path)
        os.close(file)
        os.replace(tmp_path / "a", tmp_path / "b")
        durable.flush_folder(tmp_path)
        os.unlink(tmp_path / "b")
    after = [
        {tuple(sorted(loss.tree.items())) for loss in disk.losses if loss.operation == n}
        for n in range(1, 9)
    ]
    assert after[0] == {(), (("a", b""),)}
    assert after[1] == {(("a", b"12"),), (("a", b"\0\0\0\0"),), (("a", b"1234"),)}  # or as before
    assert after[3] == {(("a", b"123456"),), (("a", b"1234\0\0\0\0"),), (("a", b"12345678"),)}
    assert after[4] == set()  # the name is safe: no state that has not been seen, and fewer of those
    assert {name for tree in after[5] for name, _ in tree} == {"b"}
    assert disk.operations == 8


# a finished run whose logs were cut


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, bytes]]:
    """A finished run with its checkpoint still there and the last lines of a log gone, and its right files."""
    with monkeypatch.context() as kept:
        kept.setattr(executing, "remove_checkpoint", lambda run: None)
        run = execute(powerloss.config(method="fedavg"), tmp_path / "run", powerloss.federation()).path
    right = {n: c for n, c in powerloss.contents(run).items() if not n.startswith(CHECKPOINT)}
    (run / "clients.csv").write_bytes((run / "clients.csv").read_bytes()[:-30])
    return run, right


def test_resume_heals_a_finished_run_from_its_checkpoint(cut: tuple[Path, dict[str, bytes]]) -> None:
    run, right = cut
    said: list[str] = []
    execute(None, run, powerloss.federation(), lambda done: said.append(done.note), resume=True)
    assert any(
        "clients.csv is damaged" in note and "continues from its last checkpoint" in note for note in said
    )
    assert powerloss.contents(run) == right


def test_without_a_checkpoint_it_is_refused_and_nothing_is_deleted(
    cut: tuple[Path, dict[str, bytes]],
) -> None:
    run, right = cut
    shutil.rmtree(run / CHECKPOINT)
    before = powerloss.contents(run)
    for config in (None, powerloss.config(method="fedavg")):
        with pytest.raises(Error, match=r"clients.csv is damaged.* no checkpoint is left to repair it"):
            execute(config, run, powerloss.federation(), resume=True)
    assert powerloss.contents(run) == before
    assert before != right


def test_a_finished_run_is_read_while_its_checkpoint_is_still_there(
    cut: tuple[Path, dict[str, bytes]],
) -> None:
    with pytest.raises(Error, match=r"clients\.csv is damaged"):
        Run(cut[0]).clients()
