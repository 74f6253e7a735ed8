"""Puts plausible bugs into a copy of the code, one at a time, and checks that a test fails with each.

    python benchmarks/mutants.py                    every mutant of benchmarks/mutants.toml
    python benchmarks/mutants.py --only fedprox     those whose name contains this

A mutant is a name, a file, an old text that occurs in it once, a new text, and the tests to run. One with a
`because` changes nothing that a test could see, and says why. Results go into benchmarks/mutants.json as they
come; a second call runs only mutants whose text, file or tests have changed since."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "paper", "docs", "pyproject.toml")
PATIENCE = 600  # seconds; tests that take longer hang, and so have noticed the bug


@dataclass(frozen=True)
class Mutant:
    """One bug, and the tests that should notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    because: str = ""

    def applied(self, text: str) -> str:
        """The file with the bug."""
        count = text.count(self.old)
        if count != 1:
            raise SystemExit(
                f"mutant {self.name}: its old text occurs {count} times in {self.file}, expected once"
            )
        return text.replace(self.old, self.new)

    @cached_property
    def digest(self) -> str:
        """Changes when the mutant, its file or one of its tests does; fixed before the copies are made."""
        h = hashlib.sha256(repr(self).encode())
        for name in (self.file, *self.tests):
            path = ROOT / name.partition("::")[0]
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                h.update(file.read_bytes())
        return h.hexdigest()[:16]


def read(path: Path) -> list[Mutant]:
    """The mutants of a file, each checked against the code."""
    mutants = [
        Mutant(file=group["file"], tests=tuple(group["tests"]), **entry)
        for group in tomllib.loads(path.read_text())["group"]
        for entry in group["mutant"]
    ]
    names = [m.name for m in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SystemExit(f"two mutants are called {min(twice)}")
    for mutant in mutants:
        mutant.applied((ROOT / mutant.file).read_text())
        for test in mutant.tests:
            if not (ROOT / test.partition("::")[0]).exists():
                raise SystemExit(f"mutant {mutant.name}: there is no test file {test}")
    return mutants


def copy(place: Path) -> Path:
    """A copy of the code and its tests, which mutants may change."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy2(source, place / name)
    return place


def failure(place: Path, tests: Iterable[str]) -> str:
    """The first test that fails in this copy, or nothing."""
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(str(place / name) for name in ("src", "paper/src", "tests")),
        "PYTHONDONTWRITEBYTECODE": "1",  # a second change within a second would go unseen
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "hangs"
    if process.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    if process.returncode != 1 or found is None:  # tests that cannot be imported have noticed nothing
        raise SystemExit(
            f"pytest cannot run {' '.join(tests)}: it ended with {process.returncode}\n{said[-2000:]}"
        )
    return found[1]


def tried(mutant: Mutant, copies: Queue[Path]) -> dict[str, Any]:
    """What came of one mutant."""
    place = copies.get()
    file = place / mutant.file
    original, began = file.read_text(), time.monotonic()
    try:
        file.write_text(mutant.applied(original))
        by = failure(place, mutant.tests)
    finally:
        file.write_text(original)
        copies.put(place)
    seconds = round(time.monotonic() - began, 1)
    return {"file": mutant.file, "caught_by": by, "seconds": seconds, "digest": mutant.digest}


def run(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Every mutant and what came of it, as soon as it is known; so many at a time, each in its own copy."""
    if not mutants:
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Path] = Queue()
        for k in range(jobs):
            copies.put(copy(Path(folder) / str(k)))
        if broken := failure(Path(folder) / "0", sorted({test for m in mutants for test in m.tests})):
            raise SystemExit(f"{broken} fails without any bug: mend it first")
        started = {pool.submit(tried, mutant, copies): mutant for mutant in mutants}
        try:
            for future in as_completed(started):
                yield started[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def verdict(mutant: Mutant, result: dict[str, Any]) -> str:
    if result["caught_by"]:
        return f"caught by {result['caught_by']}"
    return f"changes nothing: {mutant.because}" if mutant.because else "NOT CAUGHT"


def report(mutants: list[Mutant], results: dict[str, Any]) -> bool:
    """Prints the table and the score; whether every mutant that can be caught is."""
    print("\n| mutant | file | verdict |\n|---|---|---|")
    for mutant in mutants:
        print(f"| {mutant.name} | {mutant.file} | {verdict(mutant, results[mutant.name])} |")
    caught = [m for m in mutants if results[m.name]["caught_by"]]
    nothing = [m for m in mutants if m.because and m not in caught]
    score = f"{len(caught)} of {len(mutants) - len(nothing)} mutants are caught"
    print(f"\n{score}; {len(nothing)} more {'changes' if len(nothing) == 1 else 'change'} nothing.")
    return len(caught) + len(nothing) == len(mutants)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", metavar="NAME", help="mutants whose name contains this")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    options.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "mutants.json")
    asked = options.parse_args()
    everything = read(ROOT / "benchmarks" / "mutants.toml")
    mutants, names = [m for m in everything if asked.only in m.name], {m.name for m in everything}
    if not mutants:
        raise SystemExit(f"no mutant has {asked.only!r} in its name")
    results: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    due = [m for m in mutants if results.get(m.name, {}).get("digest") != m.digest]
    for mutant, result in run(due, asked.jobs):
        results[mutant.name] = result
        known = {name: results[name] for name in sorted(results) if name in names}
        asked.out.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{mutant.name}: {verdict(mutant, result)} ({result['seconds']} s)", flush=True)
    sys.exit(0 if report(mutants, results) else 1)


if __name__ == "__main__":
    main()
