"""Local-Only: every client trains alone from the same initial model, in the rounds for which the common schedule
draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfedsim.core.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class LocalOnly(Method):
    """Nothing leaves a client: it keeps all entries and continues from its own model."""

    title = "Local-Only"
    paper = "the baseline of the pFedSim paper, section 5.1"
    elsewhere = (
        "It trains only in the rounds for which the common schedule draws a client (about 20 of 200), not to "
        "convergence: a low budget that some tables do not mention."
    )

    def keeps(self, layout: Layout) -> Tensor:
        return layout.head | True
