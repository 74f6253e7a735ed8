"""Whole runs on a cluster, without one: who gets which cell, and what a node must share. tests/engines/test_ray.py runs
them on a real Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pfedsim.engines.actors import Came
from pfedsim.errors import Error
from pfedsim.experiments import cluster
from pfedsim.experiments.cell import Cell

MINE = """from dataclasses import dataclass
from pfedsim.core import Method


@dataclass(frozen=True)
class Mine(Method):
    pass
"""


@dataclass(eq=False)
class Worker:
    number: int
    calls: list[Any] = field(default_factory=list)


class Growing:
    """Actors on a cluster that has one core more at every look. Each run takes two looks."""

    def __init__(self, *_: Any):
        self.notice, self.notes = "", []
        self.workers: list[Worker] = []
        self.most = 0

    def start(self, most: int) -> int:
        if len(self.workers) < most:
            self.workers.append(Worker(len(self.workers)))
        return len(self.workers)

    def idle(self) -> Iterator[Worker]:
        yield from self.workers

    def call(self, worker: Worker, what: Any, *_: Any) -> None:
        worker.calls.append([what, 2])
        self.most = max(self.most, sum(bool(w.calls) for w in self.workers))

    def arrived(self, _: float) -> list[Came]:
        for worker in self.workers:
            for call in worker.calls:
                call[1] -= 1
        done = [w for w in self.workers if w.calls and not w.calls[0][1]]
        return [Came(w.calls.pop()[0], w.number, (None, [])) for w in done]

    def busy(self) -> list[Worker]:
        return []

    def look(self, _: Any) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def test_nodes_that_join_later_get_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Slurm, where the other nodes join a little after the first one."""
    made: list[Growing] = []
    monkeypatch.setattr(cluster, "Actors", lambda *words: made.append(Growing(*words)) or made[0])
    cells = [Cell({"method": "fedavg", "seed": seed}) for seed in range(20)]
    ended = list(cluster.run_on_cluster(cells, lambda _: print, lambda *_: None))
    assert sorted(cell.words["seed"] for cell, _ in ended) == list(range(20))
    assert made[0].most > 2


def test_a_node_must_share_the_code_of_every_method_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a node goes there, too
    monkeypatch.setattr(cluster.torch, "set_num_threads", lambda _: None)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    cells = [Cell({"method": method, "seed": s}) for method in ("local", f"{file}:Mine") for s in (1, 2)]
    facts = cluster._facts(cells)
    assert [config.method for config, _ in facts] == ["local", f"{file}:Mine"]
    assert all("kernels" in made and made["kernels"] is not None for _, made in facts)
    opening = cluster.Opening(lambda _: print, None, str(tmp_path), facts, False)
    assert opening.open(None)[1] == []
    assert {*facts[1][1]["code"]} == {"pfedsim", "method"}
    other = {**facts[1][1], "code": {**facts[1][1]["code"], "method": {"mine": "0"}}}
    elsewhere = replace(opening, made_with=[facts[0], (facts[1][0], other)])
    with pytest.raises(Error, match=r"code\.method\.mine.*--allow-drift"):
        elsewhere.open(None)
    notes = replace(elsewhere, allow_drift=True).open(None)[1]
    assert [note.partition(":")[0] for note in notes] == ["code.method.mine"]
