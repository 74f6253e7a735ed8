"""The interval of a difference against cases whose answer is known."""

import math
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pfedsim.report.statistics import Scored, interval, paired_difference

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import coverage


def random_hits(seed, seeds=2, sizes=(30, 8, 55)):
    rng = np.random.default_rng(seed)
    return [[rng.random(n) < 0.6 for n in sizes] for _ in range(seeds)]


def hits(n, right):
    return np.arange(n) < right


def half(found):
    return (found.high - found.low) / 2


@pytest.mark.parametrize("seeds", [1, 3, 6])
def test_mean_is_the_plain_difference_and_lies_in_the_interval(seeds):
    ours, theirs = random_hits(1, seeds), random_hits(2, seeds)
    plain = [sum(map(sum, a)) / 93 - sum(map(sum, b)) / 93 for a, b in zip(ours, theirs, strict=True)]
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(statistics.mean(plain))
    assert found.low < found.mean < found.high
    assert found.over == ("test samples and seeds" if seeds > 1 else "test samples")


@pytest.mark.parametrize("seeds", [1, 4, 5])
def test_a_method_against_itself_has_no_doubt_but_that_of_few_samples(seeds):
    """93 samples without a difference: half a won and half a lost one are added."""
    same = random_hits(3, seeds)
    found = paired_difference(same, same)
    assert found.mean == 0
    assert half(found) == pytest.approx(stats.t.ppf(0.975, 90) / 93)


def test_turned_round_it_is_the_negative():
    there, back = (paired_difference(random_hits(a), random_hits(b)) for a, b in ((1, 2), (2, 1)))
    assert there.mean == pytest.approx(-back.mean)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_samples_of_one_client_give_the_paired_t_interval():
    """400 samples, 60 won and 20 lost."""
    n, won, lost = 400, 60, 20
    found = paired_difference([[hits(n, won)]], [[np.roll(hits(n, lost), won)]])
    gains = [1.0] * won + [-1.0] * lost + [0.0] * (n - won - lost)
    assert found.mean == pytest.approx(0.1)
    expected = math.sqrt(statistics.variance(gains) / n + 1 / n**2)
    assert half(found) == pytest.approx(stats.t.ppf(0.975, n - 1) * expected)


def test_pairing_counts_only_samples_on_which_the_two_differ():
    """Both miss the same half: what they share adds no doubt. Unpaired, the interval would be several times
    as wide."""
    n = 1000
    found = paired_difference([[hits(n, 510)]], [[hits(n, 500)]])
    assert half(found) == pytest.approx(1.96 * math.sqrt(0.0099 / n + 1 / n**2), rel=0.01)


def test_clients_are_those_that_there_are():
    """40 clients, in 16 of which every sample is won: nothing about these clients is in doubt."""
    ours = [hits(5, 5 if i < 16 else 0) for i in range(40)]
    found = paired_difference([ours], [[hits(5, 0)] * 40])
    assert found.mean == pytest.approx(0.4)
    assert half(found) == pytest.approx(stats.t.ppf(0.975, 160) / 200)


def test_clients_add_up_by_their_weights():
    """Two clients of 20 and 80 samples: their variances add with the squares of 1/5 and 4/5, or of 1/2."""
    rng = np.random.default_rng(0)
    gains = [rng.integers(-1, 2, size=n).astype(float) for n in (20, 80)]
    split = [Scored(np.arange(len(g)), g[None]) for g in gains]
    means, spread = [g.mean() for g in gains], [g.var(ddof=1) / len(g) for g in gains]
    for weighting, weights in (("samples", (0.2, 0.8)), ("clients", (0.5, 0.5))):
        found = interval([split], weighting)
        assert found.mean == pytest.approx(sum(w * m for w, m in zip(weights, means, strict=True)))
        parts = [w**2 * v for w, v in zip(weights, spread, strict=True)]
        freedom = sum(parts) ** 2 / (parts[0] ** 2 / 19 + parts[1] ** 2 / 79)
        expected = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts) + 1 / 100**2)
        assert half(found) == pytest.approx(expected)


def test_seeds_that_differ_as_a_whole_are_repetitions():
    """Ten thousand samples that are all won or all lost with a seed: the interval is that of the seeds' means."""
    won = [1.0, 1.0, -1.0, 1.0, -1.0, 1.0]
    gains = np.repeat(np.array(won)[:, None], 10_000, axis=1)
    found = interval([[Scored(np.arange(10_000), gains)]])
    low, high = stats.t.interval(0.95, 5, statistics.mean(won), statistics.stdev(won) / math.sqrt(6))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)


def test_seeds_that_agree_prove_no_more_than_their_samples():
    """The same gains with every seed: five seeds know as much as one."""
    gains = np.random.default_rng(1).integers(-1, 2, size=(1, 200)).astype(float)
    one, five = (interval([[Scored(np.arange(200), np.repeat(gains, n, axis=0))]]) for n in (1, 5))
    assert half(five) == pytest.approx(half(one))


def test_splits_that_share_samples_are_not_independent():
    """A sample's gain is its own, whatever the split: ten halves of 200 samples know what 200 samples tell, and not
    ten times as much."""
    rng = np.random.default_rng(2)
    gain = rng.integers(-1, 2, size=200).astype(float)
    splits = []
    for _ in range(10):
        chosen = rng.permutation(200)[:100]
        splits.append([Scored(chosen, gain[chosen][None])])
    expected = 1.96 * math.sqrt(gain.var(ddof=1) / 200)
    assert half(interval(splits)) == pytest.approx(expected, rel=0.15)


def test_seeds_within_a_split_are_averaged():
    """Splits are the repetitions; their seeds only make each of them more exact."""
    rng = np.random.default_rng(3)
    parts = [(np.arange(50) + 50 * s, rng.integers(-1, 2, size=(3, 50)).astype(float)) for s in range(4)]
    found = interval([[Scored(*part)] for part in parts])
    averaged = interval([[Scored(ids, gains.mean(0)[None])] for ids, gains in parts])
    assert (found.mean, found.low, found.high) == (averaged.mean, averaged.low, averaged.high)
    assert found.over == "test samples, splits and seeds"
    assert averaged.over == "test samples and splits"


def test_clients_with_one_test_sample_count_together():
    """A hundred clients of one sample are as uncertain as one client of a hundred."""
    one = interval([[Scored(np.arange(100), (np.arange(100) < 30)[None].astype(float))]])
    many = interval([[Scored(np.arange(1), np.full((1, 1), float(i < 30))) for i in range(100)]])
    assert (many.mean, many.low, many.high) == pytest.approx((one.mean, one.low, one.high))


def test_clients_without_test_samples_change_nothing():
    with_them = paired_difference([[hits(50, 30), hits(0, 0)]], [[hits(50, 20), hits(0, 0)]])
    assert with_them == paired_difference([[hits(50, 30)]], [[hits(50, 20)]])


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_a_client_that_one_method_could_not_score_counts_for_neither(seeds):
    ours, theirs = random_hits(1, seeds), random_hits(2, seeds)
    without = [[by[0], np.zeros(0, bool), by[2]] for by in ours]
    nor_theirs = [[by[0], np.zeros(0, bool), by[2]] for by in theirs]
    assert paired_difference(without, theirs) == paired_difference(without, nor_theirs)
    assert np.isfinite(paired_difference(without, theirs).mean)


def test_nothing_in_common_is_no_number():
    assert np.isnan(paired_difference([[np.zeros(0, bool)]], [[np.ones(3, bool)]]).mean)


def test_intervals_cover_the_truth_of_simulated_federations():
    """The short form of benchmarks/coverage.py; 60 federations of five parties."""
    found = coverage.covered(splits=5, seeds=3, federations=60, further=20)
    assert 0.93 <= found["party"] <= 0.99
    assert found["samples"] >= 0.88
    assert found["mean"] >= 0.88
