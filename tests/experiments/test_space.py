"""Which combinations of settings are tried."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from scipy.stats import qmc

from pfedsim.errors import Error
from pfedsim.experiments.space import Range, drawn, grid, halton, parse_over, spread


def test_a_grid_is_every_combination():
    space = parse_over(["lr=0.003,0.01", "pfedsim.rho=0.3,0.5,0.7"])
    assert grid(space) == [
        {"lr": lr, "pfedsim.rho": rho} for lr in (0.003, 0.01) for rho in (0.3, 0.5, 0.7)
    ]


def test_values_are_read_as_set_reads_them():
    space = parse_over(["a=1,2.5,true,word", "b=1..8", "c=0.001..0.1:log", "d=f(1,2),[3,4]"])
    assert space["a"] == [1, 2.5, True, "word"]
    assert space["b"] == Range(1, 8)
    assert space["c"] == Range(0.001, 0.1, log=True)
    assert space["d"] == ["f(1,2)", [3, 4]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "KEY=VALUE"),
        ("lr=", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("lr=0.1,0.1", "0.1 is given twice"),
        ("lr=0.1..0.01", "lower to a higher"),
        ("lr=a..b", "LOW..HIGH"),
        ("lr=0..1:log", "begins above 0"),
        ("lr=0.1..inf", "LOW..HIGH"),
    ],
)
def test_what_is_no_space_is_refused(text, words):
    with pytest.raises(Error, match=words):
        parse_over([text])


def test_a_setting_is_given_once_and_a_grid_has_no_ranges():
    with pytest.raises(Error, match="given twice"):
        parse_over(["lr=1,2", "lr=3"])
    with pytest.raises(Error, match="how many trials"):
        grid(parse_over(["lr=1..2"]))


def test_draws_differ_lie_in_the_space_and_begin_alike():
    space = parse_over(["lr=0.001..0.1:log", "k=2..4", "word=a,b"])
    many = drawn(space, 40, seed=1)
    assert drawn(space, 7, seed=1) == many[:7]
    assert drawn(space, 7, seed=2) != many[:7]
    assert len({tuple(one.items()) for one in many}) == 40
    assert all(0.001 <= one["lr"] <= 0.1 for one in many)
    assert {one["k"] for one in many} == {2, 3, 4}
    assert {one["word"] for one in many} == {"a", "b"}
    below = sum(one["lr"] < 0.01 for one in many)  # the middle of a logarithmic range
    assert 12 <= below <= 28


def test_all_of_a_finite_space_can_be_drawn_and_no_more():
    space = parse_over(["a=1,2,3", "b=1..2"])
    assert sorted(map(str, drawn(space, 6, seed=0))) == sorted(
        str({"a": a, "b": b}) for a in (1, 2, 3) for b in (1, 2)
    )
    with pytest.raises(Error, match="only 6 combinations"):
        drawn(space, 7, seed=0)


def test_halton_is_that_of_scipy():
    reference = qmc.Halton(2, scramble=False).random(30)
    for number, (two, three) in enumerate(reference):
        assert float(halton(number, 2)) == pytest.approx(two)
        assert float(halton(number, 3)) == pytest.approx(three)
    assert halton(1, 2) == Fraction(1, 2)


def test_spread_trials_share_their_first_setting_and_leave_out_the_middle():
    lr = Range(0.001, 0.1, log=True)
    one, two = spread({"lr": lr}, 8), spread({"lr": lr, "own": [1, 2, 3]}, 8)
    assert [x["lr"] for x in one] == [x["lr"] for x in two]
    assert spread({"lr": lr}, 3) == one[:3]
    assert 0.01 not in [x["lr"] for x in one]
    assert {x["own"] for x in two} == {1, 2, 3}
    # two trials in each quarter of the logarithmic range
    quarters = [int((math.log10(x["lr"]) + 3.01) / 2 * 4) for x in one]
    assert sorted(quarters) == [0, 0, 1, 1, 2, 2, 3, 3]
