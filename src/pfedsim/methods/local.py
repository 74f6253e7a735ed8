"""Local-Only: every client trains alone, in the rounds in which the common schedule draws it, from the same
initial model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfedsim.core.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class LocalOnly(Method):
    """Nothing leaves a client: all entries are kept, so that each goes on from its own."""

    title = "Local-Only"
    paper = "the baseline of the pFedSim paper, section 5.1"
    elsewhere = (
        "It trains only in the rounds in which the common schedule draws a client (about 20 of 200), not "
        "to convergence: a low "
        "budget that some tables leave unsaid."
    )

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head | True
