"""Files and folders that survive a power loss: atomic writes, append-only logs, folders that appear complete, locks.

No symbolic link is followed when something is written or deleted, and names of work in progress are unique."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from pfedsim.errors import Error

BLOCK = 1 << 20
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
Bytes = bytes | memoryview
IN_PROGRESS = re.compile(r"(.+)\.[0-9a-f]{8}\.pfedsim")


def final_name(name: str) -> str:
    """The name that a file or folder will have once it is complete."""
    in_progress = IN_PROGRESS.fullmatch(name)
    return in_progress[1] if in_progress else name


def write(path: Path, *chunks: Bytes, flush: bool = True, settle: bool = True) -> str:
    """Write a file atomically and return its sha256: a temporary file is written, flushed to disk and renamed.
    `settle`: flush the folder as well, which makes the new name durable."""
    digest = hashlib.sha256()
    with _room(path, chunks):
        aside, descriptor = _begin(path, lambda aside: os.open(aside, NEW, 0o666))
        try:
            try:
                for chunk in chunks:
                    digest.update(chunk)
                    _put(descriptor, chunk)
                if flush:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        if flush and settle:
            flush_folder(path.parent)
    return digest.hexdigest()


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, all durable. If it exists, what killed processes left in progress
    there is deleted."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        with _room(folder, []):
            folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)
    if not missing:
        _collect(path)


def flush_tree(path: Path) -> None:
    """Flush every file and folder in this folder to disk."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            flush(Path(folder, name))
        flush_folder(Path(folder))


def refuse_link(path: Path) -> None:
    """Raise an error if this is a symbolic link."""
    if path.is_symlink():
        raise Error(
            f"{path} is a symbolic link; pfedsim does not write or delete through links: put the original "
            "in its place, or choose another folder"
        )


def remove(folder: Path, ours: Callable[[str], bool]) -> None:
    """Delete the files and empty folders whose names, relative to this folder, are `ours`, then the folder itself
    if it is empty. No link is followed."""
    refuse_link(folder)
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(place, name)
            if not ours(str(path.relative_to(folder))):
                continue
            if path.is_dir() and not path.is_symlink():
                remove_empty(path)
            else:
                path.unlink()
    if folder.is_dir():
        remove_empty(folder)


def remove_empty(folder: Path) -> None:
    """Delete a folder, unless something is in it."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


class Taken(Error):
    """Another process has created the folder meanwhile."""


@contextmanager
def building(target: Path, flush: bool = True) -> Iterator[Path]:
    """A new folder under a unique name. It becomes `target` when the block ends, complete and flushed to disk; if
    the block fails, it is deleted."""
    make_folder(target.parent)
    with _room(target, []):
        aside, descriptor = _begin(target, _open_new_folder)
    _locks.add(descriptor)
    try:
        yield aside
        if flush:
            flush_tree(aside)
        try:
            os.rename(aside, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise Taken(
                f"{target} was created by another process meanwhile; choose another folder"
            ) from error
        if flush:
            flush_folder(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _locks.discard(descriptor)
        os.close(descriptor)


def _begin(target: Path, create: Callable[[Path], int]) -> tuple[Path, int]:
    """A new file or folder beside `target` under a unique name, locked as long as it is in progress."""
    while True:
        aside = target.with_name(f"{target.name}.{token_hex(4)}.pfedsim")
        with suppress(FileNotFoundError):  # another process's `_collect` was faster than our lock
            descriptor = create(aside)
            with suppress(OSError):  # a file system that cannot lock: `_collect` deletes nothing there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return aside, descriptor
            os.close(descriptor)
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))


def _open_new_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _collect(folder: Path) -> None:
    """Delete the files and folders in progress in this folder whose process has ended."""
    for path in folder.iterdir():
        if IN_PROGRESS.fullmatch(path.name) and not path.is_symlink():
            with suppress(OSError):  # it is in use, or gone
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                finally:
                    os.close(descriptor)


def flush_folder(path: Path) -> None:
    """Flush renames and deletions in this folder to disk, where the file system supports it."""
    flush(path)


def flush(path: Path) -> None:
    """Flush a file's content to disk."""
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


SETTLED = 2_000_000_000  # nanoseconds after which a change cannot have the same time, on any file system
_digests: dict[tuple[int, ...], str] = {}  # of files that this process has read: inode, size and times


def _known_digest(path: Path) -> str:
    """The sha256 of a file, computed once while its inode, size and times stay the same."""
    state = os.stat(path)
    key = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
    found = _digests.get(key) or digest_of(path)[0]
    if time.time_ns() - state.st_ctime_ns > SETTLED:
        _digests[key] = found
    return found


def verify(path: Path, digest: str, length: int | None = None) -> None:
    """Raise an error unless the file (or its first `length` bytes) has this sha256."""
    try:
        found = _known_digest(path) if length is None else digest_of(path, length)[0]
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    if found != digest:
        raise Error(f"{path} is damaged: its sha256 differs from the recorded one")


class Log:
    """An append-only file that tracks its length and sha256, which checkpoints record."""

    def __init__(self, path: Path, keep: int = 0):
        self._path, self.name, self._hash, self.size = path, path.name, hashlib.sha256(), 0
        self._descriptor = _own_file(path)
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


def _own_file(path: Path) -> int:
    """Open or create a file that is changed in place, which must have no other name."""
    refuse_link(path)
    with _room(path, []):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise Error(
            f"{path} has a second name (a hard link), and writing would change both; put a copy in its place"
        )
    return descriptor


def _put(descriptor: int, chunk: Bytes) -> None:
    rest = memoryview(chunk).cast("B")
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


class Unwritable(Error):
    """A file or folder cannot be written."""


@contextmanager
def _room(path: Path, chunks: Sequence[Bytes]) -> Iterator[None]:
    """Turn write errors into an Error; for a full disk, it says how many bytes were needed."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise Unwritable(f"{path} cannot be written: {error.strerror}") from error
        needed, free = sum(memoryview(c).nbytes for c in chunks), shutil.disk_usage(path.parent).free
        raise Unwritable(
            f"{path}: no room for its {needed:,} bytes ({error.strerror}; {free:,} are free); earlier "
            "checkpoints are intact: free some space, then continue (a run with pfedsim resume)"
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
    timings = folder / "timings.jsonl"
    refuse_link(timings)
    try:
        descriptor = os.open(timings, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:  # a run in a read-only folder or file system can still be examined
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Error(f"{folder} cannot be locked: {error.strerror}") from error
        try:
            descriptor = os.open(timings, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:  # nothing to lock, and nobody who could write
            yield
            return
    with _exclusive(descriptor, folder):
        yield


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Lock a folder that is not a run's for this process."""
    refuse_link(folder)
    with _exclusive(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW), folder):
        yield


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Lock a folder that is not a run's for this process, and wait while another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with _exclusive(descriptor, folder, fcntl.LOCK_EX):
        yield


@contextmanager
def _exclusive(descriptor: int, folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> Iterator[None]:
    try:
        fcntl.flock(descriptor, how)
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
