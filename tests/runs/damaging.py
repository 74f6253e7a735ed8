"""Ways in which files go bad."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

Damage = Callable[
    [bytes, bytes, random.Random], bytes | None
]  # a file's bytes, another run's of that name, draws -> its bytes; None: gone


def _flipped(old: bytes, other: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(old))
    return old[:place] + bytes([old[place] ^ (1 << draw.randrange(8))]) + old[place + 1 :]


KINDS: dict[str, Damage] = {
    "truncated": lambda old, other, draw: old[: draw.randrange(len(old))],
    "flipped": _flipped,
    "missing": lambda old, other, draw: None,
    "empty": lambda old, other, draw: b"",
    "swapped": lambda old, other, draw: other,
    "foreign": lambda old, other, draw: b"PK\x03\x04" + draw.randbytes(200),
    "other words": lambda old, other, draw: b'{"format": "thesis", "chapters": [1, 2]}\n',
}


def damaged(folder: Path, other: Path) -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    """Every file of a folder, each way to damage it that changes it, and what does so to a copy of the
    folder."""
    draw = random.Random(7)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        old = path.read_bytes()
        twin = other / name
        for kind, damage in KINDS.items():
            new = damage(old, twin.read_bytes() if twin.is_file() else b"", draw) if old else b"surprise"
            if new == old:
                continue

            def do(copy: Path, name: str = name, new: bytes | None = new) -> None:
                (copy / name).unlink() if new is None else (copy / name).write_bytes(new)

            yield name, kind, do
