"""The studies by name: one for every table and figure of the paper, and for what it leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pfedsim.report.document import Document
from pfedsim.studies import (
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
from pfedsim.studies.cells import Cell, Store
from pfedsim.studies.protocol import Choice


@dataclass(frozen=True)
class Study:
    """What it shows, where the paper has it, its cells, and the report made from those that are finished."""

    name: str
    shows: str
    place: str
    plan: Callable[[Choice], list[Cell]]
    report: Callable[[Store, Choice], Document]
    alone: bool = False
    """measured by the clock: one cell at a time"""


STUDIES = {
    study.name: study
    for study in (
        Study("accuracy", "accuracy of the twelve methods", "Table 3", accuracy.plan, accuracy.report),
        Study("rho", "the role of the generalization phase", "Table 6", rho.plan, rho.report),
        Study("overhead", "seconds, bytes and storage of a method", "Table 7", overhead.plan, overhead.report, alone=True),
        Study("domainnet", "accuracy by domain under feature shift", "Table 8, Figure 5", domains.plan, domains.report),
        Study("workflow", "the four steps of a round", "Figure 4", workflow.plan, workflow.report),
        Study("cka", "which layer tells clients apart", "Figure 1", cka.plan, cka.report),
        Study("similarity", "classifiers of four label subsets", "Figure 2", similarity.plan, similarity.report),
        Study("metrics", "four measures of how alike clients are", "Table 2", metrics.plan, metrics.report),
        Study("distribution", "who holds which classes", "Figure 3", datasets.distribution, datasets.distribution_report),
        Study("datasets", "the data sets and how they are dealt", "Table 4", datasets.no_cells, datasets.report),
        Study(
            "shortcomings", "what similarity-based methods cost and ask for", "Table 1", shortcomings.plan, shortcomings.report, alone=True
        ),
        Study("heterogeneity", "the gain shrinks towards equal data", "appendix C.2", heterogeneity.plan, heterogeneity.report),
        Study("privacy", "what a server can read of its clients' labels", "Table 1", privacy.plan, privacy.report),
        Study("questions", "does similarity matter? shuffling? shared statistics?", "not in it", questions.plan, questions.report),
        Study("gaps", "runs that look for the cause of a distance from Table 3", "not in it", gaps.plan, accuracy.report),
        Study("claims", "every claim that a number can refute", "throughout", claims.plan, claims.report),
    )
}
