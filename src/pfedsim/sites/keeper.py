"""A site's disk: what its clients remember, each memory with the reply that came with it, under its mark.

    RUN/client-00003/00004-1f0c....state    a sha256, then a packet

A file is written before its reply goes out, and deleted once the run cannot come back to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from pfedsim import durable
from pfedsim.core.engine import Done
from pfedsim.core.method import Memory
from pfedsim.core.wire import Wire
from pfedsim.errors import Error
from pfedsim.sites.messages import kept, unkept
from pfedsim.sites.packet import Malformed

ENDING = ".state"
OURS = re.compile(r"\d{5,10}-[0-9a-f]{24}\.state")
SHA = hashlib.sha256().digest_size


class Keeper:
    """The memories of one run's clients at this site. Another process that keeps the same run is waited for."""

    def __init__(self, folder: Path, run: str, wire: Wire):
        self._folder, self._run, self._wire = folder / run, run, wire
        durable.refuse_link(self._folder)
        durable.make_folder(self._folder)

    def find(self, client: int, mark: str) -> tuple[Memory, Done] | None:
        """The memory under this mark and the result that came with it; None if there is none. Raises an error if
        it is damaged."""
        path = self._path(client, mark)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Error(f"{path} cannot be read: {error.strerror}") from error
        digest, content = data[:SHA], data[SHA:]
        if hashlib.sha256(content).digest() != digest:
            raise Error(f"{path} is damaged: its content does not match its sha256")
        try:
            facts, memory, done = unkept(self._wire, content)
        except Malformed as error:
            raise Error(f"{path} cannot be read by this version of pfedsim: {error}") from error
        if (facts.run, facts.mark, done.client) != (self._run, mark, client):
            raise Error(f"{path} belongs to another run, client or round")
        return memory, done

    def put(self, mark: str, done: Done, memory: Memory) -> None:
        """Keeps a memory and its result, on disk when this returns."""
        path = self._path(done.client, mark)
        durable.make_folder(path.parent)
        chunks = kept(self._wire, self._run, mark, done, memory)
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        durable.write(path, digest.digest(), *chunks)

    def keep_only(self, client: int, marks: Collection[str]) -> None:
        """Deletes this client's other memories."""
        folder = self._path(client, "").parent
        for path in folder.iterdir() if folder.is_dir() else ():
            if OURS.fullmatch(path.name) and path.name.removesuffix(ENDING) not in marks:
                path.unlink()

    def _path(self, client: int, mark: str) -> Path:
        return self._folder / f"client-{client:05d}" / f"{mark}{ENDING}"
