"""A hook that writes into what it was given stops the run and is named, however it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from torch import Tensor

from pfedsim.core import purity
from pfedsim.core.job import Job
from pfedsim.core.method import Fed, Memory, Message, Method, Reply, ServerState
from pfedsim.core.purity import same_process, unchanged
from pfedsim.core.rows import Pairs, Rows
from pfedsim.engines.pool import Pool
from pfedsim.errors import Impure


def _in_place(tensor: Tensor) -> None:
    tensor += 1


def _data(tensor: Tensor) -> None:
    tensor.data.mul_(2).add_(1)


def _numpy(tensor: Tensor) -> None:
    array = tensor.numpy()
    array += 1


WAYS = (_in_place, _data, _numpy)


@dataclass(frozen=True)
class Writes(Method):
    """Writes into something in the hook that is named, from round 1 on."""

    hook: str = ""
    how: Callable[[Tensor], None] = field(default=_in_place)

    def _write(self, hook: str, round: int, tensor: Tensor) -> None:
        if hook == self.hook and round >= 1:
            self.how(tensor)

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        extra = {"h": torch.zeros(5000), "rows": Rows(torch.zeros(9))}
        return ServerState(0, theta, Rows(theta), extra)

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        self._write("plan", server.round, server.extra["h"])
        return super().plan(fed, server, sampled)

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        self._write("send", server.round, server.extra["rows"].default)
        return {i: Message(task, server.model, {"n": torch.zeros(3)}) for i in clients}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        assert replies[0].model is not None
        self._write("aggregate", server.round, replies[0].model)
        return super().aggregate(fed, server, task, replies, rng)

    def begin(self, job: Job) -> Any:
        self._write("begin", job.round, job.message.extra["n"])
        return super().begin(job)

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Any]) -> Tensor:
        self._write("gradient", job.round, job.message.model)
        return super().gradient(job, theta, batches)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        if job.memory.extra:
            self._write("finish", job.round, job.memory.extra["n"])
        return job.reply(ends[-1]), job.remember(ends[-1], n=torch.zeros(3))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ("plan", r"Writes.plan in round 2 changed server.extra\['h'\]"),
        ("send", r"Writes.send in round 2 changed server.extra\['rows'\]\['default'\]"),
        ("aggregate", r"Writes.aggregate in round 2 changed replies\[0\].model"),
        ("begin", r"Writes.begin for client 15 in round 2 changed message.extra\['n'\]"),
        ("gradient", r"Writes.gradient for client 15 in round 2 changed message.model"),
        ("finish", r"Writes.finish for client 15 in round 2 changed memory.extra\['n'\]"),
    ],
)
def test_a_hook_that_writes_is_named(hook: str, says: str, how: Callable[[Tensor], None]) -> None:
    s = small.session(Writes(hook, how), small.table((9,) * 16, test=4), rounds=2)
    s = replace(s, schedule=[list(range(16)), [15]])
    with pytest.raises(Impure, match=says + " in place"):
        list(small.rounds(s))


@dataclass(frozen=True)
class Masks(Method):
    """Freezes entries for everybody, in the hook that is named."""

    where: str = ""

    def _write(self, fed: Fed, hook: str) -> None:
        if hook == self.where:
            fed.layout.trainable.numpy()[:] = False

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        self._write(fed, "init")
        return super().init(fed, theta, rng)

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        self._write(fed, "aggregate")
        return super().aggregate(fed, server, task, replies, rng)

    def begin(self, job: Job) -> Any:
        self._write(job.fed, "begin")
        return super().begin(job)


@pytest.mark.parametrize("hook", ["init", "aggregate", "begin"])
def test_a_hook_that_writes_into_a_mask_of_the_layout_is_named(hook: str) -> None:
    with pytest.raises(Impure, match=rf"Masks.{hook}.* changed layout.trainable in place"):
        list(small.rounds(small.session(Masks(hook))))


SETTINGS: dict[str, Callable[[Path], object]] = {
    "torch's default dtype": lambda place: torch.set_default_dtype(torch.float64),
    "torch's number of threads": lambda place: torch.set_num_threads(7),
    "torch's grad mode": lambda place: torch.set_grad_enabled(False),
    "the working directory": os.chdir,
}


@dataclass(frozen=True)
class Sets(Method):
    """Changes a setting of the process at client 1 in round 2."""

    what: Callable[[], object] = field(default=lambda: None)
    hook: str = "finish"

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Any]) -> Tensor:
        if (self.hook, job.client, job.round) == ("gradient", 1, 1):
            self.what()
        return super().gradient(job, theta, batches)

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        if (self.hook, job.client, job.round) == ("finish", 1, 1):
            self.what()
        return super().finish(job, ends)


@pytest.mark.parametrize(
    ("name", "hook"), [*((name, "finish") for name in SETTINGS), ("torch's default dtype", "gradient")]
)
def test_a_hook_that_changes_a_setting_of_the_process_is_named_and_it_is_put_back(
    name: str, hook: str, tmp_path: Path
) -> None:
    """The other clients would train with it in this process, and without it in another or after `resume`."""

    def state() -> tuple[object, ...]:
        return torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), Path.cwd()

    before = state()
    method = Sets(lambda: SETTINGS[name](tmp_path), hook)
    with pytest.raises(
        Impure, match=f"Sets.{hook} for client 1 in round 2 changed {name} of the whole process"
    ):
        list(small.rounds(small.session(method)))
    assert state() == before


def test_clients_that_are_not_watched_are_seen_by_what_they_changed() -> None:
    s = replace(small.session(Writes("begin")), schedule=[[0, 1], [1, 2]])
    with pytest.raises(Impure, match=r"the work of a client changed messages\[1\].extra\['n'\] in place"):
        list(small.rounds(s))


def test_a_worker_process_names_it_as_well() -> None:
    s = small.session(Writes("begin"), small.table((9,) * 16, test=4), rounds=2)
    with (
        Pool(s.worker, 2) as pool,
        pytest.raises(Impure, match=r"Writes.begin for client (3|7|11|15) in round 2"),
    ):
        list(small.rounds(s, engine=pool))


def test_hooks_that_only_read_are_left_alone() -> None:
    assert len(list(small.rounds(small.session(Writes("nothing"))))) == 2


@pytest.mark.parametrize(
    ("given", "write"),
    [
        (torch.zeros(100_000), lambda t: t.fill_(1)),
        (torch.zeros(100_000), lambda t: t[5:500].fill_(1)),  # a few entries: more than the sample's stride
        (torch.zeros(3, dtype=torch.bfloat16), lambda t: t.add_(1)),
        (torch.zeros(()), lambda t: t.add_(1)),
        (Pairs({1: {2: 0.5}}), lambda p: p._rows[1].update({2: 0.25})),
        (Rows(torch.zeros(3), {4: torch.zeros(3)}), lambda r: r[4].add_(1)),
        ({"a": torch.zeros(1)}, lambda d: d.update(b=torch.zeros(1))),
        ({"a": torch.zeros(1)}, lambda d: d.clear()),
    ],
)
def test_what_is_seen(given: Any, write: Callable[[Any], Any]) -> None:
    with pytest.raises(Impure, match="f changed x"), unchanged("f", 0, x=given):
        write(given)


def test_a_single_entry_is_seen_after_some_rounds() -> None:
    seen, tensor = 0, torch.zeros(10 * purity.ENTRIES)
    for round in range(9 * purity.EVERY):
        try:
            with unchanged("f", round, x=tensor):
                tensor[4] += 1
        except Impure:
            seen += 1
    assert seen == 1  # ten rounds were watched
    rows = Rows(torch.zeros(1), {i: torch.zeros(1) for i in range(5 * purity.ROWS)})
    touched = {i for turn in range(5) for i, _ in rows.some(purity.ROWS, turn)}
    assert touched == set(range(5 * purity.ROWS))


def test_which_rounds_and_jobs_are_watched() -> None:
    watched = [r for r in range(40) if any(purity.watches(r, client) for client in range(purity.JOBS))]
    assert watched == [0, 1, 8, 16, 24, 32]
    for client in range(9):
        assert any(purity.watches(r, client) for r in (8, 16, 24, 32))


def test_a_working_directory_that_somebody_deletes_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    with same_process("the hook"):
        place.rmdir()
    with same_process("the hook"):
        pass
