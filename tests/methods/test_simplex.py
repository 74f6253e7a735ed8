import numpy as np
import pytest
from scipy.optimize import minimize

from pfedsim.methods.simplex import cheapest


def cost(p, q, a):
    return a @ p @ a + q @ a


@pytest.mark.parametrize("seed", range(40))
def test_no_other_weights_cost_less(seed):
    """Against SLSQP, and the conditions of an optimum; matrices of full and of low rank, also zero."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 13))
    factor = draw.normal(size=(n, int(draw.integers(0, n + 1))))
    p, q = factor @ factor.T, draw.normal(size=n) * (seed % 3)
    found = cheapest(p, q)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    slsqp = minimize(
        lambda a: cost(p, q, a),
        np.full(n, 1 / n),
        jac=lambda a: 2 * p @ a + q,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert cost(p, q, found) <= cost(p, q, slsqp.x / slsqp.x.sum()) + 1e-7
    slope = 2 * p @ found + q
    assert slope[found > 1e-9].max() <= slope.min() + 1e-6  # no weight can gain by moving


def test_three_weights_by_hand():
    """Variances 1, 2 and 4 without bias: weights in proportion to 1, 1/2 and 1/4."""
    np.testing.assert_allclose(cheapest(np.diag([1.0, 2.0, 4.0]), np.zeros(3)), np.array([4, 2, 1]) / 7)


def test_equal_clients_share_and_a_far_one_is_left_out():
    p = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(cheapest(p, np.array([0.0, 0.0, 9.0]))[2], 0, atol=1e-12)
