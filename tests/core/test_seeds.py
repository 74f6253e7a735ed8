from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfedsim.core import seeds
from pfedsim.data.federation import Federation
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute


def test_the_schedule_is_the_papers() -> None:
    first, second = seeds.schedule(42, 100, 0.1, 2)
    assert first == [81, 14, 3, 94, 35, 31, 28, 17, 13, 86]
    assert second == [94, 69, 11, 75, 54, 4, 3, 27, 29, 64]


def test_a_longer_schedule_begins_with_the_shorter() -> None:
    assert seeds.schedule(7, 30, 0.2, 9)[:4] == seeds.schedule(7, 30, 0.2, 4)


@pytest.mark.parametrize(
    ("clients", "join", "each"), [(100, 0.1, 10), (100, 0.29, 29), (3, 0.1, 1), (7, 1.0, 7), (20, 0.5, 10)]
)
def test_clients_a_round(clients: int, join: float, each: int) -> None:
    assert seeds.per_round(clients, join) == each
    assert all(len(set(sampled)) == each for sampled in seeds.schedule(1, clients, join, 3))


addresses = st.tuples(
    st.integers(0, 2**40),
    st.sampled_from(["train", "train/order", "train/torch", "score", "init"]),
    st.integers(0, 10**6),
    st.integers(-1, 10**6),
)


@given(addresses, addresses)
def test_another_address_is_another_stream_and_the_same_one_the_same(a, b) -> None:  # type: ignore[no-untyped-def]
    draws = [torch.rand(4, generator=seeds.generator(*place)) for place in (a, b, a)]
    assert draws[0].equal(draws[2])
    assert draws[0].equal(draws[1]) == (a == b)


def test_round_and_client_are_told_apart() -> None:
    """Round 1 of client 11 is not round 11 of client 1."""
    pairs = [(1, 11), (11, 1), (111, -1), (0, 111), (1, -1)]
    assert len({seeds.address(1, "train", round, client) for round, client in pairs}) == len(pairs)


def test_seeding_torch_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with seeds.torch_seeded(1, "model"):
        inside = torch.rand(3)
    assert torch.get_rng_state().equal(before)
    torch.rand(5)
    with seeds.torch_seeded(1, "model"):
        assert torch.rand(3).equal(inside)


def test_a_run_touches_no_global_generator_and_does_not_depend_on_them(digits: Federation) -> None:
    config = check({"rounds": 1, "epochs": 1, "join": 0.3, "shuffle": True, "method": "pfedsim"})
    digests = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        run = execute(config, federation=digits)
        run.client(0)
        assert torch.get_rng_state().equal(before[0])
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
        digests.append(run.summary["models_digest"])
    assert digests[0] == digests[1]
