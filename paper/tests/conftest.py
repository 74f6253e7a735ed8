"""Handmade records that several files look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from pfedsim_paper.protocol import cell
from test_cells import record

from pfedsim.experiments import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "results")
    for method, values in {"local": (0.84, 0.86), "fedavg": (0.25, 0.35), "pfedsim": (0.88, 0.86)}.items():
        for seed, micro in zip((42, 43), values, strict=True):
            store.put(record(cell("cifar10", method, 0.1, seed, {}), micro))
    return store
