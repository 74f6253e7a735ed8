"""Large arrays reach workers and come back by shared memory, with the bytes of the serial engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import small
import torch

import pfedsim
from pfedsim.core.job import Work
from pfedsim.core.method import Message, Method
from pfedsim.core.scoring import score
from pfedsim.data.federation import Federation
from pfedsim.engines import pool as pools
from pfedsim.engines.pool import Pool
from pfedsim.engines.serial import Serial
from pfedsim.engines.shelf import Borrower, Lender, Shelf, Stock, address


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest array goes by shared memory."""
    monkeypatch.setattr(pools, "LARGE", 1)


def files(folder: Path) -> dict[str, bytes]:
    kept = {"timings.jsonl", "manifest.json"}
    found = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if path.name not in kept}


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("method", ["pfedsim", "fedgen", "fedfomo", "feddyn"])
def test_what_goes_by_shared_memory_gives_the_same_bytes(
    digits: Federation, tmp_path: Path, method: str
) -> None:
    words = {"rounds": 3, "epochs": 1, "join": 0.7, "local_steps": 2, "score": {"every": 1}}
    for workers in (1, 3):
        pfedsim.train(digits, method, tmp_path / str(workers), workers=workers, **words)
    assert files(tmp_path / "1") == files(tmp_path / "3")


@pytest.mark.usefixtures("everything")
def test_a_model_that_everybody_is_served_comes_back_as_the_servers_own() -> None:
    s = small.session(Method(), model="small:Plain")  # no statistics, so nobody keeps an entry
    with Pool(s.worker, 2) as pool:
        side = small.replace(s.side, engine=pool)
        server = side.begin()
        found = score(side, server, models=True).clients
    assert {one.model.data_ptr() for one in found} == {server.model.data_ptr()}


@dataclass(frozen=True)
class Writes(Method):
    """Changes what it was sent, against the rules, and replies with that."""

    def finish(self, job, ends):
        job.message.model.add_(1.0)
        return job.reply(job.message.model), job.remember(ends[-1])


@pytest.mark.usefixtures("everything")
def test_a_hook_that_writes_into_its_message_changes_nobody_elses() -> None:
    s = small.session(Writes())
    sent = s.fed.initial.clone()
    works = [Work(i, 100, Message("train", sent), "train") for i in range(2)]
    with Pool(s.worker, 2) as pool:
        replies = [done.result.model for done in pool.run("train", works)]
        assert sent.equal(s.fed.initial)
        kept = s.worker.wire.kept
        for reply in replies:
            assert (reply - sent)[~kept].allclose(torch.ones(()))
        again = [done.result.model for done in pool.run("train", works[:1])]
    assert again[0][~kept].equal(replies[0][~kept])


@pytest.mark.usefixtures("everything")
def test_where_shared_memory_has_no_room_arrays_go_through_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    s = small.session()
    works = [Work(i, 0, Message("train", s.fed.initial), "train") for i in range(4)]
    monkeypatch.setattr(os, "pwrite", full)
    with Pool(s.worker, 2) as pool:
        found = {done.client: done.result.model for done in pool.run("train", works)}
    for done in Serial(s.worker).run("train", works):
        assert done.result.model.nan_to_num(0).equal(found[done.client].nan_to_num(0))


def view(*numbers: float) -> memoryview:
    return memoryview(np.array(numbers)).cast("B")


def test_an_array_lies_on_the_shelf_once_until_its_last_job_is_done() -> None:
    lender, shared, own = Lender(), view(1, 2, 3), view(4, 5, 6)
    first, second, third = lender.lend(shared), lender.lend(shared), lender.lend(own)
    assert first == second
    assert first.start != third.start
    lender.take_back([first])
    assert lender.lend(view(7, 8, 9)).start not in (first.start, third.start)
    lender.take_back([second])
    new = lender.lend(view(0, 0, 0))
    assert new.start == first.start
    assert new.number != first.number


def test_a_worker_hands_back_what_it_was_lent_by_its_number() -> None:
    lender = Lender()
    place = lender.lend(view(1, 2, 3))
    borrower = Borrower(lender.shelf, (Shelf(), Shelf()))
    (here,) = borrower.borrow([place])
    assert bytes(here) == bytes(lender.original(place.number))
    assert borrower.hand_back(memoryview(here)) == place.number
    assert borrower.hand_back(memoryview(here)[:8]) != place.number  # a part of it is another array
    assert borrower.borrow([place])[0] is here


def test_a_worker_does_not_write_over_its_last_answer() -> None:
    shelves = Shelf(), Shelf()
    borrower = Borrower(Lender().shelf, shelves)
    borrower.borrow([])
    before = borrower.hand_back(view(1, 2, 3))
    borrower.borrow([])
    borrower.hand_back(view(4, 5, 6))
    assert isinstance(before, tuple)
    found = Stock().empty(24)
    shelves[before[0]].read(before[1], found)
    assert bytes(found) == bytes(view(1, 2, 3))


def test_memory_is_used_again_when_its_array_is_gone() -> None:
    stock = Stock()
    first = stock.empty(80)
    was, tensor = address(first), torch.from_numpy(first)
    del first
    assert address(stock.empty(80)) != was  # the tensor still uses it
    del tensor
    assert was in {address(array) for array in (stock.empty(80), stock.empty(80))}
