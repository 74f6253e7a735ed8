"""Kills runs with SIGKILL, resumes them, and holds every byte against a run that was never killed.

    python benchmarks/kills.py --kills 200 --inside 40 --out benchmarks/kills.json

Every method on both backends; each start draws its number of workers anew. A kill counts when it hits a
live run after its first save. Random kills fall at any instant; the others at a named point inside a save,
or where the run is concluded."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pfedsim
from pfedsim import durable
from pfedsim.backends import native
from pfedsim.data.federation import Federation
from pfedsim.methods import TWELVE
from pfedsim.runs import checkpoint, names
from pfedsim.runs.config import Config, check
from pfedsim.runs.execute import execute

MAY_DIFFER = {"timings.jsonl", "manifest.json"}
WORDS = {
    "rounds": 10,
    "epochs": 2,
    "join": 0.5,
    "local_steps": 2,
    "lr": 0.05,
    "score": {"every": 5, "finetune": 0},
}
SAVING = {  # name: (function of os, what its path holds, before, in the middle of or after the call)
    "half a state is written": ("write", "/checkpoint/s", "middle"),
    "half a delta is written": ("write", "/checkpoint/d", "middle"),
    "the delta is not yet flushed": ("fsync", "/checkpoint/d", "before"),
    "the delta is not yet renamed": ("replace", "/checkpoint/d", "before"),
    "the delta is renamed, the manifest not begun": ("replace", "/checkpoint/d", "after"),
    "half the manifest is written": ("write", "/checkpoint/0", "middle"),
    "the manifest is not yet renamed": ("replace", "/checkpoint/0", "before"),
    "the manifest is renamed": ("replace", "/checkpoint/0", "after"),
    "before an old file goes": ("unlink", "/checkpoint/", "before"),
    "after an old file has gone": ("unlink", "/checkpoint/", "after"),
}
ENDING = {
    "the round is not yet handed to the save": ("save", "", "before"),
    "half the models are written": ("replace", "/models/client", "after"),
    "the summary is not yet renamed": ("replace", "/summary.json", "before"),
    "the summary is renamed": ("replace", "/summary.json", "after"),
    "the checkpoint is half removed": ("remove", "/checkpoint", "middle"),
}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by name; of those that may differ only the name."""
    files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: b"" if name in MAY_DIFFER else p.read_bytes() for name, p in files.items()}


def start(
    config: Config, folder: Path, federation: Federation | None, before: Callable[[], None] | None = None
) -> int:
    """A process that runs into this folder, or goes on there."""
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if before is not None:
            before()
        own = (
            federation is None and (folder / "config.toml").is_file()
        )  # as `pfedsim resume` does: all from the folder
        execute(
            None if own else config,
            folder,
            federation,
            resume=True,
            **({"workers": config.workers} if own else {}),
        )
        os._exit(0)
    except BaseException as error:
        print(f"{folder}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def die_at(function: str, where: str, when: str, nth: int) -> Callable[[], None]:
    """Makes the process kill itself at the nth such call."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def arm() -> None:
        holder: Any = {"save": checkpoint.Saver, "remove": durable}.get(function, os)
        original, seen = getattr(holder, function), 0

        def watched(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            first = arguments[0]
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            hit = where in path
            seen += hit
            if hit and seen == nth:
                if when == "middle" and function == "write":
                    original(first, arguments[1][: len(arguments[1]) // 2])
                elif when == "middle":
                    for file in sorted(Path(path).iterdir())[::2]:
                        file.unlink()
                elif when == "after":
                    original(*arguments, **options)
                die()
            return original(*arguments, **options)

        setattr(holder, function, watched)

    return arm


def saved(folder: Path) -> bool:
    return (folder / "summary.json").exists() or any((folder / names.CHECKPOINT).glob("*.json"))


class Trial:
    """One method on one backend: its undisturbed run, and as many killed ones as are asked for."""

    def __init__(self, method: str, backend: str, federation: Federation, place: Path, draw: random.Random):
        self.words = {**WORDS, "method": method, "backend": backend, **federation.asked}
        self.federation, self.place, self.draw = federation, place, draw
        self.name = f"{method}-{backend}"
        began = time.perf_counter()
        assert os.waitpid(start(self._config(), place / f"{self.name}-whole", federation), 0)[1] == 0
        self.seconds = time.perf_counter() - began
        self.whole = contents(place / f"{self.name}-whole")
        self.kills: Counter[str] = Counter()
        self.compared = 0

    def _config(self) -> Config:
        return check({**self.words, "workers": self.draw.choice((1, 2, 3))})

    def killed(self, points: list[str | None]) -> None:
        """A run killed at each of these points in turn (None: at a random instant), then left to end, and
        compared."""
        folder = self.place / f"{self.name}-killed"
        shutil.rmtree(folder, ignore_errors=True)
        for point in points:
            named = {**SAVING, **ENDING}.get(point or "")
            nth = 1 if point in ENDING and named and named[0] != "save" else self.draw.randint(1, 3)
            child = start(self._config(), folder, self._given(), die_at(*named, nth) if named else None)
            if named is None:
                while not saved(folder) and not os.waitid(
                    os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
                ):
                    time.sleep(0.002)
                time.sleep(self.draw.uniform(0, 0.6) * self.seconds)
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (
                f"{self.name}: a resumed run failed"
            )
            if os.WIFSIGNALED(status) and saved(folder):
                self.kills[point or "at a random instant"] += 1
        _, status = os.waitpid(start(self._config(), folder, self._given()), 0)
        assert status == 0, f"{self.name}: the last resumption failed"
        found = contents(folder)
        different = sorted(
            name for name in found.keys() | self.whole.keys() if found.get(name) != self.whole.get(name)
        )
        assert not different, f"{self.name}, killed {points}: other bytes in {different}"
        self.compared += 1

    def _given(self) -> Federation | None:
        return self.draw.choice((self.federation, None))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--kills", type=int, default=200, help="in all, at least")
    options.add_argument("--inside", type=int, default=40, help="of them inside a save, at least")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(asked.seed)
    federation = pfedsim.federate("digits", clients=6, alpha=0.5, minimum=40)
    backends = ["torch", "native"] if native.available() else ["torch"]
    kills: Counter[str] = Counter()
    compared = 0
    with tempfile.TemporaryDirectory() as place:
        trials: dict[tuple[str, str], Trial] = {}
        pairs = [(method, backend) for backend in backends for method in TWELVE]
        while (
            compared < len(pairs)
            or kills.total() < asked.kills
            or sum(kills[p] for p in SAVING) < asked.inside
        ):
            pair = pairs[compared % len(pairs)]
            trial = trials.get(pair) or Trial(*pair, federation, Path(place), draw)
            trials[pair] = trial
            first, second, third = (draw.choice(list(points)) for points in (SAVING, SAVING, ENDING))
            trial.killed(
                [first, None, None, second, third]
                if draw.random() < 0.5
                else [None, first, second, None, third]
            )
            kills = sum((t.kills for t in trials.values()), Counter())
            compared += 1
            inside = sum(kills[p] for p in SAVING)
            print(
                (
                    f"{trial.name}: {kills.total()} kills so far, {inside} inside a save; {compared} runs "
                    "compared, all equal"
                ),
                flush=True,
            )
    figures = {
        "command": "python benchmarks/kills.py " + " ".join(sys.argv[1:]),
        "kills": kills.total(),
        "inside_a_save": sum(kills[p] for p in SAVING),
        "runs_compared": compared,
        "runs_that_differed": 0,
        "methods": len(TWELVE),
        "backends": backends,
        "by_point": dict(sorted(kills.items())),
    }
    print(json.dumps(figures, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
