"""A function for each claim of the paper: does it hold by the evidence, and by which figures?"""

from __future__ import annotations

from collections.abc import Callable

from pfedsim_paper.evidence import Evidence
from pfedsim_paper.verdicts import costs, measures, phases, scores
from pfedsim_paper.verdicts.verdict import Verdict

CHECKS: dict[str, Callable[[Evidence], Verdict]] = {
    check.__name__: check for room in (scores, phases, costs, measures) for check in room.CHECKS
}
