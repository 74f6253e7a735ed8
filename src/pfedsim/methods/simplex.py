"""The weights of least cost: quadratic programs over the simplex, as FedPAC and pFedGraph ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

RIDGE = 1e-10  # makes the cheapest weights unique, and every system of equations solvable
STEPS = 1000  # far more than the active-set method takes for a few hundred weights


def cheapest(matrix: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """The weights a >= 0 with sum 1 that make a' P a + q' a least, for a positive semi-definite P: exact, by an active
    set. From the best single weight on, the weight with the steepest cost joins; a weight that would turn negative
    leaves."""
    import numpy as np

    q, scale = linear, 1 + float(np.abs(matrix).max()) + float(np.abs(linear).max())
    p = matrix + RIDGE * scale * np.eye(len(q))
    a = np.zeros(len(q))
    a[np.argmin(np.diag(p) + q)] = 1.0
    active = a > 0
    for _ in range(STEPS):
        best = np.zeros(len(q))
        best[active] = _on_plane(p[np.ix_(active, active)], q[active])
        if (best[active] < 0).any():
            falling = active & (best < 0)
            share = a[falling] / (a[falling] - best[falling])
            a = a + share.min() * (best - a)
            a[np.flatnonzero(falling)[share == share.min()]] = 0.0
            active = active & (a > 0)
            continue
        a, slope = best, 2 * p @ best + q
        join = int(np.argmin(slope))
        if active[join] or slope[join] >= slope[active].max() - 1e-9 * scale:
            break
        active[join] = True
    weights: np.ndarray = a / a.sum()
    return weights


def _on_plane(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The least a' P a + q' a with sum 1, whatever the signs."""
    import numpy as np

    n = len(q)
    system = np.block([[2 * p, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    found: np.ndarray = np.linalg.solve(system, np.append(-q, 1.0))[:n]
    return found
