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

from pfedsim import durable
from pfedsim.core.rows import Pairs
from pfedsim.data import partition
from pfedsim.errors import Error
from pfedsim.runs import config as configs
from pfedsim.runs.checkpoint import read
from pfedsim.runs.doctor import examine
from pfedsim.runs.names import CHECKPOINT
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
    newest = max((tmp_path / "stopped" / CHECKPOINT).glob("*.json"))
    record = read(newest)
    needed = {
        *record["files"],
        *record["logs"],
        f"{CHECKPOINT}/{newest.name}",
        *(f"{CHECKPOINT}/{e['file']}" for e in record["state"]),
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


def seen(run: Run) -> dict[str, object]:
    """What every reader makes of a finished run; the sentence of one that refuses it."""

    def entries(client: int) -> list[object]:
        module = Run(run.path, trust=True).client(client).module
        return [t.tolist() for t in module.state_dict().values()]

    readers: dict[str, Callable[[], object]] = {
        "summary": lambda: run.summary,
        "config": lambda: run.config.plain(),
        "metrics": run.metrics,
        "clients": run.client_values,
        "hits": lambda: [h.tolist() for h in run.hits()],
        "similarity": lambda: dict((run.similarity() or Pairs()).rows()),
        "client 0": lambda: entries(0),
        "client 3": lambda: entries(3),
        "events": run.events,
        "timings": run.timings,
        "names": run.client_names,
        "manifest": lambda: run.manifest,
        "state": run.final_record,
    }
    found: dict[str, object] = {}
    for name, read_it in readers.items():
        try:
            found[name] = read_it()
        except Error as error:
            found[name] = error
    return found


def test_every_damage_to_a_finished_run_is_found_by_the_doctor_and_no_reader_gives_another_answer(
    tmp_path: Path,
) -> None:
    run = whole(tmp_path / "run", **SHORT)
    other = whole(tmp_path / "other", seed=5, **SHORT)
    assert examine(run.path).wrong == []
    assert examine(run.path).checked == len(contents(run.path))
    right = seen(Run(run.path))
    cases = refusals = 0
    for name, kind, damage in damaged(run.path, other.path):
        case = f"{name}, {kind}"
        copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
        damage(copy)
        if name != "summary.json" or kind != "missing":  # else it is a run that was not finished
            for reader, answer in seen(Run(copy)).items():
                refused = isinstance(answer, Error)
                blamed = name in str(answer) or (name, kind) == ("SHA256SUMS", "swapped")
                assert refused or answer == right[reader], f"{case}: {reader} gives another answer"
                assert not refused or ("\n" not in str(answer) and blamed), f"{case}: {answer}"
                refusals += refused
        wrong = examine(copy).wrong
        assert any(name in said for said in wrong) or (name == "SHA256SUMS" and wrong), f"{case}: {wrong}"
        shutil.rmtree(copy)
        cases += 1
    print(
        f"finished run: {cases} damages, all found by the doctor; {refusals} readings refused, none wrong"
    )
    assert cases > 100
    assert refusals > 200


def test_files_that_change_places_are_refused(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    models = sorted((run.path / "models").glob("client-*"))
    first, second = models[0], models[-1]
    for a, b in ((first, tmp_path / "aside"), (second, first), (tmp_path / "aside", second)):
        a.rename(b)
    number = int(first.stem.removeprefix("client-"))
    with pytest.raises(Error, match=f"{first.name} is damaged"):
        Run(run.path, trust=True).client(number)


def test_a_missing_model_is_no_other_clients_model(tmp_path: Path) -> None:
    """Without its own file a client had the base client's model, under its own name."""
    run = whole(tmp_path / "run", **SHORT)
    own = sorted((run.path / "models").glob("client-*"))[0]
    own.unlink()
    with pytest.raises(Error, match=f"{own.name} cannot be read: No such file"):
        Run(run.path, trust=True).client(int(own.stem.removeprefix("client-")))


def test_a_missing_similarity_is_no_earlier_round(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    files = sorted((run.path / "similarity").iterdir())
    assert len(files) > 1
    files[-1].unlink()
    with pytest.raises(Error, match=f"{files[-1].name} cannot be read: No such file"):
        Run(run.path).similarity()


def test_without_its_list_a_finished_run_is_refused(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    (run.path / "SHA256SUMS").unlink()
    for reader, answer in seen(Run(run.path)).items():
        assert "SHA256SUMS cannot be read" in str(answer), reader
    _, *lines = (
        (whole(tmp_path / "again", **SHORT).path / "SHA256SUMS").read_text().splitlines(keepends=True)
    )
    (run.path / "SHA256SUMS").write_text("".join(lines))
    with pytest.raises(Error, match="its list does not match its own sha256"):
        _ = Run(run.path).summary


def test_what_is_not_listed_is_not_read(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    with pytest.raises(Error, match=r"notes\.txt is not part of this run"):
        run.verified("notes.txt")


def test_a_verified_file_is_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = durable.digest_of(path)[0]
    hashed: list[Path] = []
    monkeypatch.setattr(durable, "SETTLED", -1)
    monkeypatch.setattr(durable, "digest_of", lambda path, _=None: hashed.append(path) or (first, 3))
    durable.verify(path, first)
    durable.verify(path, first)
    assert hashed == [path]
    path.with_suffix(".new").write_bytes(b"two")
    path.with_suffix(".new").replace(path)  # another inode, whatever the clock says
    durable.verify(path, first)
    assert len(hashed) == 2


def test_the_doctor_says_what_does_not_belong(tmp_path: Path) -> None:
    run = whole(tmp_path / "run", **SHORT)
    (run.path / "models" / "client-00099.safetensors").write_bytes(b"x")
    (run.path / CHECKPOINT).mkdir()
    (run.path / CHECKPOINT / "00001.json").write_text("{}")
    (run.path / "summary.json.0a1b2c3d.pfedsim").write_text("{")
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
