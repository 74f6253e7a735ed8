"""Prints the size of the Python code: lines and statements by room, the longest file and the longest function.

    python benchmarks/sizes.py              the work tree
    python benchmarks/sizes.py a4d4dd2      a commit

Statements do not depend on how the code is formatted, lines do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = 50  # lines of a function that deserves a second look
SINCE_MOVED = {  # files of older commits -> the room that holds their code today
    "core": "client guard job layout method rows scoring seeds server settings",
    "dev": "anatomy bench conformance",
    "data": "federation",
    "export": "personal",
    "experiments": "runs/compare studies/cells studies/packing studies/runner",
    "paper": "cli/reproduce",
}
ROOM_OF = {f"{name}.py": room for room, names in SINCE_MOVED.items() for name in names.split()}


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def sources(commit: str | None) -> Iterator[tuple[str, str]]:
    """The path and text of every Python file."""
    listed = git("ls-tree", "-r", "--name-only", commit) if commit else git("ls-files")
    for path in listed.splitlines():
        if path.endswith(".py"):
            yield path, git("show", f"{commit}:{path}") if commit else (ROOT / path).read_text()


def room_of(path: str) -> str:
    """`core` for src/pfedsim/core/job.py, `(top)` for src/pfedsim/api.py, `tests` for tests/test_api.py."""
    if path.startswith("src/pfedsim/"):
        inside = path.removeprefix("src/pfedsim/")
        first = inside.partition("/")[0] if "/" in inside else "(top)"
        return ROOM_OF.get(inside, "paper" if first == "studies" else first)
    if path.startswith("paper/"):
        return "paper" if "/src/" in path else "tests of paper"
    return path.partition("/")[0]


def main() -> None:
    lines: Counter[str] = Counter()
    statements: Counter[str] = Counter()
    files: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for path, text in sources(sys.argv[1] if len(sys.argv) > 1 else None):
        nodes = list(ast.walk(ast.parse(text)))
        lines[room_of(path)] += len(text.splitlines())
        statements[room_of(path)] += sum(isinstance(node, ast.stmt) for node in nodes)
        if "src/" in path:
            files.append((len(text.splitlines()), path))
            functions += [
                ((node.end_lineno or 0) - node.lineno + 1, f"{path}:{node.lineno} {node.name}")
                for node in nodes
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    outside = ("benchmarks", "setup.py", "tests", "tests of paper")
    for count in (lines, statements):
        count["all of src"] = sum(n for room, n in count.items() if room not in outside)
    for room in sorted(lines):
        print(f"{room:15} {lines[room]:6} lines {statements[room]:6} statements")
    print("longest file: {} lines, {}".format(*max(files)))
    long = sorted((f for f in functions if f[0] > LONG), reverse=True)
    print(f"functions over {LONG} lines: {len(long)} of {len(functions)}")
    for count, place in long:
        print(f"    {count} lines, {place}")


if __name__ == "__main__":
    main()
