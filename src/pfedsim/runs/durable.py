"""Files that are whole or not there, files that only grow, and a folder that one process holds at a
time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pfedsim.errors import Error

TEMPORARY = ".tmp"
BLOCK = 1 << 20
Bytes = bytes | memoryview


def write(path: Path, *chunks: Bytes, flush: bool = True, settle: bool = True) -> str:
    """Under another name first, then flushed to disk and renamed: whoever looks finds the old file or the
    new one, never a part. `settle`: the name itself is on disk, too. Returns the sha256."""
    digest = hashlib.sha256()
    aside = path.with_name(path.name + TEMPORARY)
    with _room(path, chunks):
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            for chunk in chunks:
                digest.update(chunk)
                _put(descriptor, chunk)
            if flush:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(aside, path)
        if flush and settle:
            flush_folder(path.parent)
    return digest.hexdigest()


def flush_folder(path: Path) -> None:
    """What was renamed or deleted in this folder is so on disk, where the file system can say so."""
    with _room(path, []):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def digest_of(path: Path, length: int | None = None) -> tuple[str, int]:
    """The sha256 of a file's first `length` bytes (all, where none is given), and how many there were."""
    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK if length is None else min(BLOCK, length - done)):
            digest.update(block)
            done += len(block)
    return digest.hexdigest(), done


def verify(path: Path, digest: str, length: int | None = None) -> None:
    """Refuses a file whose sha256 (of its first `length` bytes) is another."""
    try:
        found, _ = digest_of(path, length)
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    if found != digest:
        raise Error(f"{path} is damaged: its sha256 is not the one recorded")


class Log:
    """A file that only grows. It knows its length and sha256, so that a checkpoint can say up to where the
    file counts."""

    def __init__(self, path: Path, keep: int = 0):
        self._path, self.name, self._hash, self.size = path, path.name, hashlib.sha256(), 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self._descriptor, min(keep, os.fstat(self._descriptor).st_size))
        while block := os.read(self._descriptor, BLOCK):
            self._hash.update(block)
            self.size += len(block)

    def append(self, text: str) -> None:
        chunk = text.encode()
        with _room(self._path, [chunk]):
            _put(self._descriptor, chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def mark(self) -> dict[str, int | str]:
        """Up to where the file is written now."""
        return {"bytes": self.size, "sha256": self._hash.hexdigest()}

    def flush(self) -> None:
        with _room(self._path, []):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _put(descriptor: int, chunk: Bytes) -> None:
    rest = memoryview(chunk).cast("B")
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def _room(path: Path, chunks: Sequence[Bytes]) -> Iterator[None]:
    """A disk that is full is named with what would have been needed."""
    try:
        yield
    except OSError as error:
        path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise Error(f"{path} cannot be written: {error.strerror}") from error
        needed, free = sum(memoryview(c).nbytes for c in chunks), shutil.disk_usage(path.parent).free
        raise Error(
            f"{path}: no room for its {needed:,} bytes ({error.strerror}; {free:,} are free); what was "
            "saved before is whole: "
            "make room, then pfedsim resume"
        ) from error


class Busy(Error):
    """Another process holds the folder."""


UNLOCKABLE = (
    errno.ENOSYS,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
)  # some network file systems: there the run goes on without a lock
_held: set[int] = set()


def _let_go() -> None:
    """A forked worker must not hold the folder when its parent is gone."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """This folder is this process's alone; the lock ends with the process, however it ends."""
    try:
        descriptor = os.open(folder / "timings.jsonl", os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another's run can be examined
        descriptor = os.open(folder / "timings.jsonl", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Busy(
            f"{folder} is in use: another process is running into it; wait for it, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            os.close(descriptor)
            raise Error(f"{folder} cannot be locked: {error.strerror}") from error
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)
