"""What saving every round costs: the same run with and without checkpoints, in turns, as a ratio.

    python benchmarks/saving.py --repetitions 5 --out benchmarks/saving.json

100 clients with LeNet5 on 3 x 32 x 32, ten a round, five epochs on 300 samples, pFedSim from its first
round on, so that every client's model is on the server. The time of a round is from one report to the next,
handing over to the save included. Processor time is that of the process and its workers; unlike wall time
it does not depend on what else the machine does."""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pfedsim.dev.bench import federation
from pfedsim.runs import execute as runs
from pfedsim.runs.checkpoint import Saver
from pfedsim.runs.config import check


class Counting(Saver):
    """Says how many rounds were saved, and what processor time and wall time that took in its thread."""

    last: Counting

    def __init__(self, *arguments: Any):
        self.cpu = self.wall = 0.0
        super().__init__(*arguments)
        Counting.last = self

    def _commit(self, *arguments: Any) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        super()._commit(*arguments)
        self.cpu += time.thread_time() - cpu
        self.wall += time.perf_counter() - wall


class Nothing:
    """Saves nothing."""

    def __init__(self, *_: object):
        pass

    def save(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def processor() -> float:
    """Seconds of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    torch.set_num_threads(1)
    where = federation(100)
    words = {
        "method": "pfedsim(rho=0)",
        "rounds": asked.rounds,
        "join": 0.1,
        "score": {"every": 0, "finetune": 0},
    }
    took: dict[str, list[float]] = {"saving": [], "not saving": []}
    cpu = {"saving": 0.0, "not saving": 0.0}
    saves, cpu_of_saves, wall_of_saves = 0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as place:
        for _ in range(asked.repetitions):
            for name, saver in (("saving", Counting), ("not saving", Nothing)):
                runs.Saver = saver  # type: ignore[assignment, misc]
                stamps: list[float] = []
                before = processor()
                runs.execute(
                    check(words),
                    Path(place) / "run",
                    where,
                    lambda done, stamps=stamps: stamps.append(time.perf_counter()),
                )
                cpu[name] += processor() - before
                # the first round starts the workers; the last report is after the final score
                took[name] += [later - earlier for earlier, later in pairwise(stamps[:-1])]
                shutil.rmtree(Path(place) / "run")
            saves, cpu_of_saves, wall_of_saves = (
                saves + Counting.last.saves,
                cpu_of_saves + Counting.last.cpu,
                wall_of_saves + Counting.last.wall,
            )
    medians = {name: median(times) for name, times in took.items()}
    means = {name: sum(times) / len(times) for name, times in took.items()}
    figures = {
        "command": "python benchmarks/saving.py " + " ".join(sys.argv[1:]),
        "rounds_timed_each": len(took["saving"]),
        "saves_of_rounds": [saves, asked.rounds * asked.repetitions],
        "processor_seconds": cpu,
        "processor_seconds_of_a_save": cpu_of_saves / saves,
        "wall_seconds_of_a_save": wall_of_saves / saves,
        "processor_share_of_saving": cpu_of_saves / cpu["saving"],
        "ratio_of_processor_time": cpu["saving"] / cpu["not saving"],
        "median_seconds_of_a_round": medians,
        "ratio_of_medians": medians["saving"] / medians["not saving"],
        "ratio_of_means": means["saving"] / means["not saving"],
    }
    print(json.dumps(figures, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
