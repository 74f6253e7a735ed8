"""The works in pfedsim: a whole run that saves after every round and writes its folder, every client scored at its
end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from works import LR, TESTS, Work, asked, mark, stored

import pfedsim
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split


def federation(work: Work) -> Federation:
    """The same samples as everybody's; a client scores its own share of the tests."""
    images, labels = stored()
    data = DataSet(
        "random", np.array(images), labels, tuple("0123456789"), mean=(0.5,) * 3, std=(0.25,) * 3
    )
    tests = len(labels) - TESTS
    splits = [
        Split(
            np.arange(i * work.samples, (i + 1) * work.samples),
            np.arange(tests + i * work.tests, tests + (i + 1) * work.tests),
        )
        for i in range(work.clients)
    ]
    return Federation(data, Partition(tuple(splits), {}, data.digest), in_memory=True)


def main() -> None:
    work, rounds = asked()
    dealt = federation(work)
    mark("begin")

    def watch(progress: pfedsim.runs.Progress) -> None:
        if progress.round and not progress.note:
            mark("round")

    with tempfile.TemporaryDirectory(dir=os.environ.get("PEERS_OUT")) as folder:
        run = pfedsim.train(
            dealt,
            "fedavg",
            Path(folder) / "run",
            watch=watch,
            model=f"{Path(__file__).parent}/works.py:{work.network}",
            rounds=rounds,
            join=work.cohort / work.clients,
            epochs=work.epochs,
            batch=work.batch,
            lr=LR,
            shuffle=True,
            backend=os.environ["PEERS_BACKEND"],
            workers=int(os.environ["PEERS_WORKERS"]),
            **{"score.every": 0, "score.finetune": 0},
        )
        trained = sum(len(line["clients"]) for line in run.metrics() if "clients" in line)
        print(f"\nTRAINED {trained * work.samples * work.epochs} ACCURACY {run.summary['served']['micro']}")
    mark("end")


if __name__ == "__main__":
    main()
