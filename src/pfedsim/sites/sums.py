"""How the data of several sites are described without showing them: every site sends sums, and a description is made of
them all. Each site then reads its own data by that description."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import durable, seal
from pfedsim.data.dataset import DataSet, parts
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.data.readers.tables import in_order
from pfedsim.data.task import Defaults, Task
from pfedsim.errors import Error

FORMAT = "pfedsim sums 1"
NETWORKS = {1: "mlp", 2: "cnn1d"}


def sums(data: DataSet, site: str) -> str:
    """What a site says of its data: names of classes and columns, the number of samples, and for each channel the
    number of known values, their sum and the sum of their squares (bytes scaled to 0..1)."""
    channels = data.shape[0]
    count, total, squares = np.zeros(channels), np.zeros(channels), np.zeros(channels)
    for part in parts(data.x):
        values = np.moveaxis(part, 1, 0).reshape(channels, -1).astype(np.float64)
        values = values / 255 if data.x.dtype == np.uint8 else values
        count += (~np.isnan(values)).sum(1)
        total += np.nansum(values, axis=1)
        squares += np.nansum(values * values, axis=1)
    content = {
        "format": FORMAT,
        "site": site,
        "samples": len(data.y),
        "shape": list(data.shape),
        "dtype": str(data.x.dtype),
        "classes": list(data.classes),
        "columns": None if data.columns is None else list(data.columns),
        "count": [int(n) for n in count],
        "sum": total.tolist(),
        "squares": squares.tolist(),
    }
    return seal.sealed(content)


def agreed(files: Sequence[Path], name: str) -> Task:
    """The description that all sites share: the classes of all, and each channel's mean and deviation over all samples.
    A site may lack classes."""
    found = [_read(path) for path in sorted(files)]
    first = found[0]
    for path, one in zip(sorted(files), found, strict=True):
        for fact in ("shape", "dtype", "columns"):
            if one[fact] != first[fact]:
                raise Error(
                    f"{path}: its {fact} {one[fact]} differ from those of {first['site']!r}, {first[fact]}"[
                        :500
                    ]
                )
    sites = [one["site"] for one in found]
    if twice := {site for site in sites if sites.count(site) > 1}:
        raise Error(f"the site {min(twice)!r} says its sums twice")
    classes = sorted({str(c) for one in found for c in one["classes"]}, key=in_order)
    count, total, squares = (
        np.array([one[k] for one in found], dtype=np.float64).sum(0) for k in ("count", "sum", "squares")
    )
    if (count == 0).any():
        where = first["columns"] or list(range(len(count)))
        raise Error(f"no site has a value of {where[int(np.argmin(count))]!r}: leave it out everywhere")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    shape = tuple(first["shape"])
    facts = json.dumps(found, sort_keys=True)
    return Task(
        name,
        shape,
        first["dtype"],
        tuple(classes),
        tuple(mean.tolist()),
        tuple(np.where(std > 0, std, 1.0).tolist()),
        hashlib.sha256(facts.encode()).hexdigest(),
        Defaults(
            clients=None, partition="given", minimum=2, join=None, model=NETWORKS.get(len(shape), "lenet5")
        ),
        None if first["columns"] is None else tuple(first["columns"]),
    )


def _read(path: Path) -> dict[str, Any]:
    content = seal.load(path, "a site's sums")
    try:
        channels = int(content["shape"][0])
        lists = [content[name] for name in ("count", "sum", "squares")]
        fine = content["format"] == FORMAT and all(len(values) == channels for values in lists)
        fine = fine and all(math.isfinite(float(x)) for values in lists for x in values)
        fine = fine and all(
            isinstance(content[name], kind) for name, kind in (("site", str), ("classes", list))
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Error(f"{path} is not a site's sums: {error}") from error
    if not fine:
        raise Error(f"{path} is not a site's sums ({FORMAT!r} expected)")
    return content


def save(task: Task, path: Path) -> None:
    """Writes a description, which everybody may see."""
    durable.write(path, (json.dumps(task.plain(), indent=1) + "\n").encode())


def own(
    data: DataSet, task: Task, clients: Sequence[int], everyone: int, test: float, seed: int
) -> Federation:
    """A site's own data as the clients that it holds, described as all agreed. Several clients are the values of the
    column that names them, in order. A client's test part is drawn by its number, so it is the same in every run."""
    for name in ("shape", "columns"):
        ours, theirs = getattr(data, name), getattr(task, name)
        if ours != theirs:
            raise Error(f"the data of this site have the {name} {ours}, the federation's {theirs}"[:400])
    if str(data.x.dtype) != task.dtype:
        raise Error(f"the data of this site are {data.x.dtype}, the federation's {task.dtype}")
    if strange := sorted(set(data.classes) - set(task.classes)):
        raise Error(
            f"the data of this site have a class {strange[0]!r}, which the federation has not agreed on"
        )
    y = np.array([task.classes.index(name) for name in data.classes], dtype=np.int64)[data.y]
    described = replace(
        data, y=y, classes=task.classes, mean=task.mean, std=task.std, client=None, domain=None
    )
    owners = np.zeros(len(y), dtype=np.int64)
    if len(clients) > 1:
        if data.client is None:
            raise Error(
                f"this site holds {len(clients)} clients, and its data have no column that tells them apart"
            )
        names, owners = np.unique(data.client, return_inverse=True)
        if len(names) != len(clients):
            raise Error(f"this site holds {len(clients)} clients, and its data name {len(names)}")
    nothing = Split(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    splits = [nothing] * everyone
    for k, client in enumerate(sorted(clients)):
        rows = np.flatnonzero(owners == k)
        if len(rows) < 2:
            raise Error(
                f"client {client} has {len(rows)} samples; it needs at least 2, one to train and one to test"
            )
        order = np.random.default_rng([seed, client]).permutation(rows)
        held = min(len(rows) - 1, max(1, int(test * len(rows) + 1e-9)))
        splits[client] = Split(np.sort(order[held:]), np.sort(order[:held]))
    return Federation(described, Partition(tuple(splits), {"kind": "own"}, task.digest))
