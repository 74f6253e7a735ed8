"""A Ray cluster gives the serial engine's bytes; an actor or node that dies costs nothing but time. The tests with
a real Ray run where it is installed: pip install 'pfedsim[ray]' && python -m pytest tests/engines/test_ray.py"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from test_pool import DiesOnce, Numbered, Odd, Sleeps, Stops, Unpicklable, _works, files

import pfedsim
from pfedsim.core.engine import Absent, Done
from pfedsim.core.job import Work
from pfedsim.core.method import Memory, Message, Method
from pfedsim.data.federation import Federation
from pfedsim.engines import actors as actors_module
from pfedsim.engines.actors import Actors, require
from pfedsim.engines.ray import Clients, Ray, packed, unpacked
from pfedsim.engines.serial import Serial
from pfedsim.errors import Error
from pfedsim.methods import TWELVE
from pfedsim.runs import cluster
from pfedsim.runs.config import check
from pfedsim.runs.setup import prepare

with_ray = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="needs Ray: pip install 'pfedsim[ray]' && python -m pytest tests/engines/test_ray.py",
)
HERE = Path(__file__).parent
WORDS: dict[str, Any] = {"rounds": 2, "epochs": 2, "join": 0.7, "local_steps": 2, "score": {"every": 1}}


@pytest.fixture(scope="module")
def on_ray() -> Iterator[None]:
    """One Ray of two cores for the tests of this file, as the engine starts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # actors import the methods of the tests
        first = Actors(Small(Method()), (), workers=2)
        first.connect()
        yield
        first.close()


@dataclass(frozen=True)
class Small:
    """Opens the worker of a small session with this method."""

    method: Method

    def open(self, arrays: Sequence[np.ndarray | None] | None) -> tuple[Clients, list[str]]:
        return Clients(small.session(self.method).worker), []


def engine(method: Method, workers: int = 2, limit: float = 3600.0) -> Ray:
    sizes = small.session(method).worker.samples.size
    return Ray(Actors(Small(method), (), workers=workers), sizes, limit)


# Without Ray


def test_without_ray_one_sentence_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, digits: Federation
) -> None:
    monkeypatch.setattr(actors_module, "find_spec", lambda _: None)
    with pytest.raises(Error, match=r"^the engine 'ray' needs Ray, .*pip install 'pfedsim\[ray\]'$"):
        pfedsim.train(digits, "fedavg", engine="ray", rounds=1)


@pytest.mark.parametrize("command", [["run"], ["compare"], ["resume", "nowhere"]])
def test_without_ray_the_exit_code_is_2_and_nothing_is_written(command: list[str], tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from pfedsim.cli import main; main()"
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u\nf = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'ray' else f(name, *more)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    out = subprocess.run(
        [sys.executable, "-c", code, *command, "--engine", "ray"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert out.returncode == 2
    assert ("pfedsim[ray]" in out.stderr) == (command != ["resume", "nowhere"])
    assert len(out.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("address", "warns"),
    [
        (None, False),
        ("127.0.0.1:6379", False),
        ("localhost:6379", False),
        ("[::1]:6379", False),
        ("10.0.0.7:6379", True),
        ("head.cluster:6379", True),
        ("auto", True),
    ],
)
def test_whoever_leaves_loopback_is_warned(
    address: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors_module, "find_spec", lambda _: True)
    assert bool(require(address)) == warns


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"engine": "rai"}, "engine = "),
        ({"engine": "ray", "address": "ray://here:10001"}, "address = .*HOST:PORT"),
        ({"engine": "ray", "address": "10.0.0.5:65536"}, "address = '10.0.0.5:65536': must be HOST:PORT"),
        ({"engine": "pool", "address": "auto"}, "address = 'auto' has no effect with the engine 'pool'"),
        ({"engine": "serial", "workers": 2}, "workers = 2 has no effect with the engine 'serial'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    words: dict[str, Any], why: str, digits: Federation
) -> None:
    with pytest.raises(Error, match=why):
        pfedsim.train(digits, "fedavg", rounds=1, **words)


def test_an_address_at_which_nobody_listens_is_refused_before_anything_is_written(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors_module, "find_spec", lambda _: True)
    with pytest.raises(Error, match=r"nobody answers at 127\.0\.0\.1:1 "):
        pfedsim.train(digits, "fedavg", tmp_path / "a", engine="ray", address="127.0.0.1:1", rounds=1)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"", "nobody answers at .* \\(timed out\\)"),
        (b"SSH-2.0-x\r\n", "what answers at .* is not Ray"),
        (bytes([0, 0, 6, 4]), None),
    ],
)
def test_what_answers_must_speak_as_ray_does(
    says: bytes, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors_module, "find_spec", lambda _: True)
    monkeypatch.setattr(actors_module, "ANSWERS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def answer() -> None:
            held.append(listener.accept()[0])
            held[0].sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        try:
            if why is None:
                Actors(Small(Method()), (), address)
            else:
                with pytest.raises(Error, match=why):
                    Actors(Small(Method()), (), address)
        finally:
            thread.join()
            held[0].close()


def test_serial_and_pool_can_be_asked_for(digits: Federation, tmp_path: Path) -> None:
    for name in ("serial", "pool"):
        pfedsim.train(digits, "fedavg", tmp_path / name, engine=name, rounds=1, epochs=1)
    assert files(tmp_path / "serial") == files(tmp_path / "pool")
    assert prepare(check({"engine": "pool", "workers": 1}), digits).engine.__class__.__name__ == "Pool"


def test_what_travels_comes_back_writable_and_arrays_go_beside_the_pickle() -> None:
    large, empty, scalar = torch.randn(1000), torch.zeros(0), torch.tensor(3.0)
    text, arrays = packed({"a": large, "b": large, "c": empty, "d": scalar, "e": large[::2], "f": "x"})
    assert [array.nbytes for array in arrays] == [4000]  # strided ones stay inside
    assert len(text) < 3500
    for array in arrays:
        array.flags.writeable = False
    found = unpacked(text, arrays)
    assert found["a"] is found["b"]
    assert found["a"].equal(large)
    assert found["e"].equal(large[::2])
    assert (found["c"].shape, float(found["d"]), found["f"]) == ((0,), 3.0, "x")
    found["a"].add_(1)
    assert not found["a"].equal(large)


class Paper:
    """Actors that only count what is put into the store."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def put(self, value: Any) -> int:
        self.stored.append(value)
        return len(self.stored) - 1


def test_a_message_that_many_share_is_put_once() -> None:
    from pfedsim.core.engine import HeldMemories
    from pfedsim.engines.ray import _Sender

    shared, memories, paper = torch.randn(500), HeldMemories(), Paper()
    memories.restore({1: Memory(torch.randn(400))})
    works = [Work(i, 0, Message("train", shared, {"own": torch.randn(300 + i)}), "train") for i in range(4)]
    sender = _Sender("train", works, memories, paper)  # type: ignore[arg-type]
    for group in ((0, 1), (2, 3)):
        task, text, order, own, *refs = sender.job(group)
        arrays = [own[k] if k >= 0 else paper.stored[refs[-k - 1]] for k in order]
        for k, (work, memory) in zip(group, unpacked(text, arrays), strict=True):
            assert (task, work.client) == ("train", k)
            assert work.message.model.equal(shared)
            assert work.message.extra["own"].equal(works[k].message.extra["own"])
            assert (memory.kept is not None) == (k == 1)
    assert len(paper.stored) == 1


def test_calls_hold_about_equal_numbers_of_samples_and_the_largest_clients_come_first() -> None:
    works = [Work(i, 0, Message("train", torch.zeros(1)), "train") for i in range(200)]
    sizes = {i: 1000 if i == 7 else 10 + i % 3 for i in range(200)}
    groups = list(Ray(Paper(), sizes.__getitem__)._grouped(works, 2, 50))  # type: ignore[arg-type]
    assert sorted(k for group in groups for k in group) == list(range(200))
    assert groups[0] == (7,)
    assert max(map(len, groups)) <= 50
    assert len(groups) <= 10


def test_of_a_full_memory_one_sentence_is_told_and_not_how_to_tune_ray() -> None:
    long = "The actor died.\nTask was killed due to the node running low on memory (OOM).\nRefer to the documentation."
    assert "memory is full" in actors_module._why(RuntimeError(long))
    assert actors_module._why(RuntimeError("it died\nof something else\n")) == "of something else"


# With Ray


@with_ray
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize("method", TWELVE)
def test_every_method_writes_the_bytes_of_the_serial_engine(
    digits: Federation, tmp_path: Path, method: str
) -> None:
    for name in ("serial", "ray"):
        pfedsim.train(digits, method, tmp_path / name, engine=name, **WORDS)
    assert files(tmp_path / "serial") == files(tmp_path / "ray")


@with_ray
@pytest.mark.usefixtures("on_ray")
@pytest.mark.parametrize(
    "more", [{"attack": {"kind": "label-flip", "clients": [1]}}, {"dropouts": {"never": 0.3}}]
)
def test_attacks_and_dropouts_are_those_of_the_serial_engine(
    digits: Federation, tmp_path: Path, more: dict[str, Any]
) -> None:
    for name in ("serial", "ray"):
        pfedsim.train(digits, "pfedsim", tmp_path / name, engine=name, **WORDS, **more)
    assert files(tmp_path / "serial") == files(tmp_path / "ray")


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_clients_of_a_dead_actor_run_again_and_after_two_deaths_alone_are_absent(tmp_path: Path) -> None:
    s, ray = small.session(DiesOnce(str(tmp_path))), engine(DiesOnce(str(tmp_path)), workers=1)
    results = {done.client: done for done in ray.run("train", _works(s))}
    assert {i for i, done in results.items() if isinstance(done, Done)} == {0, 1, 3}
    assert results[2].why == "its worker died twice"
    died = [(e["client"], e["then"]) for e in ray.events if e["event"] == "worker died"]
    assert died.count((2, "counts as absent")) == 1
    assert {client for client, then in died if then == "is run again"} >= {1, 2}
    (tmp_path / "stop").touch()
    first = {done.client: done.result for done in ray.run("train", _works(s))}  # it is whole again
    for done in Serial(s.worker).run("train", _works(s)):
        assert done.result.model.nan_to_num(0).equal(first[done.client].model.nan_to_num(0))
    ray.close()


def _killed(folder: Path, rounds: tuple[int, ...] = (0, 1)) -> Path:
    """A file with pFedSim as `Mine`, whose client 3 kills its process once in each of these rounds, if `on` exists."""
    method = folder / "mine.py"
    method.write_text(
        "import os, signal\nfrom dataclasses import dataclass\nfrom pathlib import Path\n"
        "from pfedsim.methods.pfedsim import PFedSim\n\n\n@dataclass(frozen=True)\nclass Mine(PFedSim):\n"
        "    def begin(self, job):\n"
        f"        mark = Path({str(folder)!r}) / f'killed-{{job.round}}'\n"
        f"        now = job.client == 3 and job.round in {rounds} and (mark.parent / 'on').exists()\n"
        "        if now and not mark.exists():\n"
        "            mark.touch()\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().begin(job)\n"
    )
    return method


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_an_actor_that_is_killed_costs_nothing_but_time(digits: Federation, tmp_path: Path) -> None:
    method = _killed(tmp_path)
    pfedsim.train(digits, f"{method}:Mine", tmp_path / "serial", engine="serial", **{**WORDS, "join": 1.0})
    (tmp_path / "on").touch()
    run = pfedsim.train(digits, f"{method}:Mine", tmp_path / "ray", engine="ray", **{**WORDS, "join": 1.0})
    serial, ray = files(tmp_path / "serial"), files(tmp_path / "ray")
    assert [e["event"] for e in run.events()].count("worker died") >= 2
    assert not run.incidents
    of_events = ("events.jsonl", "SHA256SUMS", "state.json")  # which tell what happened on the way
    same = [name for name in serial if not name.endswith(of_events)]
    assert "metrics.jsonl" in same
    assert [name for name in same if serial[name] != ray[name]] == []


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_who_takes_too_long_is_absent_and_the_others_of_its_call_are_not() -> None:
    s, ray = small.session(Sleeps()), engine(Sleeps(), workers=1, limit=3.0)
    found = {done.client: done for done in ray.run("train", _works(s))}
    assert (found[2].event, found[2].why) == (
        "timed out",
        "its work took more than 3 seconds; its worker was killed and replaced",
    )
    assert all(isinstance(found[i], Done) for i in (0, 1, 3))
    ray.close()


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_a_stopped_actor_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors_module, "ANSWERS", 0.5)
    s, ray = small.session(Stops()), engine(Stops(), workers=1, limit=1.0)
    found = {done.client: done for done in ray.run("train", _works(s))}
    assert found[2].event == "timed out"
    assert all(isinstance(found[i], Done) for i in (0, 1, 3))
    ray.close()


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_after_the_deadline_who_is_missing_is_absent_and_the_engine_goes_on() -> None:
    s, ray = small.session(Sleeps()), engine(Sleeps())
    assert len(list(ray.run("train", _works(s, clients=(0, 1, 3))))) == 3
    (missing,) = ray.run("train", _works(s, clients=(2,)), deadline=0.01)
    assert isinstance(missing, Absent)
    assert (missing.client, missing.event) == (2, "timed out")
    assert [done.client for done in ray.run("train", _works(s, clients=(3,)))] == [3]
    ray.close()


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_answers_to_a_wave_that_was_given_up_never_reach_the_next() -> None:
    s, ray = small.session(Numbered()), engine(Numbered())
    for wave in range(2):
        first = ray.run("train", _works(s, round=wave))
        assert next(iter(first)).result.info["round"] == wave
        first.close()
        found = list(ray.run("train", _works(s, round=wave + 100)))
        assert {done.result.info["round"] for done in found} == {wave + 100}
        assert sorted(done.client for done in found) == [0, 1, 2, 3]
    ray.close()


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_a_result_that_cannot_be_sent_costs_one_client() -> None:
    assert issubclass(Odd, object)
    s, ray = small.session(Unpicklable()), engine(Unpicklable())
    found = {done.client: done for done in ray.run("train", _works(s))}
    assert "cannot be sent" in found.pop(1).why
    assert all(isinstance(done, Done) for done in found.values())
    ray.close()


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_when_nothing_is_left_to_run_on_the_message_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = engine(Method())
    list(others.run("train", _works(small.session())))  # they hold both cores
    monkeypatch.setattr(actors_module, "FIRST", 0.5)
    monkeypatch.setattr(actors_module, "PATIENCE", 0.5)
    ray = engine(Method())
    with pytest.raises(Error, match=r"no node of the Ray cluster takes work .*`pfedsim resume RUN`"):
        list(ray.run("train", _works(small.session())))
    ray.close()
    others.close()


@with_ray
def test_a_driver_that_ray_ends_says_how_to_go_on(tmp_path: Path) -> None:
    """Ray ends a driver at once when the node daemon beside it dies; no Python code runs any more."""
    words = ["--clients", "4", "--rounds", "100000", "--epochs", "1", "--workers", "1", "--engine", "ray"]
    driver = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pfedsim",
            "run",
            "--method",
            "fedavg",
            "--out",
            str(tmp_path / "a"),
            *words,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        while not list((tmp_path / "a").glob("checkpoint/*.json")):
            assert driver.poll() is None, driver.communicate()
            time.sleep(0.1)
        (raylet,) = [pid for pid in _children(driver.pid) if _name(pid) == "raylet"]
        os.kill(raylet, signal.SIGKILL)
        _, said = driver.communicate(timeout=120)
    finally:
        driver.kill()
    assert driver.returncode == 1
    assert "the checkpoint stays: `pfedsim resume RUN`" in said
    assert list((tmp_path / "a").glob("checkpoint/*.json"))


def _children(parent: int) -> list[int]:
    """The processes that this one has started."""
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _stat(p)[1:2] == [str(parent)]]


def _stat(place: Path) -> list[str]:
    try:
        return (place / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _opening(digits: Federation, **changes: Any) -> tuple[cluster.Opening, Any]:
    shipped, arrays = cluster.shipped(digits)
    config = prepare(check({"engine": "serial", "method": "fedavg", "clients": 6}), digits).config
    made = cluster.manifest.made_with(config)
    return replace(cluster.Opening(config, shipped, made, False), **changes), arrays


def test_a_node_with_other_software_is_named_and_refused_unless_drift_is_allowed(
    digits: Federation,
) -> None:
    opening, arrays = _opening(digits)
    other = {**opening.made_with, "versions": {**opening.made_with["versions"], "torch": "1.0"}}
    assert opening.open(arrays)[1] == []
    with pytest.raises(Error, match=r"software .*\(versions.torch: 1.0 -> .*--allow-drift"):
        replace(opening, made_with=other).open(arrays)
    worker, notes = replace(opening, made_with=other, allow_drift=True).open(arrays)
    assert isinstance(worker, Clients)
    assert [note.split(":")[0] for note in notes] == ["versions.torch"]


def test_a_node_maps_the_samples_that_it_has_and_asks_for_them_otherwise(
    digits: Federation, tmp_path: Path
) -> None:
    opening, arrays = _opening(digits)
    assert opening.open(None) == (None, [])  # these samples were never in a file
    np.save(tmp_path / "x.npy", digits.data.x)
    np.save(tmp_path / "y.npy", digits.data.y)
    mapped = replace(opening, federation=replace(opening.federation, mapped=str(tmp_path)))
    worker, notes = mapped.open(None)
    assert isinstance(worker, Clients)
    assert notes == []
    np.save(tmp_path / "y.npy", digits.data.y[::-1].copy())
    with pytest.raises(Error, match=r"its data.*data: [0-9a-f]{12} -> "):
        mapped.open(None)
    worker, notes = replace(mapped, allow_drift=True).open(None)
    assert worker is None
    assert notes[0].startswith("data: ")
    assert isinstance(replace(mapped, allow_drift=True).open(arrays)[0], Clients)
    (tmp_path / "x.npy").write_bytes(b"nothing")
    assert mapped.open(None)[0] is None


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_samples_in_a_file_are_mapped_by_the_actors_and_others_put_once(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[int] = []
    store = Actors.put
    monkeypatch.setattr(
        Actors, "put", lambda self, value: put.append(getattr(value, "nbytes", 0)) or store(self, value)
    )
    np.save(tmp_path / "x.npy", digits.data.x)
    np.save(tmp_path / "y.npy", digits.data.y)
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="c") for name in "xy")
    mapped = replace(digits, data=replace(digits.data, x=x, y=y))
    pfedsim.train(digits, "fedavg", tmp_path / "serial", engine="serial", **WORDS)
    for federation, times in ((mapped, 0), (digits, 1)):
        put.clear()
        run = pfedsim.train(federation, "fedavg", tmp_path / f"ray{times}", engine="ray", **WORDS)
        assert put.count(digits.data.x.nbytes) == times
        assert files(run.path) == files(tmp_path / "serial")


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_other_software_on_a_node_is_an_event_and_no_incident(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_with = cluster.manifest.made_with
    monkeypatch.setattr(cluster.manifest, "made_with", lambda config: {**made_with(config), "cpu": "other"})
    with pytest.raises(Error, match=r"^node .* \(127.*: its data.*cpu: other -> "):
        pfedsim.train(digits, "fedavg", tmp_path / "refused", engine="ray", **WORDS)
    run = pfedsim.train(digits, "fedavg", tmp_path / "a", engine="ray", allow_drift=True, **WORDS)
    assert [e["what"].count("cpu: other") for e in run.events() if e["event"] == "drift"] == [1]
    assert ["cpu: other" in what for what in run.summary["drift"]] == [True]
    assert not any("drift" in line for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines())
    assert not run.incidents


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_a_comparison_on_the_cluster_has_the_bytes_of_one_here(digits: Federation, tmp_path: Path) -> None:
    for name in ("pool", "ray"):
        told: list[str] = []
        pfedsim.compare(
            digits,
            ["fedavg", "pfedsim"],
            [1, 2],
            tmp_path / name,
            watch=lambda done, told=told: told.append(done.method),
            engine=name,
            **{**WORDS, "rounds": 1},
        )
        assert len(told) == 6
    assert files(tmp_path / "pool") == files(tmp_path / "ray")


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_a_cell_whose_actor_is_killed_continues_on_another(digits: Federation, tmp_path: Path) -> None:
    words = {**WORDS, "join": 1.0, "rounds": 4}
    methods = [f"{_killed(tmp_path, (2,))}:Mine"]
    for name in ("pool", "ray"):
        (tmp_path / "on").touch() if name == "ray" else None
        found = pfedsim.compare(digits, methods, [1], tmp_path / name, engine=name, **words)
    assert (tmp_path / "killed-2").exists()
    assert any(run.manifest["resumed"] for by in found.runs.values() for run in by.values())
    assert files(tmp_path / "pool") == files(tmp_path / "ray")


@with_ray
@pytest.mark.usefixtures("on_ray")
def test_a_sweep_on_a_cluster_is_that_of_this_machine(digits: Federation, tmp_path: Path) -> None:
    words = {**WORDS, "rounds": 4, "join": 1.0}
    over = {"lr": [0.003, 0.01, 0.1, 0.3]}
    found = {
        name: pfedsim.sweep(digits, "fedavg", over, out=tmp_path / name, engine=name, **words)
        for name in ("pool", "ray")
    }
    assert found["ray"].table() == found["pool"].table()
    assert {t.outcome for t in found["ray"].trials} == {"finished", "pruned"}


@with_ray
@pytest.mark.skipif(
    subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode != 0,
    reason="needs network namespaces: unshare -rn true",
)
def test_a_node_that_is_killed_in_mid_round_costs_nothing_but_time(tmp_path: Path) -> None:
    """Two nodes on this machine, in a network of their own."""
    script = f"ip link set lo up && exec {sys.executable} {HERE / 'two_nodes.py'} {tmp_path}"
    began = time.monotonic()
    out = subprocess.run(
        ["unshare", "-rn", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert out.returncode == 0, f"after {time.monotonic() - began:.0f} s: {out.stdout}{out.stderr}"
    assert "same bytes" in out.stdout
