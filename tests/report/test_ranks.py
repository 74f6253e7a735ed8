"""Ranks of methods over data sets, against the tables and formulas of Demsar (2006) and cases by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pfedsim.report.ranks import Ranking, diagram, ranking, sentence

# Demsar 2006, table 5a: the 5% values of Nemenyi's test for two to ten classifiers
Q = dict(zip(range(2, 11), (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164), strict=True))
TABLE = """0.9 0.8 0.7 0.6  0.5 0.9 0.1 0.3  0.7 0.6 0.2 0.4  0.8 0.9 0.5 0.3  0.6 0.4 0.5 0.1"""


@pytest.fixture
def five() -> Ranking:
    """Five data sets; the ranks of a to d are 1234, 2143, 1243, 2134 and 1324."""
    table = np.array(TABLE.split(), float).reshape(5, 4)
    found = ranking({m: {f"set {k}": table[k, j] for k in range(5)} for j, m in enumerate("abcd")})
    assert found is not None
    return found


def test_ranks_and_both_tests_as_in_demsar(five: Ranking) -> None:
    mean = {"a": 7 / 5, "b": 9 / 5, "c": 16 / 5, "d": 18 / 5}
    assert dict(zip(five.methods, five.ranks, strict=True)) == pytest.approx(mean)
    square = 12 * 5 / (4 * 5) * (sum(r**2 for r in mean.values()) - 4 * 5**2 / 4)
    assert five.p == pytest.approx(_chi2_beyond(square, 3), abs=1e-4)
    for k, q in Q.items():
        if k > 2:
            scores = {str(m): {"x": float(m), "y": float(-m), "z": 0.0} for m in range(k)}
            found = ranking(scores)
            assert found is not None
            assert found.critical == pytest.approx(q * np.sqrt(k * (k + 1) / (6 * 3)), abs=0.002)


def _chi2_beyond(square: float, freedom: int) -> float:
    """The share of a chi-squared distribution above this value, by summing its density."""
    x = np.linspace(square, 200, 2_000_001)
    density = x ** (freedom / 2 - 1) * np.exp(-x / 2) / (2 ** (freedom / 2) * math.gamma(freedom / 2))
    return float(((density[1:] + density[:-1]) / 2 * np.diff(x)).sum())


def test_groups_are_the_longest_stretches_within_the_critical_difference() -> None:
    found = Ranking(tuple("abcde"), (1.0, 1.5, 3.0, 4.2, 4.9), ("x",), 0.01, 2.0)
    assert found.groups() == [(0, 1), (1, 2), (2, 4)]


def test_what_is_missing_is_left_out_and_said() -> None:
    scores = {m: {"x": k, "y": 2 * k} for k, m in enumerate("abc")} | {"d": {"x": 9.0}}
    scores["a"]["z"] = 1.0  # a data set that one of four has does not count
    found = ranking(scores)
    assert found is not None
    assert (found.methods, found.sets) == (("c", "b", "a"), ("x", "y"))
    assert "over 2 data sets, as served" in sentence(found, "as served")
    assert ranking({"a": {"x": 1.0, "y": 1.0}, "b": {"x": 2.0, "y": 2.0}}) is None
    one = ranking({m: {"x": float(k)} for k, m in enumerate("abc")})
    assert one is not None
    assert (one.methods, one.tested) == (("c", "b", "a"), False)


def test_equal_scores_share_a_rank_and_show_nothing() -> None:
    found = ranking({m: {"x": 5.0, "y": 7.0} for m in "abc"})
    assert found is not None
    assert found.ranks == (2.0, 2.0, 2.0)
    assert found.p == 1.0
    assert "do not show that the methods differ" in sentence(found, "as served")


def test_the_same_ranks_give_the_same_picture(five: Ranking, tmp_path: Path) -> None:
    first, second = (diagram(five, tmp_path / f"{k}.svg", 4.2).read_bytes() for k in range(2))
    assert first == second
