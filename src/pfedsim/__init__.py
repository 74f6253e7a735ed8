"""Personalised federated learning: pFedSim, the methods it is compared with, and a simulator that can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Error": "pfedsim.errors",
    "HookError": "pfedsim.errors",
    "Method": "pfedsim.method",
    "Message": "pfedsim.method",
    "Reply": "pfedsim.method",
    "Server": "pfedsim.method",
    "Client": "pfedsim.method",
    "Start": "pfedsim.method",
    "Phase": "pfedsim.method",
    "Rows": "pfedsim.rows",
    "Pairs": "pfedsim.rows",
    "Federation": "pfedsim.federation",
    "Run": "pfedsim.runs.folder",
    "ClientModel": "pfedsim.personal",
    "federate": "pfedsim.api",
    "load": "pfedsim.export.read",
    "train": "pfedsim.api",
}

if TYPE_CHECKING:
    from pfedsim.api import federate as federate
    from pfedsim.api import train as train
    from pfedsim.errors import Error as Error
    from pfedsim.errors import HookError as HookError
    from pfedsim.export.read import load as load
    from pfedsim.federation import Federation as Federation
    from pfedsim.method import Client as Client
    from pfedsim.method import Message as Message
    from pfedsim.method import Method as Method
    from pfedsim.method import Phase as Phase
    from pfedsim.method import Reply as Reply
    from pfedsim.method import Server as Server
    from pfedsim.method import Start as Start
    from pfedsim.personal import ClientModel as ClientModel
    from pfedsim.rows import Pairs as Pairs
    from pfedsim.rows import Rows as Rows
    from pfedsim.runs.folder import Run as Run

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Public names are imported when first asked for, so that `pfedsim --help` needs no torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'pfedsim' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
