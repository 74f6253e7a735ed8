"""A worker that is shipped: opened from its printed value elsewhere, it trains the same bits."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small
import torch

from pfedsim.core.client import run_client
from pfedsim.core.engine import Absent
from pfedsim.core.job import Work
from pfedsim.core.method import Memory, Reply
from pfedsim.core.server import send
from pfedsim.core.tasks import perform
from pfedsim.errors import Error
from pfedsim.runs.config import check
from pfedsim.runs.setup import Session, plan, prepare
from pfedsim.runs.worker import WorkerSpec, spec_of

WORDS = {"data": "digits", "rounds": 3, "epochs": 2, "lr": 0.05, "join": 1.0, "workers": 1, "clients": 10}

ELSEWHERE = """
import hashlib, pickle, sys
import torch
from pfedsim.core.client import run_client
from pfedsim.runs.worker import WorkerSpec

torch.set_num_threads(1)
worker = WorkerSpec.parse(open(sys.argv[1]).read()).open()
work, memory = pickle.load(open(sys.argv[2], "rb"))
reply, memory = run_client(worker, work, memory)
h = hashlib.sha256()
for tensor in (reply.model, memory.kept, *memory.extra.values()):
    h.update(tensor.numpy().tobytes())
print(len(worker.samples), h.hexdigest())
"""


def digest(reply: Reply, memory: Memory) -> str:
    h = hashlib.sha256()
    for tensor in (reply.model, memory.kept, *memory.extra.values()):
        assert tensor is not None
        h.update(tensor.numpy().tobytes())
    return h.hexdigest()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("method", ["pfedsim", "feddyn"])
def test_a_worker_opened_in_a_fresh_process_trains_client_7_to_the_same_bits(
    tmp_path: Path, method: str, backend: str
) -> None:
    s = prepare(check({**WORDS, "method": method, "backend": backend, "shuffle": True}))
    *_, last = small.rounds(s)  # so that client 7 has something to remember
    message = send(s.side, last.server, [7], "train")[7]
    work, memory = Work(7, last.server.round, message, "train"), last.state.memories[7]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    here = digest(*run_client(s.worker, work, memory))
    torch.set_num_threads(threads)
    (tmp_path / "worker.json").write_text(spec_of(s, own=[7]).text())
    (tmp_path / "work.pickle").write_bytes(pickle.dumps((work, memory)))
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    found = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "worker.json"), str(tmp_path / "work.pickle")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert found.stderr == ""
    own = s.federation.partition.clients[7]
    assert found.stdout.split() == [str(len(own.train) + len(own.test)), here]


@pytest.fixture(scope="module")
def session() -> Session:
    return prepare(check({**WORDS, "method": "pfedsim", "backend": "torch"}))


def test_files_are_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    monkeypatch.chdir(home)
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.random((60, 4), dtype=np.float32), y=np.arange(60) % 3)
    Path("net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.classifier = nn.Linear(shape[0], classes)\n"
        "    def forward(self, x):\n"
        "        return self.classifier(x)\n"
    )
    Path("mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from pfedsim.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    pass\n"
    )
    words = {
        "rounds": 1,
        "clients": 3,
        "join": 1.0,
        "workers": 1,
        "method": "mine.py:Mine",
        "model": "net.py:Net",
    }
    first = prepare(check({**words, "data": "mine.npz"}))
    Path("dealt.json").write_text(first.federation.partition.text())
    del words["clients"]
    spec = spec_of(prepare(check({**words, "data": "mine.npz", "partition": "dealt.json"})), own=[1])
    monkeypatch.chdir(away)
    worker = WorkerSpec.parse(spec.text()).open()
    assert worker.fed.initial.equal(first.fed.initial)
    with pytest.raises(Error, match="at least one client"):
        spec_of(first, own=[])


def test_the_value_prints_pickles_and_comes_back_the_same(session: Session) -> None:
    spec = spec_of(session, own=[2, 1])
    assert spec.own == (1, 2)
    assert WorkerSpec.parse(spec.text()) == spec == pickle.loads(pickle.dumps(spec))
    assert WorkerSpec.parse(spec.text()).text() == spec.text()
    for text in ("", "[]", '{"config": {}}', spec.text().replace('"shape"', '"form"')):
        with pytest.raises(Error, match=r"not a worker's description|a task has the keys"):
            WorkerSpec.parse(text)


def test_a_worker_loads_its_own_clients_alone(session: Session) -> None:
    worker = spec_of(session, own=[1, 4]).open()
    sizes = [len(s.train) + len(s.test) for s in session.federation.partition.clients]
    assert len(worker.samples) == sizes[1] + sizes[4]
    for part in ("train", "validation", "test"):
        a, b = worker.samples.part(4, part, 0.2), session.worker.samples.part(4, part, 0.2)
        assert a[0].equal(b[0])
        assert a[1].equal(b[1])
    message = send(session.side, session.begin(), [3], "train")[3]
    done, memory = perform(worker, "train", Work(3, 0, message, "train"), Memory())
    assert isinstance(done, Absent)
    assert "client 3's samples are not loaded here" in done.why
    assert memory is None


def test_a_run_is_prepared_without_data(session: Session) -> None:
    planned = plan(
        check({**WORDS, "method": "pfedsim", "backend": "torch"}), session.federation.data.task, 10
    )
    assert planned.fed.initial.equal(session.fed.initial)
    assert planned.wire.kept.equal(session.side.wire.kept)
    assert planned.schedule() == session.schedule
    dealt = planned.config.digests.model_copy(update={"partition": session.config.digests.partition})
    assert planned.config.model_copy(update={"digests": dealt}).digest() == session.config.digest()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_the_public_facts_pickle(backend: str) -> None:
    fed = prepare(check({**WORDS, "method": "fedgen", "backend": backend})).fed
    there = pickle.loads(pickle.dumps(fed))
    assert (there.clients, there.classes, there.settings) == (fed.clients, fed.classes, fed.settings)
    assert there.initial.equal(fed.initial)
    z = torch.ones(3, 84)
    assert there.net.head(fed.initial, z).equal(fed.net.head(fed.initial, z))


def test_what_cannot_be_shipped_is_refused(session: Session) -> None:
    with pytest.raises(Error, match="table was given as arrays, which another machine cannot read"):
        spec_of(small.session())
    with pytest.raises(Error, match="there is no client 10: there are clients 0 to 9"):
        spec_of(session, own=[10])
    spec = spec_of(session)
    other = replace(spec, task=replace(spec.task, digest="0" * 64))
    with pytest.raises(Error, match=r"digests.data = .*so the run would not be the same one"):
        other.open()
