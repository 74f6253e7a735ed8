"""Atomic file writes, append-only logs, and a lock on a run's folder."""

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
    """Write a file atomically and return its sha256: a temporary file is written, flushed to disk and renamed.
    `settle`: flush the folder as well, which makes the new name durable."""
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
    """Flush renames and deletions in this folder to disk, where the file system supports it."""
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
    """The sha256 of a file's first `length` bytes (default: all), and how many bytes were read."""
    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK if length is None else min(BLOCK, length - done)):
            digest.update(block)
            done += len(block)
    return digest.hexdigest(), done


def verify(path: Path, digest: str, length: int | None = None) -> None:
    """Raise an error unless the file (or its first `length` bytes) has this sha256."""
    try:
        found, _ = digest_of(path, length)
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    if found != digest:
        raise Error(f"{path} is damaged: its sha256 differs from the recorded one")


class Log:
    """An append-only file that tracks its length and sha256, which checkpoints record."""

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
        """The current length and sha256."""
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
    """Turn write errors into an Error; for a full disk, it says how many bytes were needed."""
    try:
        yield
    except OSError as error:
        path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise Error(f"{path} cannot be written: {error.strerror}") from error
        needed, free = sum(memoryview(c).nbytes for c in chunks), shutil.disk_usage(path.parent).free
        raise Error(
            f"{path}: no room for its {needed:,} bytes ({error.strerror}; {free:,} are free); earlier "
            "checkpoints are intact: free some space, then pfedsim resume"
        ) from error


class Busy(Error):
    """Another process has locked the folder."""


# some network file systems cannot lock: the run continues without a lock
UNLOCKABLE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_locks: set[int] = set()


def _release() -> None:
    """Close the inherited locks in a forked worker, which may outlive its parent."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_release)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process. The operating system releases the lock when the process ends."""
    try:
        descriptor = os.open(folder / "timings.jsonl", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:  # a run in a read-only folder or file system can still be examined
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Error(f"{folder} cannot be locked: {error.strerror}") from error
        try:
            descriptor = os.open(folder / "timings.jsonl", os.O_RDONLY)
        except FileNotFoundError:  # nothing to lock, and nobody who could write
            yield
            return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Busy(
            f"{folder} is in use: another process has locked it; wait for it, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            os.close(descriptor)
            raise Error(f"{folder} cannot be locked: {error.strerror}") from error
    _locks.add(descriptor)
    try:
        yield
    finally:
        _locks.discard(descriptor)
        os.close(descriptor)
