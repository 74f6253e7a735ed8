from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pfedsim.core.rows import Pairs, Rows, weighted_mean

CLIENTS = 12
weights = st.dictionaries(st.integers(0, CLIENTS - 1), st.floats(0.01, 100), min_size=1)


def _rows(seed: int, held: set[int]) -> Rows:
    draw = np.random.default_rng(seed)
    vectors = torch.from_numpy(draw.normal(size=(CLIENTS + 1, 17)).astype(np.float32))
    return Rows(vectors[CLIENTS], {i: vectors[i] for i in held})


@given(st.integers(0, 10**6), st.sets(st.integers(0, CLIENTS - 1)), weights)
def test_mix_is_the_weighted_mean_with_absent_clients_at_the_default(
    seed: int, held: set[int], weights: dict[int, float]
) -> None:
    rows = _rows(seed, held)
    table = np.stack([rows[i].numpy().astype(np.float64) for i in weights])
    expected = np.average(table, axis=0, weights=list(weights.values()))
    np.testing.assert_allclose(rows.mix(weights).numpy(), expected, rtol=1e-6, atol=1e-7)


@given(
    st.integers(0, 10**6), st.sets(st.integers(0, CLIENTS - 1)), weights, st.randoms(use_true_random=False)
)
def test_bits_of_a_mix_depend_on_nothing_that_does_not_matter(
    seed: int, held: set[int], weights: dict[int, float], random
) -> None:  # type: ignore[no-untyped-def]
    rows = _rows(seed, held)
    mixed = rows.mix(weights)
    items = list(weights.items())
    random.shuffle(items)
    assert rows.mix(dict(items)).equal(mixed)  # the order in which weights are named
    zeros = {i: 0.0 for i in range(CLIENTS) if i not in weights}
    assert rows.mix({**zeros, **weights}).equal(mixed)  # clients that weigh nothing
    others = {i: torch.full((17,), 1e30) for i in zeros}
    assert rows.put(others).mix(weights).equal(mixed)  # rows that are not asked for


@given(st.integers(0, 10**6), st.lists(st.integers(1, 1000), min_size=2, max_size=6))
def test_absent_clients_count_together_as_one_default(seed: int, counts: list[int]) -> None:
    rows = _rows(seed, {0})
    apart = {i + 1: float(c) for i, c in enumerate(counts)}
    assert rows.mix({0: 3.0, **apart}).equal(rows.mix({0: 3.0, 1: float(sum(counts))}))


def test_rows_are_summed_in_client_order_where_the_order_shows() -> None:
    rows = Rows(torch.zeros(1), {0: torch.tensor([1e20]), 1: torch.tensor([-1e20]), 2: torch.tensor([3.0])})
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1)):
        assert (
            float(rows.mix(dict.fromkeys(order, 1.0))) == 1.0
        )  # (1e20 - 1e20 + 3) / 3; any other order loses the 3


def test_one_row_alone_comes_back_with_its_bits() -> None:
    rows = _rows(1, {3})
    assert rows.mix({3: 0.3}).equal(rows[3])
    assert rows.mix({4: 0.7, 5: 0.1}).equal(rows.default)


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        weighted_mean([])


def test_changing_rows_gives_a_new_table_and_leaves_the_old() -> None:
    old = _rows(2, {1, 5})
    before = {i: old[i].clone() for i in range(CLIENTS)}
    new = old.put({5: torch.zeros(17), 7: torch.ones(17)})
    assert (old.ids, new.ids) == ([1, 5], [1, 5, 7])
    assert all(old[i].equal(before[i]) for i in range(CLIENTS))
    assert new[5].equal(torch.zeros(17))
    assert new[1] is old[1]  # unchanged rows are not copied
    assert 7 in new
    assert 7 not in old


pairs = st.dictionaries(st.tuples(st.integers(0, 10**5), st.integers(0, 10**5)), st.floats(allow_nan=False))


@given(pairs, pairs)
@example({(1, 2): 0.5}, {(1, 3): 0.7})
def test_pairs_come_back_from_their_tensors_and_putting_leaves_the_old(
    first: dict[tuple[int, int], float], more: dict[tuple[int, int], float]
) -> None:
    old = Pairs().put(first)
    new = old.put(more)
    assert _content(old) == first
    assert _content(new) == {**first, **more}
    assert _content(Pairs.of(new.tensors())) == {**first, **more}
    assert new.ids == sorted({i for pair in {**first, **more} for i in pair})
    assert list(new.row(3)) == sorted(new.row(3))


def _content(pairs: Pairs) -> dict[tuple[int, int], float]:
    return {(i, j): value for i in pairs.ids for j, value in pairs.row(i).items()}


def test_a_table_does_not_change_with_the_dictionary_it_was_made_from() -> None:
    given = {0: torch.ones(1)}
    rows = Rows(torch.zeros(1), given)
    given[1] = torch.ones(1)
    assert rows.ids == [0]
