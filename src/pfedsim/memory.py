"""How much memory reading a file may take. Readers learn the size from a file's header and ask here before they
allocate anything."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pfedsim.errors import Error

SETTING = "PFEDSIM_MEMORY"
UNITS = {unit: 1 << (10 * power) for power, unit in enumerate(("", "K", "M", "G", "T"))}
SMALL = 1 << 24  # bytes; so little is always allowed, unless PFEDSIM_MEMORY forbids it


def need(what: object, size: int) -> None:
    """Raise an error if `what` needs more bytes than are allowed; the message says how to allow them."""
    asked = os.environ.get(SETTING)
    if size <= SMALL and not asked:
        return
    allowed = _parsed(asked) if asked else free()
    if size > allowed:
        limit = f"{SETTING} allows {shown(allowed)}" if asked else f"{shown(allowed)} are free here"
        raise Error(
            f"{what} needs {shown(size)} of memory, {limit}; set {SETTING}={size // UNITS['G'] + 1}G to try "
            "anyway"
        )


def free() -> int:
    """The bytes that this process can still get: the machine's, or its container's if they are fewer."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
    if (line := re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))) is not None:
        found = [int(line[1]) << 10]
    group = Path("/sys/fs/cgroup")
    for top, used, cache in (
        ("memory.max", "memory.current", "memory.stat"),  # version 2, then version 1
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, taken = _text(group / top).strip(), _text(group / used).strip()
        if limit.isdecimal() and taken.isdecimal():
            idle = re.search(r"^(?:total_)?inactive_file (\d+)", _text(group / cache), re.MULTILINE)
            found.append(int(limit) - int(taken) + (int(idle[1]) if idle else 0))
    return max(0, min(found))


def shown(size: int) -> str:
    """A number of bytes in readable units."""
    for unit in ("G", "M", "K"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:,.1f} {unit}iB"
    return f"{size} bytes"


def _parsed(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip().replace(" ", ""), re.IGNORECASE)
    if found is None:
        raise Error(f"{SETTING}={text!r}: give a number of bytes such as 8G")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
