"""Damages every file of a run, a comparison, an export, finished cells and a data set, and counts what each command
that reads it does: refuse it, give the same result as with the intact file, or give another one without a word.

    python benchmarks/damages.py --out benchmarks/damages.json

The kinds of damage: one bit flipped, cut at a random place, emptied, deleted, exchanged with another file of the
folder, replaced by a link to another file of the folder. Every command runs on a fresh copy. A command that ends with 0
must print and write exactly what it does for the intact folder ("same"), say that something is missing ("said"), or
leave the folder as it was before the damage ("healed"). Anything else is silent."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from typer.testing import CliRunner

from pfedsim.cli.app import app
from pfedsim.errors import Error

VECTORS = rb"data:image/svg[^\"']*"
KINDS = ("flipped", "cut", "emptied", "deleted", "exchanged", "linked")
FEW = ("--rounds", "2", "--clients", "4", "--epochs", "1", "--workers", "1")
CELLS = [w for k in ("rounds=2", "clients=4", "epochs=1", "minimum=10") for w in ("--set", k)]
STUDY = ["reproduce", "accuracy", "--data", "digits", "--methods", "local,fedavg", "--alpha", "0.5", *CELLS]


@dataclass(frozen=True)
class Subject:
    """Something on disk, made by commands in the working directory, and the commands that read it."""

    folder: str
    make: list[list[str]]
    read: dict[str, list[str]]
    skip: tuple[str, ...] = field(default=())
    """files that no command reads: pages and pictures for people"""


SUBJECTS = {
    "run": Subject(
        "run",
        [["run", "--data", "digits", "--method", "pfedsim", *FEW, "--out", "run"]],
        {
            "show": ["show", "run"],
            "show --html": ["show", "run", "--html"],
            "doctor": ["doctor", "run"],
            "watch": ["watch", "run"],
            "export --all": ["export", "run", "exported", "--all"],
            "run --extend": [
                "run",
                "--extend",
                "run",
                "--rounds",
                "3",
                "--workers",
                "1",
                "--out",
                "longer",
            ],
            "resume": ["resume", "run", "--workers", "1"],
        },
    ),
    "comparison": Subject(
        "compared",
        [["compare", "--data", "digits", "--methods", "fedavg", *FEW, "--out", "compared"]],
        {
            "show": ["show", "compared"],
            "doctor": ["doctor", "compared"],
            "compare": ["compare", "--data", "digits", "--methods", "fedavg", *FEW, "--out", "compared"],
        },
        ("table.md", "table.tex", "table.csv", "gains.csv", "report.html", "figures"),
    ),
    "export": Subject(
        "exported",
        [
            ["run", "--data", "digits", *FEW, "--out", "run"],
            ["export", "run", "exported", "--client", "1"],
        ],
        {"predict": ["predict", "exported", "samples.npz", "--format", "csv"]},
        ("README.md",),
    ),
    "cells": Subject(
        "results",
        [[*STUDY, "--results", "results", "--jobs", "1", "--out", "report"]],
        {"reproduce --only-report": [*STUDY, "--results", "results", "--only-report", "--out", "report"]},
    ),
    "data set": Subject(
        "sets",
        [["data", "add", "mine", "sets/mine.csv", "--data-dir", "sets"]],
        {
            "data show": ["data", "show", "mine", "--data-dir", "sets", "--clients", "4"],
            "run": ["run", "--data", "mine", "--data-dir", "sets", *FEW, "--quiet", "--out", "trained"],
        },
    ),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    options.add_argument("--only", choices=SUBJECTS, help="one of the subjects")
    asked = options.parse_args()
    figures: dict[str, object] = {"command": "python benchmarks/damages.py " + " ".join(sys.argv[1:])}
    silent: list[str] = []
    for name in [asked.only] if asked.only else SUBJECTS:
        with tempfile.TemporaryDirectory(prefix="pfedsim-damages-") as place:
            figures[name], wrong = measured(SUBJECTS[name], Path(place))
            silent += [f"{name}: {what}" for what in wrong]
    figures["silent"] = silent
    print(json.dumps(figures, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(bool(silent))


def measured(subject: Subject, place: Path) -> tuple[dict[str, object], list[str]]:
    """For every command how often each damage was refused or changed nothing; and what passed without a word."""
    intact, copy = place / "intact", place / "copy"
    copy.mkdir()  # made where it is read: a data set that was added names its folder
    _inputs(copy)
    with _inside(copy):
        for command in subject.make:
            done = CliRunner().invoke(app, command)
            assert done.exit_code == 0, (command, done.output, done.exception)
    shutil.copytree(copy, intact)
    right = {}
    for name, command in subject.read.items():
        twice = [_result(intact, copy, command) for _ in range(2)]
        assert twice[0] == twice[1], f"{name} does not give the same twice"
        assert twice[0][0] == 0, f"{name}: {twice[0]}"
        right[name] = twice[0]
    counts = {name: {kind: Counter[str]() for kind in KINDS} for name in subject.read}
    silent, files = [], set()
    for file, kind, damage in damages(intact / subject.folder, subject.skip):
        files.add(file)
        said = ""
        for name, command in subject.read.items():
            code, found = _result(intact, copy, command, subject.folder, damage)
            outcome = "refused" if code else "said" if _said(found, file) else "silent"
            if (code, found) == right[name]:
                outcome = "same"
            elif code == 0 and _files(copy / subject.folder) == _files(intact / subject.folder):
                outcome = "healed"
            counts[name][kind][outcome] += 1
            silent += [f"{name}: {file} {kind}"] if outcome == "silent" else []
            said += f"  {name} {outcome}"
        print(f"{subject.folder}/{file} {kind}:{said}", file=sys.stderr)
    total = sum(sum(by.values()) for kinds in counts.values() for by in kinds.values())
    return {"files": len(files), "readings": total, "commands": counts}, silent


def damages(folder: Path, skip: tuple[str, ...]) -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    """Every file and every kind of damage that changes it, as a function of a copy of the folder."""
    draw = random.Random(11)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    files = [p for p in files if not set(p.relative_to(folder).parts) & set(skip)]
    for path in files:
        old, file = path.read_bytes(), str(path.relative_to(folder))
        others = [p for p in files if p.read_bytes() != old and p.suffix == path.suffix] or [
            p for p in files if p.read_bytes() != old
        ]
        other = str(draw.choice(others).relative_to(folder)) if others else ""
        at = draw.randrange(len(old)) if old else 0
        flipped = bytes([old[at] ^ (1 << draw.randrange(8))]) if old else b"x"
        new = {"flipped": old[:at] + flipped + old[at + 1 :], "cut": old[:at], "emptied": b""}
        for kind, content in new.items():
            if content != old:
                yield file, kind, lambda c, content=content, file=file: _write(c / file, content)  # type: ignore[misc]
        yield file, "deleted", lambda c, file=file: (c / file).unlink()  # type: ignore[misc]
        if other:
            yield file, "exchanged", lambda c, file=file, other=other: _exchange(c / file, c / other)  # type: ignore[misc]
            yield file, "linked", lambda c, file=file, other=other: _link(c / file, c / other)  # type: ignore[misc]


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _exchange(a: Path, b: Path) -> None:
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def _link(a: Path, b: Path) -> None:
    a.unlink()
    a.symlink_to(b)


def _inputs(place: Path) -> None:
    """Samples to predict and a table of our own to add: the digits, and a part of them."""
    from pfedsim.data import read

    digits = read("digits")
    np.savez(place / "samples.npz", x=digits.x[:20], y=digits.y[:20])
    (place / "sets").mkdir()
    rows = digits.x[:240, 0, ::4, ::4].reshape(240, -1)
    lines = [",".join([*(f"p{k}" for k in range(rows.shape[1])), "label"])]
    lines += [",".join([*map(str, row), f"c{y}"]) for row, y in zip(rows, digits.y, strict=False)]
    (place / "sets" / "mine.csv").write_text("\n".join(lines) + "\n")


class _inside:
    def __init__(self, place: Path):
        self._place, self._before = place, Path.cwd()

    def __enter__(self) -> None:
        os.chdir(self._place)

    def __exit__(self, *_: object) -> None:
        os.chdir(self._before)


def _result(
    intact: Path,
    copy: Path,
    command: list[str],
    folder: str = "",
    damage: Callable[[Path], None] = lambda _: None,
) -> tuple[int, dict[str, str]]:
    """The exit code of a command on a copy, what it prints and the files that it writes. A traceback stops us."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(intact, copy)
    damage(copy / folder)
    before = _files(copy)
    with _inside(copy):
        done = CliRunner().invoke(app, command)
    pyplot.close("all")  # of a command that was refused while it drew
    if isinstance(done.exception, Error):
        assert "\n" not in str(done.exception), done.exception
        return 2, {"stderr": str(done.exception)}
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    after = {name: text for name, text in _files(copy).items() if before.get(name) != text}
    return done.exit_code, {**after, "printed": _timeless(done.output)}


def _files(folder: Path) -> dict[str, str]:
    """The files of a folder by digest, without those that hold times, and without vector pictures, whose names for
    their parts are random."""
    skip = ("manifest.json", "timings.jsonl")
    return {
        str(p.relative_to(folder)): sha256(re.sub(VECTORS, b"", p.read_bytes())).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in skip and p.suffix != ".svg" and "checkpoint" not in p.parts
    }


def _timeless(text: str) -> str:
    return re.sub(r", [\d:]+ left", "", text)


def _said(found: dict[str, str], file: str) -> bool:
    """Whether what was printed names the damaged file, or says that a cell or run is missing or not
    finished."""
    said = (Path(file).name, "1 of 2 runs are done", "stopped after round", "is left out: it, or")
    return any(words in found["printed"] for words in said)


if __name__ == "__main__":
    main()
