"""A disk that can lose power: records what a command does to a folder and gives the states that a power loss
may leave after every operation.

What a flush (fsync) covered is there after a power loss. Of the rest, any part may be lost: a file's content since
its last flush may be there, missing, cut or zero; each new name, rename and deletion in a folder since the folder's
last flush may have happened or not. Renames are atomic, and the operations on one file happen in order."""

from __future__ import annotations

import builtins
import io
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tree = dict[str, bytes | None]
"""a folder's files by relative path; None for a folder"""

FUNCTIONS = (
    "open",
    "write",
    "ftruncate",
    "replace",
    "rename",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "fsync",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(eq=False)
class File:
    """A file's content now, and at its last flush."""

    live: bytes = b""
    durable: bytes = b""

    def after(self, kind: str) -> bytes:
        """The content after a power loss: "old", "new", "cut" or "zero"."""
        old, new = self.durable, self.live
        if kind == "old" or old == new:
            return old
        if kind == "new":
            return new
        same = next(
            (k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
        )
        middle = (same + len(new)) // 2
        if kind == "cut":
            return new[:middle]
        return new[:same] + bytes(len(new) - same)


@dataclass(eq=False)
class Folder:
    """A folder's entries now, and at its last flush."""

    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = File | Folder


@dataclass(eq=False)
class Operation:
    """Changes of entries that happen together: (folder, name, what it now names or None)."""

    changes: list[tuple[Folder, str, Node | None]]
    nodes: set[int]

    @property
    def home(self) -> Folder:
        """The folder whose flush makes it durable: the one that gains an entry."""
        return next((f for f, _, node in self.changes if node is not None), self.changes[0][0])


@dataclass(frozen=True)
class Loss:
    """A state after a power loss: at which operation, how, and what the command had promised by then."""

    operation: int
    how: str
    tree: Tree
    promise: Any

    def restore(self, place: Path) -> None:
        """Write the state into this folder."""
        place.mkdir()
        for name, content in sorted(self.tree.items()):
            if content is None:
                (place / name).mkdir()
            else:
                (place / name).write_bytes(content)


class Disk:
    """Records the operations on a folder. `draws`: random states for every operation, beside the five plain ones."""

    def __init__(self, root: Path, draws: int, seed: int = 0):
        self.root, self.promise = root, None
        self.operations = self.states = 0
        self.losses: list[Loss] = []
        self._draws, self._random = draws, random.Random(seed)
        self._folder, self._pending = Folder(), list[Operation]()
        self._inodes: dict[int, Node] = {}
        self._seen: set[tuple[Any, frozenset[tuple[str, bytes | None]]]] = set()
        self._lock = threading.RLock()
        self._look()
        self._settle(self._folder)
        self._pending.clear()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens in this block, in any thread."""
        before = {name: getattr(os, name) for name in FUNCTIONS}
        opened = builtins.open
        for name, original in before.items():
            setattr(os, name, self._watched(name, original))
        builtins.open = io.open = self._watched("file", opened)  # type: ignore[assignment]
        try:
            yield
        finally:
            builtins.open = io.open = opened
            for name, original in before.items():
                setattr(os, name, original)
        self._step()

    def promised(self, what: Any) -> None:
        """From here on the command counts on this."""
        with self._lock:
            self.promise = what
            self._lose()

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & WRITES:
                return original(*arguments, **options)
            if name == "file" and not set("wax+") & set(options.get("mode", (*arguments, "r", "r")[1])):
                return original(*arguments, **options)
            with self._lock:
                self._step()  # what libraries wrote meanwhile
                try:
                    return original(*arguments, **options)
                finally:
                    self._step(arguments[0] if name == "fsync" else None)

        return call

    def _step(self, flushed: int | None = None) -> None:
        changed = self._look()
        if flushed is not None:
            node = self._inodes.get(os.fstat(flushed).st_ino)
            changed = node is not None
            if isinstance(node, File):
                node.durable = node.live
            elif node is not None:
                self._flush(node)
        if changed:
            self.operations += 1
            self._lose()

    def _flush(self, folder: Folder) -> None:
        for operation in self._pending:
            if operation.home is folder:
                for place, name, node in operation.changes:
                    _set(place.durable, name, node)
        self._pending = [operation for operation in self._pending if operation.home is not folder]

    def _settle(self, folder: Folder) -> None:
        folder.durable = dict(folder.live)
        for node in folder.live.values():
            if isinstance(node, Folder):
                self._settle(node)
            else:
                node.durable = node.live

    def _look(self) -> bool:
        """Take over what has changed in the real folder; whether anything has."""
        changes: list[tuple[Folder, str, Node | None]] = []
        inodes: dict[int, Node] = {}
        rewritten = self._compare(self._folder, self.root, changes, inodes)
        inodes[self.root.stat().st_ino] = self._folder
        self._inodes = inodes
        if changes:
            touched = {id(node) for _, _, node in changes if node is not None}
            touched |= {id(place.live[name]) for place, name, node in changes if name in place.live}
            self._pending.append(Operation(changes, touched))
            for place, name, node in changes:
                _set(place.live, name, node)
        return bool(changes) or rewritten

    def _compare(self, folder: Folder, path: Path, changes: list[Any], inodes: dict[int, Node]) -> bool:
        rewritten = False
        names = set(os.listdir(path))
        for name in sorted(names):
            about = os.lstat(path / name)
            is_folder = stat.S_ISDIR(about.st_mode)
            node = self._inodes.get(about.st_ino)
            if node is None or isinstance(node, Folder) != is_folder:
                node = Folder() if is_folder else File()
            inodes[about.st_ino] = node
            if folder.live.get(name) is not node:
                changes.append((folder, name, node))
            if isinstance(node, Folder):
                rewritten |= self._compare(node, path / name, changes, inodes)
            else:
                content = _content(path / name)
                rewritten |= content != node.live
                node.live = content
        changes += [(folder, name, None) for name in sorted(folder.live.keys() - names)]
        return rewritten

    def _lose(self) -> None:
        """The states that a power loss may leave now."""
        self._keep("all that was not flushed is lost", [], lambda file: "old")
        for kind, how in (("old", "lost"), ("cut", "cut"), ("zero", "zero"), ("new", "there")):
            what = f"all names are there, contents that were not flushed are {how}"
            self._keep(what, self._pending, lambda file, kind=kind: kind)  # type: ignore[misc]
        for _ in range(self._draws):
            some = self._some()
            kinds = {id(file): self._random.choice(("old", "cut", "zero", "new")) for file in self._files()}
            self._keep(
                "some of what was not flushed is there", some, lambda file, kinds=kinds: kinds[id(file)]
            )

    def _files(self) -> Iterator[File]:
        waiting: list[Node] = [self._folder]
        seen: set[int] = set()
        waiting += [node for op in self._pending for _, _, node in op.changes if node is not None]
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Folder):
                waiting += [*node.live.values(), *node.durable.values()]
            else:
                yield node

    def _some(self) -> list[Operation]:
        """A random part of the pending operations; with each, the earlier ones on the same file."""
        chosen = [operation for operation in self._pending if self._random.random() < 0.5]
        needed = {id(operation) for operation in chosen}
        nodes: set[int] = set()
        for operation in reversed(self._pending):
            if id(operation) in needed or operation.nodes & nodes:
                needed.add(id(operation))
                nodes |= operation.nodes
        return [operation for operation in self._pending if id(operation) in needed]

    def _keep(self, how: str, applied: Sequence[Operation], kind: Callable[[File], str]) -> None:
        entries: dict[int, dict[str, Node]] = {}
        for operation in applied:
            for place, name, node in operation.changes:
                _set(entries.setdefault(id(place), dict(place.durable)), name, node)
        tree: Tree = {}

        def walk(folder: Folder, above: str) -> None:
            for name, node in entries.get(id(folder), folder.durable).items():
                if isinstance(node, Folder):
                    tree[above + name] = None
                    walk(node, f"{above}{name}/")
                else:
                    tree[above + name] = node.after(kind(node))

        walk(self._folder, "")
        self.states += 1
        state = self.promise, frozenset(tree.items())
        if state not in self._seen:
            self._seen.add(state)
            self.losses.append(Loss(self.operations, how, tree, self.promise))


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _content(path: Path) -> bytes:
    """Read without the functions that are watched."""
    with io.FileIO(path) as file:
        return file.readall()
