"""Personalised federated learning: pFedSim, the methods it is compared with, and a simulator that can be
trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Error": "pfedsim.errors",
    "HookError": "pfedsim.errors",
    "Method": "pfedsim.core.method",
    "Message": "pfedsim.core.method",
    "Reply": "pfedsim.core.method",
    "ServerState": "pfedsim.core.method",
    "Memory": "pfedsim.core.method",
    "StartingPoint": "pfedsim.core.method",
    "Phase": "pfedsim.core.method",
    **dict.fromkeys(("Share", "Positive", "AtLeastZero", "Count", "Weights"), "pfedsim.core.method"),
    "Rows": "pfedsim.core.rows",
    "Pairs": "pfedsim.core.rows",
    "Federation": "pfedsim.data.federation",
    "Run": "pfedsim.runs.reader",
    "ClientModel": "pfedsim.export.client_model",
    "check": "pfedsim.api",
    "compare": "pfedsim.api",
    "federate": "pfedsim.api",
    "load": "pfedsim.export.read",
    "sweep": "pfedsim.api",
    "train": "pfedsim.api",
}

if TYPE_CHECKING:
    from pfedsim.api import check as check
    from pfedsim.api import compare as compare
    from pfedsim.api import federate as federate
    from pfedsim.api import sweep as sweep
    from pfedsim.api import train as train
    from pfedsim.core.method import AtLeastZero as AtLeastZero
    from pfedsim.core.method import Count as Count
    from pfedsim.core.method import Memory as Memory
    from pfedsim.core.method import Message as Message
    from pfedsim.core.method import Method as Method
    from pfedsim.core.method import Phase as Phase
    from pfedsim.core.method import Positive as Positive
    from pfedsim.core.method import Reply as Reply
    from pfedsim.core.method import ServerState as ServerState
    from pfedsim.core.method import Share as Share
    from pfedsim.core.method import StartingPoint as StartingPoint
    from pfedsim.core.method import Weights as Weights
    from pfedsim.core.rows import Pairs as Pairs
    from pfedsim.core.rows import Rows as Rows
    from pfedsim.data.federation import Federation as Federation
    from pfedsim.errors import Error as Error
    from pfedsim.errors import HookError as HookError
    from pfedsim.export.client_model import ClientModel as ClientModel
    from pfedsim.export.read import load as load
    from pfedsim.runs.reader import Run as Run

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Public names are imported when first asked for, so that `pfedsim --help` needs no torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'pfedsim' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
