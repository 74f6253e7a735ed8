"""What a federated run is made of: models as vectors, methods, the two loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.core.engine import Absent as Absent
    from pfedsim.core.engine import Done as Done
    from pfedsim.core.engine import Engine as Engine
    from pfedsim.core.job import Batch as Batch
    from pfedsim.core.job import Job as Job
    from pfedsim.core.job import Work as Work
    from pfedsim.core.job import Worker as Worker
    from pfedsim.core.layout import Layout as Layout
    from pfedsim.core.method import Fed as Fed
    from pfedsim.core.method import Memory as Memory
    from pfedsim.core.method import Message as Message
    from pfedsim.core.method import Method as Method
    from pfedsim.core.method import Phase as Phase
    from pfedsim.core.method import Reply as Reply
    from pfedsim.core.method import ServerState as ServerState
    from pfedsim.core.method import Share as Share
    from pfedsim.core.method import StartingPoint as StartingPoint
    from pfedsim.core.rows import Pairs as Pairs
    from pfedsim.core.rows import Rows as Rows
    from pfedsim.core.scoring import Scores as Scores
    from pfedsim.core.scoring import score as score
    from pfedsim.core.server import Round as Round
    from pfedsim.core.server import State as State
    from pfedsim.core.server import send as send

__all__, __getattr__, __dir__ = public(
    __name__,
    {
        "pfedsim.core.engine": "Absent Done Engine",
        "pfedsim.core.job": "Batch Job Work Worker",
        "pfedsim.core.layout": "Layout",
        "pfedsim.core.method": "Fed Memory Message Method Phase Reply ServerState Share StartingPoint",
        "pfedsim.core.rows": "Pairs Rows",
        "pfedsim.core.scoring": "Scores score",
        "pfedsim.core.server": "Round State send",
    },
)
