"""What is saved, what is made of it, and that nothing else is."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from safetensors.torch import load_file
from stopping import FEDERATION, config, contents, go_on, stop_after, whole

import pfedsim
from pfedsim import durable
from pfedsim.core.server import State
from pfedsim.data.federation import Federation
from pfedsim.durable import Log, locked
from pfedsim.errors import Error
from pfedsim.methods import TWELVE
from pfedsim.runs import checkpoint, manifest, names, space
from pfedsim.runs.checkpoint import Saver, latest
from pfedsim.runs.execute import execute
from pfedsim.runs.reader import Run
from pfedsim.runs.state import from_tensors, to_tensors

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import kills

ORDER = list(TWELVE)


# killed and resumed


@pytest.mark.parametrize("method", TWELVE)
def test_a_run_that_was_killed_ends_in_the_same_bytes(
    digits: Federation, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short version of benchmarks/kills.py: at a random instant, then at a named point; other workers
    before and after."""
    words = {"rounds": 4, "epochs": 2, "join": 0.5, "local_steps": 2, "score": {"every": 2, "finetune": 0}}
    monkeypatch.setattr(kills, "WORDS", words)
    number = ORDER.index(method)
    draw = random.Random(number)
    trial = kills.Trial(method, ("torch", "auto")[number % 2], digits, tmp_path, draw)
    points = [*kills.SAVING, *kills.ENDING]
    trial.killed([None, points[number % len(points)]])
    assert trial.compared == 1


def _at_once(saver: checkpoint.Saver, state: State, record: Mapping[str, Any]) -> None:
    """Every round is saved before the next begins, however fast the rounds are."""
    saver._commit(state, {**record, "logs": {log.name: log.mark() for log in saver._logs}})


def test_every_named_point_is_one_that_a_save_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the small federation killed at each in turn; each kill must have hit."""
    monkeypatch.setattr(checkpoint.Saver, "save", _at_once)
    short = {"rounds": 5, "score": {"every": 0, "finetune": 0}}
    expected = contents(whole(tmp_path / "whole", **short).path)
    for name, point in (kills.SAVING | kills.ENDING).items():
        folder = tmp_path / name.replace(" ", "-")
        _, status = os.waitpid(kills.start(config(**short), folder, FEDERATION, kills.die_at(*point, 1)), 0)
        assert os.WIFSIGNALED(status), name
        assert contents(go_on(folder)[0].path) == expected, name


@pytest.mark.parametrize("after", [1, 3, 6])
def test_resuming_goes_on_where_the_run_was_stopped(tmp_path: Path, after: int) -> None:
    run = whole(tmp_path / "whole")
    stop_after(tmp_path / "stopped", after)
    with pytest.raises(Error, match="is not finished"):
        Run(tmp_path / "stopped")
    rounds: list[int] = []
    execute(None, tmp_path / "stopped", FEDERATION, lambda done: rounds.append(done.round), resume=True)
    assert rounds == [*range(after + 1, 7), 7]
    assert contents(tmp_path / "stopped") == contents(run.path)
    assert not (tmp_path / "stopped" / names.CHECKPOINT).exists()


def test_resuming_a_finished_run_changes_nothing_and_tidies_up(tmp_path: Path) -> None:
    run = whole(tmp_path / "run")
    before = contents(run.path)
    (run.path / names.CHECKPOINT).mkdir()
    (run.path / names.CHECKPOINT / "00007.json").write_text("{}")
    assert go_on(run.path)[0].summary == run.summary
    assert contents(run.path) == before


def test_a_run_stopped_before_its_first_save_begins_again(tmp_path: Path) -> None:
    stop_after(tmp_path / "a", 1)
    for path in (tmp_path / "a" / names.CHECKPOINT).iterdir():
        path.unlink()
    assert contents(go_on(tmp_path / "a")[0].path) == contents(whole(tmp_path / "b").path)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "timings.jsonl").write_text("")
    with pytest.raises(Error, match="was stopped before it began"):
        go_on(tmp_path / "c")
    assert contents(execute(config(), tmp_path / "c", FEDERATION, resume=True).path) == contents(
        tmp_path / "b"
    )


def test_from_python_and_in_comparisons(digits: Federation, tmp_path: Path) -> None:
    from pfedsim.experiments.compare import compare

    words = {"rounds": 3, "local_steps": 1, "score": {"every": 1, "finetune": 0}}
    with pytest.raises(ZeroDivisionError):
        pfedsim.train(
            digits, "fedavg", tmp_path / "FedAvg", watch=lambda done: 1 / (2 - done.round), **words
        )  # type: ignore[arg-type, return-value]
    assert [p.name for p in sorted((tmp_path / "FedAvg" / "checkpoint").glob("*.json"))][-1] == "00002.json"
    first = pfedsim.train(digits, "fedavg", tmp_path / "FedAvg", resume=True, **words)
    assert contents(first.path) == contents(
        pfedsim.train(digits, "fedavg", tmp_path / "again", **words).path
    )
    asked = config(
        method="fedavg", model="lenet5", clients=6, alpha=0.5, minimum=40, rounds=3, epochs=1, local_steps=1
    )

    def fails(done: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compare(asked, ["fedavg"], [1], tmp_path / "side", fails)
    assert (tmp_path / "side" / "local-only-seed1" / "checkpoint").is_dir()
    found = compare(asked, ["fedavg"], [1], tmp_path / "side")
    assert found.methods == ["Local-Only", "FedAvg"]
    resumed = [
        json.loads(line)
        for line in (tmp_path / "side" / "local-only-seed1" / "timings.jsonl").read_text().splitlines()
    ]
    assert {"round": 1, "resumed": True} in resumed


# the files


def states(rounds: int = 12, **words: object) -> list[State]:
    from pfedsim.methods import parse

    s = small.session(
        parse("pfedsim(rho=0)"), small.table((9,) * 30, test=2), rounds=rounds, join=0.1, **words
    )
    return [r.state for r in small.rounds(s)]


def test_a_save_holds_what_the_round_changed_and_no_more(tmp_path: Path) -> None:
    saver = Saver(tmp_path, [Log(tmp_path / "metrics.jsonl")])
    for state in states():
        saver.save(state, {"files": {"config.toml": "x"}})
        while saver.saves < state.server.round:
            pass
    saver.close()
    folder = tmp_path / names.CHECKPOINT
    record = checkpoint.read(folder / "00012.json")
    for entry in record["state"]:
        path = folder / entry["file"]
        assert sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        assert path.stat().st_size == entry["bytes"]
    deltas = [load_file(folder / e["file"]) for e in record["state"][1:]]
    assert deltas
    for delta in deltas:  # three clients took part: their rows and memories, and the pairs they make
        rows = [name for name in delta if name.startswith("server/personal/rows/")]
        assert len(rows) == 3
        assert len([name for name in delta if name.startswith("client/")]) == 3
        assert "server/model" not in delta  # which stays as it is in the second stage
    assert len(list(folder.glob("*.json"))) <= 3


def test_what_is_read_back_is_what_was_saved_after_every_round(tmp_path: Path) -> None:
    """Deltas applied over whole states, rounds that were skipped, parts that vanished."""
    found = states()
    (tmp_path / "config.toml").write_text("")
    digest = sha256(b"").hexdigest()
    saver = Saver(tmp_path, [])
    for number, state in enumerate(found):
        if number % 5 == 4:
            continue
        if number == 7:
            state = State(
                state.server, {i: m for i, m in state.memories.items() if i != min(state.memories)}
            )
        before = saver.saves
        saver.save(state, {"files": {"config.toml": digest}})
        while saver.saves == before:
            pass
        good, wrong = latest(tmp_path, digest)
        assert wrong == []
        assert good is not None
        a, b = to_tensors(good.state), to_tensors(state)
        assert a.keys() == b.keys()
        assert all(
            a[name].dtype == b[name].dtype and a[name].nan_to_num(9.0).equal(b[name].nan_to_num(9.0))
            for name in a
        )
    saver.close()


def test_tensors_of_any_kind_are_written_as_the_library_reads_them(tmp_path: Path) -> None:
    kinds = [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    ]
    given = {f"t{k}": torch.arange(6).reshape(2, 3).to(kind) for k, kind in enumerate(kinds)} | {
        "none": torch.zeros(0, 4),
        "one": torch.tensor(3),
    }
    durable.write(tmp_path / "a.safetensors", *checkpoint.packed(given))
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == given.keys()
    assert all(found[n].dtype == given[n].dtype and found[n].equal(given[n]) for n in given)


def test_empty_tables_and_clients_survive() -> None:
    from pfedsim.core.method import Memory, ServerState
    from pfedsim.core.rows import Pairs, Rows

    state = State(
        ServerState(300, torch.zeros(3), None, {"p": Pairs(), "r": Rows(torch.ones(2))}), {4: Memory()}
    )
    again = from_tensors({name: t.clone() for name, t in to_tensors(state).items()})
    assert again.server.round == 300
    assert isinstance(again.server.extra["p"], Pairs)
    assert again.server.extra["r"].ids == []
    assert list(again.memories) == [4]
    assert again.memories[4].kept is None


def test_sums_are_what_sha256sum_reads(tmp_path: Path) -> None:
    run = whole(tmp_path / "run")
    *lines, own = (run.path / "SHA256SUMS").read_text().splitlines(keepends=True)
    assert own == f"# sha256 of the lines above: {sha256(''.join(lines).encode()).hexdigest()}\n"
    listed = dict(reversed(line.rstrip("\n").split("  ")) for line in lines)
    found = {
        name: sha256(content).hexdigest()
        for name, content in contents(run.path).items()
        if content or name == "events.jsonl"
    }
    assert listed == {name: digest for name, digest in found.items() if name != "SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=run.path, check=True)


# another place, another run


def test_another_torch_or_cpu_needs_a_word_and_marks_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(tmp_path / "run", 3)
    here = manifest.made_with

    def elsewhere(session: object) -> dict[str, object]:
        made = here(session)  # type: ignore[arg-type]
        return {**made, "versions": {**made["versions"], "torch": "9.9.9"}, "cpu": "Abacus 3000"}

    monkeypatch.setattr(manifest, "made_with", elsewhere)
    with pytest.raises(Error, match=r"cpu: .* -> Abacus 3000; versions.torch: .* -> 9.9.9.*--allow-drift"):
        go_on(tmp_path / "run")
    run, _ = go_on(tmp_path / "run", allow_drift=True)
    marks = run.summary["drift"]
    assert len(marks) == 2
    assert marks[1].endswith("-> 9.9.9")
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [e["what"] for e in events if e["event"] == "drift"] == marks
    assert "drift" not in whole(tmp_path / "other").summary


def test_a_mark_is_not_lost_by_a_second_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stopping import Stop

    stop_after(tmp_path / "run", 2)
    here = manifest.made_with
    monkeypatch.setattr(manifest, "made_with", lambda s: {**here(s), "cpu": "Abacus 3000"})

    def stops(done: object) -> None:
        if done.round == 5:  # type: ignore[attr-defined]
            raise Stop

    with pytest.raises(Stop):
        execute(None, tmp_path / "run", FEDERATION, stops, resume=True, allow_drift=True)
    run, _ = go_on(tmp_path / "run")  # the same place as the last time
    assert [mark.partition(":")[0] for mark in run.summary["drift"]] == ["cpu"]
    assert (run.path / "events.jsonl").read_text().count("drift") == 1


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"lr": 0.06}, "lr = 0.05, not 0.06"),
        ({"rounds": 9}, "rounds = 7, not 9"),
        ({"method": "pfedsim(rho=0.3)"}, "pfedsim.rho = 0.2, not 0.3"),
    ],
)
def test_another_configuration_is_refused_by_the_field(
    tmp_path: Path, words: dict[str, object], field: str
) -> None:
    stop_after(tmp_path / "run", 3)
    before = contents(tmp_path / "run")
    with pytest.raises(Error, match=f"holds a different run: {field}"):
        execute(config(**words), tmp_path / "run", FEDERATION, resume=True)
    assert contents(tmp_path / "run") == before


def test_other_data_or_another_partition_is_refused_by_the_field(
    digits: Federation, tmp_path: Path
) -> None:
    stop_after(tmp_path / "run", 3)
    with pytest.raises(Error, match=r"digests.data = .*so the run would not be the same one"):
        go_on(tmp_path / "run", small.table((20, 9, 33, 12), test=6, seed=1))
    with pytest.raises(Error, match=r"digests.data = "):  # the folder's own words: digits, which it is not
        go_on(tmp_path / "run", None)
    words = {"model": "lenet5", "local_steps": 1, "clients": 6, "alpha": 0.5, "minimum": 40}
    stop_after(tmp_path / "digits", 3, digits, **words)
    dealt = pfedsim.federate(clients=6, alpha=0.5, minimum=40, partition_seed=1)
    with pytest.raises(Error, match=r"digests.partition = "):
        go_on(tmp_path / "digits", dealt)
    (tmp_path / "digits" / "partition.json").write_text(dealt.partition.text())
    run, notes = go_on(tmp_path / "digits", None)  # dealt again, as the configuration says
    assert any("partition.json is damaged" in note for note in notes)
    assert contents(run.path) == contents(whole(tmp_path / "whole", digits, **words).path)


# one at a time, and only where there is room


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    stop_after(tmp_path / "run", 3)
    before = contents(tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(Error, match="is in use"):
        go_on(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    child = os.fork()
    if not child:  # a forked worker that outlives its parent does not hold the folder
        os._exit(0)
    os.waitpid(child, 0)
    go_on(tmp_path / "run")


def test_a_full_disk_is_named_and_the_last_save_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(descriptor: int, data: memoryview) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.parent.name == "checkpoint" and any(
            path.parent.glob("*.json")
        ):  # the first save found room
            real(descriptor, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(
        Error,
        match=(
            r"checkpoint/\w+-\d+.safetensors: no room for its [\d,]+ bytes \(No "
            r"space left on device; [\d,]+ are free\)"
        ),
    ):
        whole(tmp_path / "run", rounds=40)
    monkeypatch.undo()
    good, wrong = latest(
        tmp_path / "run", sha256((tmp_path / "run" / "config.toml").read_bytes()).hexdigest()
    )
    assert wrong == []
    assert good is not None
    assert contents(go_on(tmp_path / "run")[0].path) == contents(whole(tmp_path / "whole", rounds=40).path)


def test_the_kernels_own_refusal_to_write_is_named(tmp_path: Path) -> None:
    """Files may not grow over 3,000 bytes in this process: the log does."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        try:
            whole(tmp_path / "run")
        except Error as error:
            os._exit(0 if "no room for its" in str(error) and str(tmp_path / "run") in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert contents(go_on(tmp_path / "run")[0].path) == contents(whole(tmp_path / "whole").path)


def test_room_is_estimated_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = small.session(rounds=7, join=0.5)
    least, most = space.estimate(session)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free})())
    free = least - 1
    with pytest.raises(Error, match=rf"needs at least {least:,} bytes of disk, {free:,} are free"):
        space.room(session, tmp_path)
    free = most - 1
    assert f"up to {most:,} bytes" in space.room(session, tmp_path)
    free = most
    assert space.room(session, tmp_path) == ""


def test_a_run_takes_no_more_than_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pfedsim.runs.execute.remove_checkpoint", lambda run: None
    )  # the checkpoint stays, to be counted
    s = small.session(rounds=7, join=0.5)
    run = whole(tmp_path / "run")
    used = sum(
        p.stat().st_size
        for p in run.path.rglob("*")
        if p.is_file() and p.suffix in (".safetensors", ".csv")
    )
    assert (
        used < space.estimate(s)[1] + 20_000
    )  # headers of files, which a network of a few hundred entries does not hide


def test_a_run_that_lost_its_configuration_is_not_written_over(tmp_path: Path) -> None:
    finished, stopped = tmp_path / "finished", tmp_path / "stopped"
    whole(finished)
    stop_after(stopped, 3)
    for folder in (finished, stopped):
        (folder / "config.toml").unlink()
        before = contents(folder)
        for asked in (config(method="fedavg"), None):
            with pytest.raises(Error, match=r"has lost its configuration.*there is no config\.toml"):
                execute(asked, folder, FEDERATION, resume=True)
        assert contents(folder) == before


def test_files_of_the_users_own_and_lost_timings_do_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    expected = contents(whole(tmp_path / "whole").path)
    stop_after(tmp_path / "stopped", 3)
    (tmp_path / "stopped" / "timings.jsonl").unlink()
    (tmp_path / "stopped" / "notes.txt").write_text("mine")
    (tmp_path / "stopped" / names.CHECKPOINT / "mine").mkdir()
    found = contents(go_on(tmp_path / "stopped")[0].path)
    assert found.pop("notes.txt") == b"mine"
    assert found == expected


def test_a_finished_run_is_read_only_where_it_is_as_it_was_written(tmp_path: Path) -> None:
    path = whole(tmp_path / "run").path
    path.joinpath("summary.json").write_text(
        path.joinpath("summary.json").read_text().replace('"micro": 0.', '"micro": 0.9')
    )
    with pytest.raises(Error, match=r"summary\.json is damaged: its sha256"):
        Run(path).accuracy  # noqa: B018


def test_what_is_changed_in_place_is_saved_too(tmp_path: Path) -> None:
    """A method should not do it, but then the saved state must not be another than the one that ran."""
    session = small.session()
    state = session.side.snapshot(session.begin())
    path = tmp_path / "run"
    path.mkdir()
    saver = Saver(path, [])
    record = {"files": {"config.toml": "x"}}
    for round in (1, 2, 3):
        state.server.model.add_(1.0)
        state = State(replace(state.server, round=round), state.memories)
        _at_once(saver, state, record)
    saver.close()
    manifest_file = path / names.CHECKPOINT / "00003.json"
    chain = json.loads(manifest_file.read_text())["state"]
    saved = checkpoint._tensors(path / names.CHECKPOINT, chain)["server/model"]
    torch.testing.assert_close(saved, state.server.model, rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_names_the_memories_that_clients_keep_themselves(tmp_path: Path) -> None:
    session = small.session()
    begun = session.side.snapshot(session.begin())
    best = replace(begun, elsewhere={1: "c"})
    state = replace(begun, elsewhere={1: "a", 3: "b"}, best=best)
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text("x")
    digest = durable.digest_of(path / "config.toml")[0]
    saver = Saver(path, [])
    _at_once(saver, state, {"files": {"config.toml": digest}})
    saver.close()
    assert saver.marks() == [{1: "a", 3: "b"}, {1: "c"}]
    found, wrong = checkpoint.latest(path, digest)
    assert wrong == []
    assert found is not None
    assert found.state.elsewhere == {1: "a", 3: "b"}
    assert found.state.best is not None
    assert found.state.best.elsewhere == {1: "c"}
    again = Saver(path, [], found)
    assert again.marks() == [{1: "a", 3: "b"}, {1: "c"}]
    again.close()
