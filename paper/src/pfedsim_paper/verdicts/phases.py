"""Claims about the share of rounds that warm up (appendix B.1, Table 6)."""

from __future__ import annotations

from collections.abc import Callable

from pfedsim_paper.evidence import Evidence
from pfedsim_paper.protocol import base
from pfedsim_paper.verdicts.verdict import Verdict, every


def rho_one_worst(e: Evidence) -> Verdict:
    found = [(d, a, by) for d, a, by in e.rhos() if 1.0 in by]
    return every(
        [
            (
                by[1.0] == min(by.values()),
                f"{e.where(d, a)}: {by[1.0]:.2f}, next lowest {min(v for r, v in by.items() if r < 1):.2f}",
            )
            for d, a, by in found
        ]
    )


def rho_zero_worse(e: Evidence) -> Verdict:
    checks = []
    for d, a, by in e.rhos():
        inner = {r: v for r, v in by.items() if 0 < r < 1}
        if 0.0 in by and inner:
            low = min(inner, key=lambda r: inner[r])
            checks.append(
                (
                    by[0.0] < inner[low],
                    f"{e.where(d, a)}: {by[0.0]:.2f}, lowest between {inner[low]:.2f} at {low:g}",
                )
            )
    return every(checks)


def rho_oversized(e: Evidence) -> Verdict:
    found = [(d, a, by) for d, a, by in e.rhos() if {0.7, 0.9} <= by.keys()]
    return every([(by[0.9] < by[0.7], f"{e.where(d, a)}: {by[0.9] - by[0.7]:+.2f}") for d, a, by in found])


def rho_flat(e: Evidence) -> Verdict:
    found = [
        (d, a, max(by.values()) - min(by[r] for r in (0.3, 0.5, 0.7)))
        for d, a, by in e.rhos()
        if {0.3, 0.5, 0.7} <= by.keys()
    ]
    return every(
        [(below <= 2, f"{e.where(d, a)}: at most {below:.2f} below the highest") for d, a, below in found]
    )


def _best_rho(e: Evidence, model: str, right: Callable[[float], bool]) -> Verdict:
    best = [(d, a, max(by, key=lambda r: by[r])) for d, a, by in e.rhos() if base(d)["model"] == model]
    return every([(right(r), f"{e.where(d, a)}: best at {r:g}") for d, a, r in best])


def rho_small_models(e: Evidence) -> Verdict:
    return _best_rho(e, "lenet5", lambda r: r >= 0.5)


def rho_large_models(e: Evidence) -> Verdict:
    return _best_rho(e, "mobilenetv2", lambda r: r < 0.5)


CHECKS = (
    rho_one_worst,
    rho_zero_worse,
    rho_oversized,
    rho_flat,
    rho_small_models,
    rho_large_models,
)
