"""Tables, pictures and reports of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.report.document import BEST as BEST
    from pfedsim.report.document import DAGGERS as DAGGERS
    from pfedsim.report.document import Document as Document
    from pfedsim.report.document import Entry as Entry
    from pfedsim.report.document import Figure as Figure
    from pfedsim.report.document import Section as Section
    from pfedsim.report.document import Table as Table
    from pfedsim.report.document import entries as entries
    from pfedsim.report.document import markdown as markdown
    from pfedsim.report.document import ranked as ranked
    from pfedsim.report.document import write as write
    from pfedsim.report.figures import saved as saved
    from pfedsim.report.looks import COLOURS as COLOURS
    from pfedsim.report.plots import NARROW as NARROW
    from pfedsim.report.plots import bubbles as bubbles
    from pfedsim.report.plots import by_cluster as by_cluster
    from pfedsim.report.plots import heat_maps as heat_maps
    from pfedsim.report.plots import lines as lines
    from pfedsim.report.plots import points as points
    from pfedsim.report.plots import scattered as scattered
    from pfedsim.report.screen import terminal as terminal
    from pfedsim.report.strips import Distance as Distance
    from pfedsim.report.strips import bars as bars
    from pfedsim.report.strips import distances as distances
    from pfedsim.report.strips import spreads as spreads
    from pfedsim.report.tables import mean_std as mean_std
    from pfedsim.report.tables import size as size

__all__, __getattr__, __dir__ = public(
    __name__,
    {
        "pfedsim.report.document": "BEST DAGGERS Document Entry Figure Section Table entries"
        " markdown ranked write",
        "pfedsim.report.figures": "saved",
        "pfedsim.report.looks": "COLOURS",
        "pfedsim.report.plots": "NARROW bubbles by_cluster heat_maps lines points scattered",
        "pfedsim.report.screen": "terminal",
        "pfedsim.report.strips": "Distance bars distances spreads",
        "pfedsim.report.tables": "mean_std size",
    },
)
