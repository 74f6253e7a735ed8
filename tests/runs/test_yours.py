"""Nothing of yours is touched: links are not followed, and only files that pfedsim wrote are deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from stopping import FEDERATION, config, contents, go_on, stop_after, whole

from pfedsim import durable
from pfedsim.cli.folders import make_room
from pfedsim.errors import Error
from pfedsim.experiments.compare import compare
from pfedsim.report import pictures
from pfedsim.runs.execute import execute
from pfedsim.runs.names import CHECKPOINT, FINAL, LOGS, is_ours, remove
from pfedsim.runs.reader import Run

SHORT = {"rounds": 4, "score": {"every": 2, "finetune": 0}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and a stopped run of the same settings."""
    place = tmp_path_factory.mktemp("made")
    whole(place / "finished", **SHORT)
    stop_after(place / "stopped", 3, **SHORT)
    return place


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A person's folder, with names that a run uses too."""
    place = tmp_path / "docs"
    place.mkdir()
    for name in ("thesis.tex", "client-00001.safetensors", "00001.json", "00002.safetensors", "state.json"):
        (place / name).write_text(f"years of work on {name}")
    return place


def resumed(run: Path) -> None:
    execute(config(**SHORT), run, FEDERATION, resume=True)


def freshly(run: Path) -> None:
    make_room(run, resume=False, fresh=True)


@pytest.mark.parametrize("name", ["models", "similarity", FINAL, CHECKPOINT, "figures", *LOGS])
@pytest.mark.parametrize("kind", ["stopped", "finished"])
@pytest.mark.parametrize("command", [resumed, freshly])
def test_a_link_in_place_of_a_folder_or_log_is_refused_and_its_target_untouched(
    made: Path, docs: Path, tmp_path: Path, name: str, kind: str, command: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(made / kind, run)
    target = docs / "thesis.tex" if name in LOGS else docs
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    before, theirs = contents(run), contents(docs)
    with pytest.raises(
        Error, match=f"{name} is a symbolic link; pfedsim does not write or delete through links"
    ):
        command(run)
    assert contents(docs) == theirs
    assert contents(run) == before
    assert (run / name).is_symlink()


def test_a_log_with_a_second_name_is_refused(made: Path, tmp_path: Path) -> None:
    """As in a backup made of hard links, which would change with the run."""
    run = tmp_path / "run"
    shutil.copytree(made / "stopped", run)
    os.link(run / "metrics.jsonl", tmp_path / "backup.jsonl")
    before = (tmp_path / "backup.jsonl").read_bytes()
    with pytest.raises(Error, match=r"metrics\.jsonl has a second name"):
        resumed(run)
    assert (tmp_path / "backup.jsonl").read_bytes() == before


def test_a_file_that_is_a_link_is_replaced_not_written_through(
    made: Path, docs: Path, tmp_path: Path
) -> None:
    run, theirs = tmp_path / "run", contents(docs)
    shutil.copytree(made / "stopped", run)
    (run / "models" / "client-00001.safetensors").symlink_to(docs / "client-00001.safetensors")
    (run / CHECKPOINT / "00001.json").unlink(missing_ok=True)
    (run / CHECKPOINT / "00001.json").symlink_to(docs / "00001.json")
    resumed(run)
    assert contents(docs) == theirs
    assert contents(run) == contents(made / "finished")


MINE = (
    "notes.txt", "summary.json.tmp", "models/notes.txt", "models/client-1.safetensors", "models/old/base.safetensors",
    "similarity/00001.safetensors.bak", "final/state.json.tmp", f"{CHECKPOINT}/plan.txt",
    f"{CHECKPOINT}/00001.json.tmp", "figures/sketch.png", "config.toml.0a1b2c3d.tmp",
)  # fmt: skip


def test_files_that_a_run_did_not_write_survive_it(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(made / "stopped", run)
    for name in MINE:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    for name in ("summary.json.0a1b2c3d.pfedsim", "models/base.safetensors.0a1b2c3d.pfedsim"):
        (run / name).write_text("left by a kill")
    go_on(run)
    found = contents(run)
    assert {name: found.pop(name) for name in MINE} == dict.fromkeys(MINE, b"mine")
    assert found == contents(made / "finished")


@pytest.mark.parametrize("name", MINE)
def test_fresh_deletes_a_run_but_none_with_files_of_yours(made: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(made / "finished", run)
    (run / "figures").mkdir()
    (run / "figures" / "curves.png").write_text("drawn by pfedsim show")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("mine")
    before = contents(run)
    with pytest.raises(
        Error, match=r"more than a pfedsim run|was not written by pfedsim, so .* is not deleted"
    ):
        freshly(run)
    assert contents(run) == before
    (run / name).unlink()
    if (run / "models" / "old").exists():
        (run / "models" / "old").rmdir()
    freshly(run)
    assert not run.exists()


def test_fresh_and_rerun_delete_no_file_of_yours_in_a_comparison(tmp_path: Path) -> None:
    words = {"method": "fedavg", "rounds": 1, "score": {"every": 0, "finetune": 0}}
    compare(config(**words), ["fedavg"], [1], tmp_path / "side", federation=FEDERATION)
    for name in ("figures/sketch.png", "fedavg-seed1/figures/sketch.png"):
        mine = tmp_path / "side" / name
        mine.parent.mkdir()
        mine.write_text("mine")
        with pytest.raises(Error, match=r"sketch\.png was not written by pfedsim"):
            freshly(tmp_path / "side")
        if name.startswith("fedavg"):
            with pytest.raises(Error, match=r"sketch\.png was not written by pfedsim"):
                compare(
                    config(**words),
                    ["fedavg"],
                    [1],
                    tmp_path / "side",
                    federation=FEDERATION,
                    rerun=["fedavg"],
                )
        assert mine.read_text() == "mine"
        mine.unlink()
    freshly(tmp_path / "side")
    assert not (tmp_path / "side").exists()


def test_a_half_deleted_run_is_deleted_by_the_next_fresh(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(made / "finished", run)
    unlink, left = Path.unlink, [7]

    def stops(path: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stops)
    with pytest.raises(KeyboardInterrupt):
        remove(run)
    monkeypatch.undo()
    assert not (run / "summary.json").exists()
    assert (run / "timings.jsonl").exists()
    freshly(run)
    assert not run.exists()


def test_every_file_of_a_run_is_on_the_list(made: Path) -> None:
    for run in ("stopped", "finished"):
        names = [str(p.relative_to(made / run)) for p in (made / run).rglob("*")]
        assert [name for name in names if not is_ours(name)] == []


def test_pictures_are_not_saved_through_a_link(made: Path, docs: Path, tmp_path: Path) -> None:
    (tmp_path / "figures").symlink_to(docs)
    with pytest.raises(Error, match="figures is a symbolic link"):
        pictures.save(pictures.of_runs({"a": Run(made / "finished")}), tmp_path / "figures")


def test_work_in_progress_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Whatever stands beside, and what a killed process left is deleted once nobody holds it."""
    mine = {
        ".longer": "mine",
        "longer.part": "mine",
        "longer.tmp": "mine",
        f".longer-{os.getpid()}": "mine",
    }
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    left = tmp_path / "longer.0a1b2c3d.pfedsim"
    left.mkdir()
    (left / "half").write_text("of an extension that was killed")
    with durable.building(tmp_path / "other") as used:
        held = [p.name for p in tmp_path.iterdir() if durable.final_name(p.name) != p.name]
        assert held == [used.name]
        with durable.building(tmp_path / "longer"):
            pass
        assert used.is_dir()  # another process's work in progress stays
    assert {p.name for p in tmp_path.iterdir()} == {*mine, "longer", "other"}


def test_a_write_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "mine")
    (tmp_path / "a.tmp").write_text("mine too")
    durable.write(tmp_path / "a", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "a.tmp").read_text() == "mine too"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()
