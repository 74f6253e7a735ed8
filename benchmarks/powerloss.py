"""Takes the power away after every file operation of a command, runs the command again, and holds every byte against
one that was never disturbed.

    python benchmarks/powerloss.py --draws 6 --out benchmarks/powerloss.json

`disk.py` says what a power loss may leave. For each such state: a run that counts as finished is intact; what the
command had promised (a saved round, an exported client, a finished cell) is there; and the same command again ends
with the bytes of an undisturbed one."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from disk import Disk, Loss
from PIL import Image

from pfedsim.cli import data as data_commands
from pfedsim.core.server import State
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.fetch import get, sources
from pfedsim.data.partition import Partition, Split
from pfedsim.durable import digest_of, verify
from pfedsim.experiments.cell import Cell
from pfedsim.experiments.compare import compare
from pfedsim.experiments.distil import run_cell
from pfedsim.experiments.store import Store
from pfedsim.export.write import export
from pfedsim.report import comparison
from pfedsim.runs.checkpoint import Saver, latest
from pfedsim.runs.config import Config, check
from pfedsim.runs.execute import execute
from pfedsim.runs.extend import extend
from pfedsim.runs.names import SUMS
from pfedsim.runs.reader import Run, has_begun, sums_of

MAY_DIFFER = {"timings.jsonl", "manifest.json"}
METHODS = ("fedavg", "pfedsim(rho=0.4)", "feddyn")
WORDS = {
    "model": "mlp",
    "rounds": 3,
    "join": 0.7,
    "epochs": 1,
    "batch": 8,
    "backend": "torch",
    "workers": 1,
    "score": {"every": 2, "finetune": 0},
}
FINISHED = "finished"


def federation() -> Federation:
    """Three clients with a few rows of a table."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 36)
    x = (draw.normal(size=(36, 4)) + np.eye(2, 4)[y]).astype(np.float32)
    data = DataSet("table", x, y, ("a", "b"), (0.0,) * 4, (1.0,) * 4)
    parts = np.split(np.arange(36), [8, 12, 20, 24, 32])
    clients = tuple(Split(train, test) for train, test in zip(parts[::2], parts[1::2], strict=True))
    return Federation(data, Partition(clients, {}, data.digest))


def config(**words: Any) -> Config:
    return check({**WORDS, **words})


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by name; of those that may differ only the name."""
    files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: b"" if p.name in MAY_DIFFER else p.read_bytes() for name, p in files.items()}


@dataclass
class Work:
    """A command: `do` it in a folder, telling what it promises; what has been `prepared` there before; and what must
    hold of a state and its promise (`wrong` says what does not). `again`, if the same command would refuse."""

    do: Callable[[Path, Callable[[Any], None]], None]
    wrong: Callable[[Path, Any], str] = lambda folder, promise: ""
    prepare: Callable[[Path], None] = lambda folder: None
    again: Callable[[Path], None] | None = None
    result: Callable[[Path], Mapping[str, Any]] = contents
    in_background: bool = False
    """rounds are saved in a thread, as always; the order of operations then differs from time to time"""

    def losses(self, place: Path, draws: int) -> tuple[Disk, Mapping[str, Any]]:
        """Do it once, recorded; the states that a power loss leaves, and the undisturbed result."""
        place.mkdir()
        self.prepare(place)
        disk = Disk(place, draws)
        with disk.recording(), saving(disk.promised, self.in_background):
            self.do(place, disk.promised)
        disk.promised(FINISHED)
        return disk, self.result(place)

    def flaw(self, loss: Loss, place: Path, expected: Mapping[str, Any]) -> str:
        """What is lost in this state; "" if nothing is."""
        shutil.rmtree(place, ignore_errors=True)
        loss.restore(place)
        try:
            if flaw := self.wrong(place, loss.promise):
                return flaw
            if self.again:
                self.again(place)
            else:
                self.do(place, lambda promise: None)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        found = self.result(place)
        names = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
        return f"other bytes in {names}" if names else ""


@contextmanager
def saving(promised: Callable[[Any], None], in_background: bool) -> Iterator[None]:
    """Every round that is saved is a promise. Unless in the background, each is saved before the next begins."""
    commit = Saver._commit

    def promises(saver: Saver, state: State, record: dict[str, Any]) -> None:
        commit(saver, state, record)
        promised(state.server.round)

    def save(saver: Saver, state: State, record: Mapping[str, Any]) -> None:
        saver._commit(state, {**record, "logs": {log.name: log.mark() for log in saver._logs}})

    with (
        patch.object(Saver, "_commit", promises),
        patch.object(Saver, "save", Saver.save if in_background else save),
    ):
        yield


def wrong_run(run: Path, promise: Any) -> str:
    """A run that counts as finished must be intact; a round that was saved must be there."""
    if (run / "summary.json").is_file():
        for name, digest in sums_of(run / SUMS).items():
            verify(run / name, digest)
    elif promise == FINISHED:
        return "the run was finished and is not any more"
    elif promise is not None:
        found, wrong = latest(run, digest_of(run / "config.toml")[0])
        if found is None or found.state.server.round < promise:
            return f"round {promise} was saved and is lost ({'; '.join(wrong)})"
    return ""


def runs(method: str, in_background: bool = False, **words: Any) -> Work:
    data, asked = federation(), config(method=method, **words)

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        execute(asked, folder / "run", data, resume=True)

    def wrong(folder: Path, promise: Any) -> str:
        return wrong_run(folder / "run", promise)

    return Work(do, wrong, in_background=in_background)


def resumes(method: str) -> Work:
    """A stopped run goes on, with the last checkpoint damaged, so that logs are cut and written again."""
    plain = runs(method, rounds=3)

    def prepare(folder: Path) -> None:
        asked = config(method=method, rounds=3)
        with contextlib.suppress(ZeroDivisionError):
            execute(asked, folder / "run", federation(), lambda done: bool(1 / (2 - done.round)))  # type: ignore[arg-type, return-value]
        newest = max((folder / "run" / "checkpoint").glob("*.json"))
        newest.write_text("{")

    return Work(plain.do, plain.wrong, prepare)


def extends() -> Work:
    data = federation()

    def prepare(folder: Path) -> None:
        execute(config(method="fedavg", rounds=2), folder / "first", data)

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        if has_begun(folder / "longer"):
            execute(None, folder / "longer", data, resume=True, workers=1)
        else:
            extend(Run(folder / "first"), 3, folder / "longer", data, workers=1)

    def wrong(folder: Path, promise: Any) -> str:
        return wrong_run(folder / "longer", promise)

    return Work(do, wrong, prepare)


def compares() -> Work:
    data = federation()

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        asked = config(method="fedavg", rounds=2, score={"every": 0, "finetune": 0})
        result = compare(asked, ["fedavg"], [1], folder / "side", federation=data)
        with patch("pfedsim.report.comparison._pictures", lambda found: []):  # they take a second each
            comparison.write(result, folder / "side")

    def wrong(folder: Path, promise: Any) -> str:
        for run in (folder / "side").glob("*-seed1"):
            if flaw := wrong_run(run, FINISHED if promise == FINISHED else None):
                return flaw
        return "" if promise != FINISHED or (folder / "side" / "gains.csv").is_file() else "a table is lost"

    return Work(do, wrong)


def exports() -> Work:
    data = federation()

    def prepare(folder: Path) -> None:
        execute(config(method="fedavg", rounds=1), folder / "run", data)

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        for client in range(3):
            export(
                Run(folder / "run"),
                client,
                folder / "out" / f"client-{client}",
                federation=data,
                samples=True,
            )
            promised(client)

    def wrong(folder: Path, promise: Any) -> str:
        number = {None: -1, FINISHED: 2}.get(promise, promise)
        lost = [
            c for c in range(number + 1) if not (folder / "out" / f"client-{c}" / "README.md").is_file()
        ]
        return f"client {lost[0]} was exported and is lost" if lost else ""

    return Work(do, wrong, prepare)


def adds() -> Work:
    def prepare(folder: Path) -> None:
        for k, word in enumerate(("cat", "cat", "dog", "dog")):
            path = folder / "photos" / word / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (40 * k, 9, 9)).save(path)

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        for path in (folder / "photos").rglob("*.png"):  # a copy has other times
            os.utime(path, (0, 0))
        with (
            patch.dict(os.environ, {"PFEDSIM_CACHE": str(folder / "cache")}),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            data_commands.add("pets", [folder / "photos"], folder / "sets")

    def wrong(folder: Path, promise: Any) -> str:
        return (
            "" if promise != FINISHED or (folder / "sets" / "pets.toml").is_file() else "the name is lost"
        )

    def result(folder: Path) -> Mapping[str, Any]:
        """The record and the cache. Its files are checked with every use, so only their names count here."""
        names = sorted(str(p.relative_to(folder)) for p in (folder / "cache").rglob("*"))
        return {**contents(folder / "sets"), "cache": names}

    return Work(do, wrong, prepare, result=result)


def gets() -> Work:
    """From a publisher whose server is a table of files; downloads come in two blocks."""
    pixel = io.BytesIO()
    Image.new("RGB", (32, 32)).save(pixel, "PNG")
    archives = {}
    for part in ("train", "test", "valid"):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for word in ("airplane", "truck"):
                member = tarfile.TarInfo(f"{part}/{word}/1.png")
                member.size = len(pixel.getvalue())
                tar.addfile(member, io.BytesIO(pixel.getvalue()))
        archives[f"https://publisher/{part}.tar"] = packed.getvalue()
    files = tuple(sources.File((url,), hashlib.sha256(body).hexdigest()) for url, body in archives.items())

    def more(self: get.Resuming, url: str) -> None:
        have = self._part.stat().st_size if self._part.is_file() else 0
        rest = archives[url][have:]
        with open(self._part, "ab") as file:
            for block in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
                file.write(block)
                file.flush()
                self._tell("downloading", 1, 1)

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        with (
            patch.dict(sources.SOURCES, {"cinic10": sources.Source(files)}),
            patch.object(get.Resuming, "_more", more),
        ):
            get.get("cinic10", folder / "data")

    def wrong(folder: Path, promise: Any) -> str:
        place = get.is_here("cinic10", folder / "data")
        if promise == FINISHED and place is None:
            return "the data set was complete and is not any more"
        if place is None:
            return ""
        here = contents(place)
        expected = {
            f"{part}/{word}/1.png" for part in ("train", "test", "valid") for word in ("airplane", "truck")
        }
        whole = expected <= here.keys() and all(here[name] == pixel.getvalue() for name in expected)
        return "" if whole else "a partial data set counts as complete"

    return Work(do, wrong)


def reproduces() -> Work:
    data = federation()
    cell = Cell.of(config(method="fedavg", rounds=2, data="digits", clients=3))

    def do(folder: Path, promised: Callable[[Any], None]) -> None:
        store = Store(folder / "results")
        if store.find(cell) is None:
            store.put(run_cell(cell, store.run_folder(cell), None, data))
        store.tidy()

    def wrong(folder: Path, promise: Any) -> str:
        found = Store(folder / "results").find(cell)
        return "the cell was finished and is lost" if promise == FINISHED and found is None else ""

    def result(folder: Path) -> Mapping[str, Any]:
        record = Store(folder / "results").find(cell)
        names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
        return {"found": record and record.found, "names": names}

    return Work(do, wrong, result=result)


WORKS: dict[str, Callable[[], Work]] = {
    **{f"run {method}": partial(runs, method) for method in METHODS},
    "run pfedsim, saved in the background": partial(runs, METHODS[1], in_background=True),
    "resume": partial(resumes, METHODS[1]),
    "run --extend": extends,
    "compare": compares,
    "export --all": exports,
    "data add": adds,
    "data get": gets,
    "reproduce": reproduces,
}


def trial(
    work: Work, place: Path, draws: int, chosen: Callable[[list[Loss]], list[Loss]] = list
) -> dict[str, Any]:
    """Take the power away at every operation of the work; raises an error at the first thing that is lost."""
    disk, expected = work.losses(place / "work", draws)
    with patch.object(os, "fsync", lambda descriptor: None):  # the second time nothing fails
        for loss in chosen(disk.losses):
            if flaw := work.flaw(loss, place / "work", expected):
                raise AssertionError(f"operation {loss.operation}, {loss.how}: {flaw}")
    return {"operations": disk.operations, "states": disk.states, "different": len(disk.losses), "lost": 0}


def sample(losses: list[Loss], every: int = 1) -> list[Loss]:
    """A random state of every operation, or of every second and so on, and all states at the end."""
    draw = random.Random(0)
    by_operation: dict[int, list[Loss]] = {}
    for loss in losses:
        by_operation.setdefault(loss.operation, []).append(loss)
    *others, last = by_operation.values()
    return [draw.choice(some) for some in others[::every]] + last


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--draws", type=int, default=6, help="random states for every operation")
    options.add_argument("--only", help="the works whose name contains this")
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for name, make in WORKS.items():
        if asked.only and asked.only not in name:
            continue
        with tempfile.TemporaryDirectory() as place:
            found[name] = trial(make(), Path(place), asked.draws)
        print(f"{name}: {found[name]}", flush=True)
    total = {
        key: sum(one[key] for one in found.values())
        for key in ("operations", "states", "different", "lost")
    }
    figures = {
        "command": "python benchmarks/powerloss.py " + " ".join(sys.argv[1:]),
        **total,
        "works": found,
    }
    print(json.dumps(total))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
