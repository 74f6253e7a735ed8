"""What saving every round costs: the same run with and without checkpoints, in turns, as a ratio.

    python benchmarks/saving.py --repetitions 5 --out benchmarks/saving.json

100 clients with LeNet5 on 3 x 32 x 32, ten a round, five epochs on 300 samples, pFedSim from its first round on, so that every client's
model is on the server. The time of a round is from one report to the next, handing over to the save included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pfedsim.bench import federation
from pfedsim.runs import run as runs
from pfedsim.runs.checkpoint import Saver
from pfedsim.runs.config import check


class Counting(Saver):
    """Says how many rounds were saved."""

    last: Counting

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        Counting.last = self


class Nothing:
    """Saves nothing."""

    def __init__(self, *_: object):
        pass

    def save(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    torch.set_num_threads(1)
    where = federation(100)
    words = {"method": "pfedsim(rho=0)", "rounds": asked.rounds, "join": 0.1, "score": {"every": 0, "finetune": 0}}
    took: dict[str, list[float]] = {"saving": [], "not saving": []}
    saves = []
    with tempfile.TemporaryDirectory() as place:
        for _ in range(asked.repetitions):
            for name, saver in (("saving", Counting), ("not saving", Nothing)):
                runs.Saver = saver  # type: ignore[assignment, misc]
                stamps: list[float] = []
                runs.execute(check(words), Path(place) / "run", where, lambda done, stamps=stamps: stamps.append(time.perf_counter()))
                # the first round starts the workers; the last report is after the final score
                took[name] += [after - before for before, after in pairwise(stamps[:-1])]
                shutil.rmtree(Path(place) / "run")
            saves.append(Counting.last.saves)
    medians = {name: median(times) for name, times in took.items()}
    means = {name: sum(times) / len(times) for name, times in took.items()}
    figures = {
        "command": "python benchmarks/saving.py " + " ".join(sys.argv[1:]),
        "rounds_timed_each": len(took["saving"]),
        "saves_of_rounds": [sum(saves), asked.rounds * asked.repetitions],
        "median_seconds_of_a_round": medians,
        "ratio_of_medians": medians["saving"] / medians["not saving"],
        "ratio_of_means": means["saving"] / means["not saving"],
    }
    print(json.dumps(figures, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
