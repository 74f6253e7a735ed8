"""A hub's or site's own process, which NVIDIA FLARE provides: started from a prepared kit."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from pfedsim.errors import Error
from pfedsim.sites.admin import check_certificate
from pfedsim.sites.files import Ready
from pfedsim.sites.kits import HUB, ready_of


def command(kit: Path) -> list[str]:
    """The command that runs this hub or site, after checking that it can start."""
    ready = ready_of(kit)
    _check(kit, ready)
    what, file, own = (
        ("server.server_train", "fed_server.json", ["org=hub"])
        if ready.name == HUB
        else (
            "client.client_train",
            "fed_client.json",
            [f"uid={ready.name}", f"org={re.sub(chr(92) + 'W', '_', ready.name)}"],
        )
    )
    module = f"nvflare.private.fed.app.{what}"
    options = ["secure_train=true", *own, "config_folder=config"]
    return [
        sys.executable,
        "-P",
        "-u",
        "-m",
        module,
        "-m",
        str(kit.resolve()),
        "-s",
        file,
        "--set",
        *options,
    ]


def serve(kit: Path) -> None:
    """Becomes this hub or site: the process ends when it does."""
    words = command(kit)
    os.chdir(kit)
    os.execv(words[0], words)


def _check(kit: Path, ready: Ready) -> None:
    if ready.site is None and ready.hub is None:
        raise Error(f"{kit} is not prepared: pfedsim sites prepare {kit} SETTINGS.toml")
    if re.search(r"\s", str(kit.resolve())):
        raise Error(
            f"{kit.resolve()}: FLARE starts jobs by words, so the folder's name must not contain spaces"
        )
    check_certificate(kit)
    if ready.hub is not None and (why := taken(ready.federation.host, ready.federation.port)):
        raise Error(why)


def taken(host: str, port: int) -> str:
    """Why this port cannot be listened on, or nothing."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1" if host in ("localhost", "127.0.0.1") else "", port))
        except OSError as error:
            return f"port {port} cannot be listened on ({error.strerror}): stop what uses it, or choose another port"
    return ""
