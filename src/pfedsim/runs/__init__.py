"""A run: its configuration, its folder, and how it is executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.runs.config import Config as Config
    from pfedsim.runs.config import check as check
    from pfedsim.runs.execution import Progress as Progress
    from pfedsim.runs.manifest import made_with as made_with
    from pfedsim.runs.reader import Run as Run
    from pfedsim.runs.setup import Plan as Plan
    from pfedsim.runs.setup import Session as Session
    from pfedsim.runs.setup import federate as federate
    from pfedsim.runs.setup import one_thread as one_thread
    from pfedsim.runs.setup import plan as plan
    from pfedsim.runs.setup import prepare as prepare
    from pfedsim.runs.state import to_tensors as to_tensors
    from pfedsim.runs.worker import WorkerSpec as WorkerSpec
    from pfedsim.runs.worker import spec_of as spec_of

__all__, __getattr__, __dir__ = public(
    __name__,
    {
        "pfedsim.runs.config": "Config check",
        "pfedsim.runs.execution": "Progress",
        "pfedsim.runs.manifest": "made_with",
        "pfedsim.runs.reader": "Run",
        "pfedsim.runs.setup": "Plan Session federate one_thread plan prepare",
        "pfedsim.runs.state": "to_tensors",
        "pfedsim.runs.worker": "WorkerSpec spec_of",
    },
)
