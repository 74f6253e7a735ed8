"""The studies by name: one for every table and figure of the paper, and for what it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pfedsim.errors import Error
from pfedsim.experiments import Cell, Store
from pfedsim.report import Document
from pfedsim_paper import (
    accuracy,
    cka,
    claims,
    datasets,
    domains,
    gaps,
    heterogeneity,
    metrics,
    overhead,
    privacy,
    questions,
    rho,
    shortcomings,
    similarity,
    workflow,
)
from pfedsim_paper.protocol import OF_THE_PAPER, TEN_CLASSES, WHOLE, Choice, base

ALL = ("methods", "data", "alpha", "seeds")
NOT_IN_THE_PAPER = "not in the paper"  # the place of a study that the paper does not have
KINDS: dict[str, tuple[str, Callable[[str], bool]]] = {  # what data a study takes
    "any": ("any set", lambda data: bool(base(data))),
    "dealt": ("sets that are dealt by their labels", lambda data: base(data)["partition"] == "dirichlet"),
    "domains": ("sets of several domains", lambda data: base(data)["partition"] == "domain"),
    "printed": (
        "the paper's sets that run here at its scale",
        lambda data: data in OF_THE_PAPER and data not in WHOLE,
    ),
    "ten": ("sets of ten classes that are dealt by their labels", lambda data: data in TEN_CLASSES),
}


@dataclass(frozen=True)
class Study:
    """What it shows, where the paper has it, its cells, and the report made from those that are
    finished."""

    name: str
    shows: str
    place: str
    plan: Callable[[Choice], list[Cell]]
    report: Callable[[Store, Choice], Document]
    takes: Sequence[str] = ALL
    """which of the options that choose a part"""
    sets: str = "dealt"
    alone: bool = False
    """measured by the clock: one cell at a time"""
    larger: bool = True
    """has a larger scale, in what it runs or in the runs that it looks at"""

    def check(self, choice: Choice) -> None:
        """Refuses what this study cannot honour."""
        given = dict(zip(ALL, (choice.methods, choice.data, choice.alphas, choice.seeds), strict=True))
        for option in [o for o, value in given.items() if value and o not in self.takes]:
            which = (
                " and ".join(f"--{o}" for o in self.takes)
                or "none of --methods, --data, --alpha and --seeds"
            )
            raise Error(f"{self.name} takes no --{option}; it takes {which}")
        natural = [d for d in choice.data if choice.alphas and base(d)["partition"] != "dirichlet"]
        if natural:
            raise Error(f"{natural[0]} is not dealt by --alpha: its clients are as they are")
        if choice.settings and not self.plan(choice):
            raise Error(f"{self.name} runs nothing of its own: --set changes nothing in it")
        words, suits = KINDS[self.sets]
        for data in choice.data:
            if not suits(data):
                raise Error(f"{self.name} takes {words}, not {data}")
        cells = self.plan(choice)
        same = bool(cells) and _digests(cells) == _digests(self.plan(replace(choice, full=False)))
        if choice.full and (same or not self.larger):
            raise Error(f"--full changes nothing here: {self.name} runs the same without it")


def _digests(cells: Sequence[Cell]) -> set[str]:
    return {cell.digest for cell in cells}


STUDIES = {
    study.name: study
    for study in (
        Study(
            "accuracy",
            "accuracy of the twelve methods",
            "Table 3",
            accuracy.plan,
            accuracy.report,
            sets="any",
        ),
        Study("rho", "the role of the generalization phase", "Table 6", rho.plan, rho.report, ALL[1:]),
        Study(
            "overhead",
            "seconds, bytes and storage of a method",
            "Table 7",
            overhead.plan,
            overhead.report,
            ALL[:3],
            alone=True,
        ),
        Study(
            "domainnet",
            "accuracy by domain under feature shift",
            "Table 8, Figure 5",
            domains.plan,
            domains.report,
            ("methods", "data", "seeds"),
            "domains",
        ),
        Study(
            "workflow",
            "the four steps of a round",
            "Figure 4",
            workflow.plan,
            workflow.report,
            ("data", "alpha"),
        ),
        Study("cka", "which layer tells clients apart", "Figure 1", cka.plan, cka.report, ALL[1:]),
        Study(
            "similarity",
            "classifiers of four label subsets",
            "Figure 2",
            similarity.plan,
            similarity.report,
            ("data", "seeds"),
            "ten",
        ),
        Study(
            "metrics",
            "four measures of how alike clients are",
            "Table 2",
            metrics.plan,
            metrics.report,
            ALL[1:],
            "ten",
        ),
        Study(
            "distribution",
            "who holds which classes",
            "Figure 3",
            datasets.distribution,
            datasets.distribution_report,
            ("data", "alpha"),
        ),
        Study(
            "datasets",
            "the data sets and how they are partitioned",
            "Table 4",
            datasets.no_cells,
            datasets.report,
            (),
            larger=False,
        ),
        Study(
            "shortcomings",
            "what similarity-based methods cost and ask for",
            "Table 1",
            shortcomings.plan,
            shortcomings.report,
            (),
            alone=True,
        ),
        Study(
            "heterogeneity",
            "the gain shrinks towards equal data",
            "appendix C.2",
            heterogeneity.plan,
            heterogeneity.report,
        ),
        Study(
            "privacy",
            "what a server can read of its clients' labels",
            "Table 1",
            privacy.plan,
            privacy.report,
        ),
        Study(
            "questions",
            "does similarity matter? shuffling? shared statistics?",
            NOT_IN_THE_PAPER,
            questions.plan,
            questions.report,
            ALL[1:],
        ),
        Study(
            "gaps",
            "runs that look for the cause of a distance from the paper",
            NOT_IN_THE_PAPER,
            gaps.plan,
            gaps.report,
            ALL[:3],
            "printed",
        ),
        Study(
            "claims", "every claim that a number can refute", "throughout", claims.plan, claims.report, ()
        ),
    )
}
