"""One run on digits and one on a table with a network of the user's own, exported in different ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pfedsim
from pfedsim.data.federation import Federation
from pfedsim.runs.reader import Run

NET = """from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU())
        self.classifier = nn.Linear(8, classes)

    def forward(self, x):
        return self.classifier(self.body(x))
"""


@pytest.fixture(scope="session")
def done(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pfedsim.train(
        digits, "pfedsim", tmp_path_factory.mktemp("export") / "run", rounds=4, epochs=2, join=1.0
    )


@pytest.fixture(scope="session")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three wards with a table of six columns; the classes have names."""
    folder = tmp_path_factory.mktemp("wards")
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 180)
    x = draw.normal(size=(180, 6)) * 30 + 40 * y[:, None]
    np.savez(
        folder / "wards.npz",
        x=x,
        y=np.array(["ill", "well", "zoster"])[y],
        client=np.repeat(["a", "b", "c"], 60),
    )
    (folder / "net.py").write_text(NET)
    federation = pfedsim.federate(str(folder / "wards.npz"))
    return pfedsim.train(
        federation, "fedper", folder / "run", model=f"{folder / 'net.py'}:Net", rounds=4, epochs=2
    )


@pytest.fixture(scope="session")
def exported(done: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Client 3 of the digits, with its test samples."""
    from pfedsim.export.write import export, load_federation

    place = tmp_path_factory.mktemp("exported") / "out"
    return export(done, 3, place, federation=load_federation(done), samples=True)
