"""The paired bootstrap against cases whose answer is known."""

import math
import statistics

import numpy as np
import pytest

from pfedsim.report.statistics import paired_difference


def random_hits(seed, seeds=2, sizes=(30, 8, 55)):
    rng = np.random.default_rng(seed)
    return [[rng.random(n) < 0.6 for n in sizes] for _ in range(seeds)]


def hits(n, right):
    return np.arange(n) < right


@pytest.mark.parametrize("seeds", [1, 3, 6])
def test_mean_is_the_plain_difference_and_lies_in_the_interval(seeds):
    ours, theirs = random_hits(1, seeds), random_hits(2, seeds)
    plain = [sum(map(sum, a)) / 93 - sum(map(sum, b)) / 93 for a, b in zip(ours, theirs, strict=True)]
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(statistics.mean(plain))
    assert found.low < found.mean < found.high
    assert found.over == ("seeds" if seeds >= 5 else "clients and test samples")


@pytest.mark.parametrize("seeds", [1, 4, 5])
def test_a_method_against_itself_is_zero_without_doubt(seeds):
    same = random_hits(3, seeds)
    found = paired_difference(same, same)
    assert (found.mean, found.low, found.high) == (0, 0, 0)


def test_turned_round_it_is_the_negative():
    there, back = (paired_difference(random_hits(a), random_hits(b)) for a, b in ((1, 2), (2, 1)))
    assert there.mean == pytest.approx(-back.mean)
    assert there.high - there.low == pytest.approx(back.high - back.low, rel=0.1)


def test_samples_of_one_client_give_the_normal_interval():
    """400 samples, 60 won and 20 lost: each draw is a sample of mean 0.1 and variance 0.2 - 0.1^2."""
    n, won, lost = 400, 60, 20
    ours, theirs = hits(n, won), np.roll(hits(n, lost), won)
    found = paired_difference([[ours]], [[theirs]])
    half = 1.96 * math.sqrt(((won + lost) / n - ((won - lost) / n) ** 2) / n)
    assert found.mean == pytest.approx(0.1)
    assert found.high - found.mean == pytest.approx(half, rel=0.2)
    assert found.mean - found.low == pytest.approx(half, rel=0.2)


def test_pairing_counts_only_samples_on_which_the_two_differ():
    """Both miss the same half: what they share adds no doubt. Unpaired, the interval would be several times
    as wide."""
    n = 1000
    found = paired_difference([[hits(n, 510)]], [[hits(n, 500)]])
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt((0.01 - 0.01**2) / n), rel=0.2)


def test_clients_are_resampled_too():
    """40 clients, in 16 of which every sample is won: samples alone leave no doubt, clients do."""
    ours = [hits(5, 5 if i < 16 else 0) for i in range(40)]
    found = paired_difference([ours], [[hits(5, 0)] * 40])
    assert found.mean == pytest.approx(0.4)
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(0.4 * 0.6 / 40), rel=0.2)


def test_a_client_counts_by_its_samples():
    """Ten clients of 2 samples that are all won and ten of 38 without change: a draw with w of the former
    is 2 w of all samples drawn, w binomial with 95% between 6 and 14."""

    def draw(w):
        return 2 * w / (2 * w + 38 * (20 - w))

    found = paired_difference(
        [[hits(2, 2)] * 10 + [hits(38, 0)] * 10], [[hits(2, 0)] * 10 + [hits(38, 0)] * 10]
    )
    assert found.mean == pytest.approx(0.05)
    assert draw(5) <= found.low <= draw(7)
    assert draw(13) <= found.high <= draw(15)


def test_few_seeds_are_averaged_sample_by_sample():
    """Two seeds, one client: the doubt is that of the samples' mean gains 0, 1/2 and 1, not of 2 n
    samples."""
    n = 300
    ours = [[hits(n, 60)], [hits(n, 30)]]
    found = paired_difference(ours, [[hits(n, 0)]] * 2)
    gains = [1.0] * 30 + [0.5] * 30 + [0.0] * 240
    assert found.mean == pytest.approx(statistics.mean(gains))
    assert found.high - found.low == pytest.approx(
        2 * 1.96 * statistics.pstdev(gains) / math.sqrt(n), rel=0.2
    )


def test_from_five_seeds_on_a_constant_difference_is_certain():
    """Whatever the samples: two more of ten in every seed."""
    ours, theirs = [[hits(10, 4 + s)] for s in range(5)], [[hits(10, 2 + s)] for s in range(5)]
    found = paired_difference(ours, theirs)
    assert (found.mean, found.low, found.high) == (pytest.approx(0.2, abs=1e-12),) * 3
    four = paired_difference(ours[:4], theirs[:4])
    assert four.high - four.low > 0.05


def test_from_five_seeds_on_the_interval_is_the_seeds_spread():
    won = [3, 5, 8, 2, 9, 6, 4, 7, 5, 6, 1, 10]
    found = paired_difference([[hits(20, w)] for w in won], [[hits(20, 0)]] * len(won))
    assert found.mean == pytest.approx(statistics.mean(won) / 20)
    assert found.high - found.low == pytest.approx(
        2 * 1.96 * statistics.pstdev(won) / 20 / math.sqrt(len(won)), rel=0.2
    )


def test_clients_without_test_samples_change_nothing():
    with_them = paired_difference([[hits(50, 30), hits(0, 0)]], [[hits(50, 20), hits(0, 0)]])
    assert (with_them.mean, with_them.over) == (pytest.approx(0.2), "clients and test samples")
    assert with_them.low < 0.2 < with_them.high


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_a_client_that_one_method_could_not_score_counts_for_neither(seeds):
    ours, theirs = random_hits(1, seeds), random_hits(2, seeds)
    without = [[by[0], np.zeros(0, bool), by[2]] for by in ours]
    nor_theirs = [[by[0], np.zeros(0, bool), by[2]] for by in theirs]
    assert paired_difference(without, theirs) == paired_difference(without, nor_theirs)
    assert np.isfinite(paired_difference(without, theirs).mean)


def test_nothing_in_common_is_no_number():
    assert np.isnan(paired_difference([[np.zeros(0, bool)]], [[np.ones(3, bool)]]).mean)
