"""Sites with data of their own: what they say of them, and that training on them is training on their union."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import loopback
import numpy as np
import pytest
import small

from pfedsim.core.wire import Wire
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.data.readers import tables
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.config import check
from pfedsim.runs.setup import plan, prepare
from pfedsim.sites.engine import Sites
from pfedsim.sites.files import SiteFile, bound
from pfedsim.sites.messages import Opening
from pfedsim.sites.premises import SitePremises
from pfedsim.sites.sums import agreed, own, sums

NAMES = {"north": [0], "south": [1, 2], "west": [3]}
WORDS = {
    "method": "pfedsim",
    "model": "mlp",
    "rounds": 3,
    "epochs": 1,
    "join": 1.0,
    "backend": "torch",
    "minimum": 2,
}


@pytest.fixture
def tables_of(tmp_path: Path) -> dict[str, Path]:
    """A table for each site; the north has no "c", and the south names two clients."""
    draw = np.random.default_rng(3)
    found = {}
    for site, (rows, labels) in {"north": (30, "ab"), "south": (44, "abc"), "west": (25, "bc")}.items():
        y = draw.choice(list(labels), rows)
        x = draw.normal(size=(rows, 3)) * [1, 5, 0.1] + [0, 100, -3] + (y == "b")[:, None]
        who = [("k", "m")[k % 2] for k in range(rows)]
        lines = [
            ",".join([*(f"{v:.6f}" for v in row), label, w])
            for row, label, w in zip(x, y, who, strict=True)
        ]
        heading = "p,q,r,label,client"
        if site != "south":
            heading, lines = heading.removesuffix(",client"), [line.rpartition(",")[0] for line in lines]
        found[site] = tmp_path / f"{site}.csv"
        found[site].write_text("\n".join([heading, *lines]) + "\n")
    return found


def described(tmp_path: Path, files: dict[str, Path]):
    said = []
    for site, path in files.items():
        said.append(tmp_path / f"{site}.sums")
        said[-1].write_text(sums(tables.read(path), site))
    return agreed(said, "ours")


def test_the_description_is_that_of_all_samples(tmp_path: Path, tables_of: dict[str, Path]) -> None:
    task = described(tmp_path, tables_of)
    rows = np.concatenate(
        [np.loadtxt(p, delimiter=",", skiprows=1, usecols=(0, 1, 2)) for p in tables_of.values()]
    )
    assert task.mean == pytest.approx(rows.mean(0), rel=1e-6)
    assert task.std == pytest.approx(rows.std(0), rel=1e-4)
    assert (task.classes, task.columns, task.shape) == (("a", "b", "c"), ("p", "q", "r"), (3,))


def union(task, files: dict[str, Path]) -> Federation:
    """All tables as one data set, each client with the parts that its site draws."""
    whole: list[DataSet] = []
    splits: dict[int, Split] = {}
    before = 0
    for site, path in files.items():
        here = own(tables.read(path), task, NAMES[site], 4, 0.5, 42)
        whole.append(here.data)
        for client in NAMES[site]:
            part = here.partition.clients[client]
            splits[client] = Split(part.train + before, part.test + before)
        before += here.samples
    x, y = (np.concatenate([getattr(one, name) for one in whole]) for name in ("x", "y"))
    data = DataSet(
        "union", x, y, task.classes, task.mean, task.std, columns=task.columns, defaults=task.defaults
    )
    return Federation(data, Partition(tuple(splits[i] for i in range(4)), {}, data.digest))


@pytest.mark.parametrize("method", ["pfedsim", "fedper"])
def test_training_at_the_sites_is_training_on_their_union(
    tmp_path: Path, tables_of: dict[str, Path], method: str
) -> None:
    task = described(tmp_path, tables_of)
    config = check({**WORDS, "method": method})
    serial = prepare(check({**WORDS, "method": method, "workers": 1}), union(task, tables_of))
    expected = list(small.rounds(serial))
    planned = plan(config, task, 4)
    premises = []
    for site, path in tables_of.items():
        file = SiteFile(data=str(path), folder=str(tmp_path / "kept" / site))
        premises.append(SitePremises(site, NAMES[site], Path(file.folder), file))
    link = loopback.Loopback(premises)  # type: ignore[arg-type]
    made = manifest.made_with(planned.config)
    opening = Opening(config=planned.config.plain(), data=task.plain(), clients=4, made_with=made)
    wire = Wire(planned.wire.kept)
    engine = Sites(link, wire, 3, bound(NAMES), opening, loopback.RUN, now=lambda: link.clock)
    side = replace(serial.side, engine=engine, declared=engine.sizes)
    found = list(small.rounds(replace(serial, side=side), engine=engine))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.events == theirs.events == ()
        a, b = (
            engine.wire.part_that_travels(ours.server.model),
            engine.wire.part_that_travels(theirs.server.model),
        )
        assert a.numpy().tobytes() == b.numpy().tobytes()
    scores = [
        small.score(serial, found[-1].state, engine=engine, stays=True),
        small.score(serial, expected[-1].state),
    ]
    assert [str(c.metrics) for c in scores[0].clients] == [str(c.metrics) for c in scores[1].clients]
    (model,) = (tmp_path / "kept" / "west" / "models").rglob("model.safetensors")
    assert model.parent.name == "client-00003"


def rows(path: Path, change: dict[str, str]) -> DataSet:
    text = path.read_text()
    for a, b in change.items():
        text = text.replace(a, b)
    path.write_text(text)
    return tables.read(path)


@pytest.mark.parametrize(
    ("change", "clients", "says"),
    [
        ({"p,q,r": "p,q,s"}, [0], "have the columns"),
        ({",a\n": ",z\n"}, [0], "a class 'z'"),
        ({}, [0, 1], "no column that tells them apart"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    tmp_path: Path, tables_of: dict[str, Path], change: dict[str, str], clients: Sequence[int], says: str
) -> None:
    task = described(tmp_path, tables_of)
    with pytest.raises(Error, match=says):
        own(rows(tables_of["north"], change), task, clients, 4, 0.5, 42)


def test_sums_that_do_not_fit_together_are_refused(tmp_path: Path, tables_of: dict[str, Path]) -> None:
    described(tmp_path, tables_of)
    files = sorted(tmp_path.glob("*.sums"))
    with pytest.raises(Error, match="says its sums twice"):
        agreed([*files, files[0]], "ours")
    data = rows(tables_of["west"], {"p,q,r": "p,q,s"})
    files[-1].write_text(sums(data, "west"))
    with pytest.raises(Error, match=r"west\.sums: its columns"):
        agreed(files, "ours")
    content = json.loads(files[0].read_text())
    content["samples"] += 1
    files[0].write_text(json.dumps(content))
    with pytest.raises(Error, match="does not match its sha256"):
        agreed(files, "ours")
