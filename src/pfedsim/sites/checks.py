"""What an administrator wants to know of a prepared kit before it is used."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from pfedsim import __version__
from pfedsim.errors import Error
from pfedsim.sites.admin import check_certificate
from pfedsim.sites.files import Ready
from pfedsim.sites.kits import CONTROLLER, EXECUTOR, NEVER, ready_of
from pfedsim.sites.serve import taken

ANSWERS = 5.0  # seconds in which a hub takes a connection
MINOR = "2.9."  # the line of FLARE that pfedsim was tried with


def checks(kit: Path) -> Iterator[tuple[str, bool, str]]:
    """What was looked at, whether it is wrong, and one sentence."""
    ready = ready_of(kit)
    looks: list[tuple[str, Callable[[Path, Ready], str]]] = [
        ("certificate", _certificate),
        ("keys", _keys),
        ("policy", _policy),
        ("versions", _versions),
    ]
    if ready.site is not None:
        looks += [("data", _data), ("hub", _hub)]
    elif ready.hub is not None:
        looks += [("data", _described), ("port", _port)]
    else:
        yield "settings", True, f"{kit} is not prepared: pfedsim sites prepare {kit} SETTINGS.toml"
        looks = looks[:2]
    for name, look in looks:
        try:
            yield name, False, look(kit, ready)
        except Error as error:
            yield name, True, str(error)


def _certificate(kit: Path, ready: Ready) -> str:
    check_certificate(kit)
    return f"valid, for {ready.name}"


def _keys(kit: Path, ready: Ready) -> str:
    for path in sorted((kit / "startup").glob("*.key")):
        if os.stat(path).st_mode & 0o077:
            raise Error(f"{path} can be read by others: chmod 600 {path}")
    return "private"


def _policy(kit: Path, ready: Ready) -> str:
    want = CONTROLLER if ready.site is None else EXECUTOR
    try:
        resources = json.loads((kit / "local" / "resources.json").read_text(encoding="utf-8"))
        roles = json.loads((kit / "local" / "authorization.json").read_text(encoding="utf-8"))[
            "permissions"
        ]
        allowed, mode = resources["class_allow_list"], resources["class_list_enforcement_mode"]
        streams = resources.get("allow_log_streaming")
        rights = {(role, right): roles[role].get(right, "none") for role in roles for right in NEVER}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Error(f"{kit / 'local'} has no policy of pfedsim sites prepare: {error}") from error
    if allowed != [want] or mode != "enforce":
        raise Error(f"{kit / 'local' / 'resources.json'} allows {allowed} ({mode}), not {want} alone")
    if streams is not False:
        raise Error(f"{kit / 'local' / 'resources.json'} allows logs to be streamed to the hub")
    for (role, right), value in rights.items():
        if value != "none":
            raise Error(f"{kit / 'local' / 'authorization.json'} allows {right!r} to the role {role!r}")
    return "only pfedsim runs here: no code of others, no shell, no log streams"


def _versions(kit: Path, ready: Ready) -> str:
    import nvflare
    import torch

    theirs = f"nvflare {nvflare.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    said = f"pfedsim {__version__}, {theirs}"
    if not nvflare.__version__.startswith(MINOR):
        raise Error(f"{said}: pfedsim was tried with nvflare {MINOR}x")
    return said


def _data(kit: Path, ready: Ready) -> str:
    from pfedsim.runs.config import check
    from pfedsim.runs.setup import federate

    assert ready.site is not None
    clients = ready.federation.sites[ready.name]
    if ready.site.partition is None:
        from pfedsim import data as datasets

        here = datasets.read(ready.site.data, ready.site.data_dir)
        return f"{here.described()}; here are clients {', '.join(map(str, clients))}"
    own = {name: getattr(ready.site, name) for name in ("data", "data_dir", "partition")}
    found = federate(check({name: value for name, value in own.items() if value is not None}))
    if strange := [i for i in clients if i >= found.clients]:
        raise Error(
            f"client {strange[0]} is bound to this site, and the partition has {found.clients} clients"
        )
    sizes = [len(found.partition.clients[i].train) + len(found.partition.clients[i].test) for i in clients]
    named = ", ".join(f"{i} ({size} samples)" for i, size in zip(clients, sizes, strict=True))
    return f"{found.data.described()}; here are clients {named}"


def _described(kit: Path, ready: Ready) -> str:
    from pfedsim.sites.hub import described

    task, partition = described(ready)
    return f"{task.name}, {len(task.classes)} classes, {len(partition.clients)} clients"


def _hub(kit: Path, ready: Ready) -> str:
    where = ready.federation.host, ready.federation.port
    try:
        socket.create_connection(where, ANSWERS).close()
    except OSError as error:
        raise Error(
            f"nobody answers at {where[0]}:{where[1]} ({error.strerror or error}): is the hub running?"
        ) from error
    return f"{where[0]}:{where[1]} takes connections"


def _port(kit: Path, ready: Ready) -> str:
    where = ready.federation.host, ready.federation.port
    if why := taken(*where):
        raise Error(f"{why} (the hub itself, if it runs)")
    return f"{where[1]} is free"
