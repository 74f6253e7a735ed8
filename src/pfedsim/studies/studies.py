"""The studies by name: one for every table and figure of the paper, and for what it leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pfedsim.studies.cells import Cell
from pfedsim.studies.protocol import OF_THE_PAPER, Choice, grid

RHOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
CONTROL = "pfedsim.studies.control:WarmFedPer"


@dataclass(frozen=True)
class Study:
    """What it shows, where the paper has it, and its cells."""

    name: str
    shows: str
    place: str
    cells: Callable[[Choice], list[Cell]]


def accuracy(choice: Choice) -> list[Cell]:
    return grid(choice.of(full_data=OF_THE_PAPER))


def rho(choice: Choice) -> list[Cell]:
    return grid(choice.of(methods=[with_rho(r) for r in RHOS], full_data=OF_THE_PAPER))


def with_rho(rho: float) -> str:
    """Where another study has the same run under another name, that name: 1 is FedAvg to the bit, 0.5 the default."""
    return {0.5: "pfedsim", 1.0: "fedavg"}.get(rho, f"pfedsim(rho={rho:g})")


def heterogeneity(choice: Choice) -> list[Cell]:
    return grid(choice.of(methods=("local", "fedavg", "fedper", "pfedsim"), alphas=(0.1, 0.5, 1.0, 10.0), seeds=(42, 43)))


def questions(choice: Choice) -> list[Cell]:
    forms = grid(choice.of(methods=("pfedsim", "pfedsim:reference", "pfedsim:uniform", CONTROL), seeds=(42, 43, 44)))
    shuffled = grid(choice.of(methods=("fedavg", "pfedsim"), seeds=(42, 43, 44)), shuffle=True)
    shared = grid(choice.of(methods=("fedavg", "fedprox", "pfedsim")), buffers="shared")
    return forms + shuffled + shared


STUDIES = {
    study.name: study
    for study in (
        Study("accuracy", "accuracy of the twelve methods", "Table 3, section 5.2", accuracy),
        Study("rho", "the role of the generalization phase", "Table 6, appendix B.1", rho),
        Study("heterogeneity", "the gain shrinks towards equal data", "appendix C.2, second limitation", heterogeneity),
        Study("questions", "what the paper's table mixes or never asks", "not in the paper", questions),
    )
}
