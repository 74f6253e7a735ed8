"""The adapter to Hugging Face's and Flower's data sets, where they are installed (extra `hf`)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pfedsim import data
from pfedsim.data.readers import hf
from pfedsim.errors import Error


def test_without_the_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Error, match=r"hf:some/set needs the extra hf: pip install 'pfedsim\[hf\]'"):
        data.read("hf:some/set")


def test_the_size_that_was_asked_for_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=str))
    monkeypatch.setattr(hf, "read", lambda found, **words: (found, words))
    assert data.read("hf:some/set", size=16) == ("some/set", {"size": 16, "name": "hf:some/set"})


def test_pictures_with_named_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    images = [Image.new("RGB", (10, 8), (k, 0, 0)) for k in range(6)]
    made = datasets.Dataset.from_dict({"img": images, "label": [0, 1] * 3}, features=features)
    found = hf.read(made)
    assert (found.shape, found.classes, found.y.tolist()) == ((3, 8, 10), ("cat", "dog"), [0, 1] * 3)
    assert found.x[:, 0, 0, 0].tolist() == list(range(6))
    assert hf.read(made, size=16).shape == (3, 16, 16)
    made.save_to_disk(tmp_path / "saved")
    assert data.read(f"hf:{tmp_path / 'saved'}").digest == found.digest
    with pytest.raises(Error, match="no column 'fine_label'"):
        hf.read(made, label="fine_label")


def test_a_partitioner_of_flower_deals_the_clients() -> None:
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    made = datasets.Dataset.from_dict(
        {"a": np.arange(40.0), "b": np.ones(40), "label": ["ill", "well"] * 20}
    )
    found = hf.read(made, partitioner=partitioners.IidPartitioner(num_partitions=4))
    assert found.client is not None
    assert np.bincount(found.client).tolist() == [10, 10, 10, 10]
    assert (found.shape, found.classes, found.defaults.partition) == ((2,), ("ill", "well"), "given")
    assert sorted(found.x[:, 0].tolist()) == list(range(40))

    from pfedsim import federate, train

    federation = federate(found)
    assert federation.clients == 4
    assert train(federation, "fedavg", rounds=1, epochs=1, workers=1).summary["clients"] == 4
