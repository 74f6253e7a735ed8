"""The work of a site in a process of its own: it may be killed for its memory, and nothing else ends with it."""

from __future__ import annotations

import json
import math
import os
import select
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pfedsim.errors import Error

HEAD = struct.Struct("<cQ")  # a frame: its kind, and how many bytes follow
ASK, AT, ANSWER = b"?", b"@", b"!"
TRIES = 2  # a client whose process dies twice does no work in this wave
LOOK = 0.2  # seconds between looks at the clock
MOST = 1 << 40
DIED = "its work ended its process twice (as when the memory is not enough)"


class Stopped(Exception):
    """Nobody waits for the answer any more."""


class WorkProcess:
    """Opens a site from its file in a process, and passes packets to it. `limit`: seconds that one client's work may
    take."""

    def __init__(self, site: Path, limit: float | None = None, command: list[str] | None = None):
        self._command = command or [sys.executable, "-P", "-m", "pfedsim.sites.child", str(site)]
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, packet: bytes, stop: Callable[[], bool] = lambda: False) -> bytes:
        """The site's answer. Raises an error if there is none, and Stopped once `stop` says so."""
        deaths: Counter[int | None] = Counter()
        given_up: dict[int, str] = {}
        while True:
            client, why = None, ""
            try:
                self._send(packet, given_up)
                until = math.inf
                while True:
                    kind, content = self._next(stop, until)
                    if kind == ANSWER:
                        return content
                    client = struct.unpack("<q", content)[0]
                    until = math.inf if self._limit is None else time.monotonic() + self._limit
            except TimeoutError:
                why = f"it took longer than {self._limit:g} seconds"
            except (OSError, EOFError):
                pass
            except Stopped:
                self.close()
                raise
            self.close()
            deaths[client] += 1
            if client is not None and (why or deaths[client] == TRIES):
                given_up[client] = why or DIED
            elif client is None and deaths[None] == TRIES:
                raise Error("the process that does this site's work ends at once; the site's log says why")

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def start(self) -> None:
        """Starts the process, unless it runs: it takes a while to import what it needs."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._process = subprocess.Popen(self._command, **pipes, start_new_session=True)  # type: ignore[call-overload]

    def _send(self, packet: bytes, given_up: dict[int, str]) -> None:
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        about = json.dumps(given_up).encode()
        self._process.stdin.write(HEAD.pack(ASK, 8 + len(about) + len(packet)))
        self._process.stdin.write(struct.pack("<Q", len(about)) + about)
        self._process.stdin.write(packet)
        self._process.stdin.flush()

    def _next(self, stop: Callable[[], bool], until: float) -> tuple[bytes, bytes]:
        kind, size = HEAD.unpack(self._bytes(HEAD.size, stop, until))
        return kind, self._bytes(min(size, MOST), stop, until)

    def _bytes(self, count: int, stop: Callable[[], bool], until: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, found = self._process.stdout.fileno(), bytearray()
        while len(found) < count:
            if stop():
                raise Stopped
            if time.monotonic() > until:
                raise TimeoutError
            if not select.select([descriptor], [], [], LOOK)[0]:
                continue
            block = os.read(descriptor, min(1 << 20, count - len(found)))
            if not block:
                raise EOFError
            found += block
        return bytes(found)
