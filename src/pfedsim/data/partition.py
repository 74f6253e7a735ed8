"""Who holds which sample: partitions by label, and their plain JSON form that two people can share.

The label Dirichlet with a size cap reproduces the paper's data table to the digit: one legacy numpy stream,
each class shuffled and then dealt, pools kept permuted over retries, clients at or above the mean size
dealt no more, the minimum tested at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.errors import Error

KINDS = ("dirichlet", "dirichlet-plain", "classes", "shards", "quantity", "iid", "domain", "given")
FORMAT = "pfedsim partition 1"
HOPELESS_AFTER = 1000  # passes, where the best has not reached half the minimum
FEW_PASSES = 50  # to find out how many clients can be dealt
MOST_PASSES = 5000  # the plain Dirichlet(0.1) of CIFAR-10 with the paper's minimum takes 2,670
Deal = tuple[
    int, Callable[[], list[np.ndarray]]
]  # the smallest share's size, and all shares when they are wanted


class TooMany(Error):
    """So many clients cannot be given the minimum."""


@dataclass(frozen=True)
class Split:
    """One client's samples, as positions in the data set, in stored order."""

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Partition:
    """Every client's train and test samples, and how they were dealt."""

    clients: tuple[Split, ...]
    recipe: dict[str, Any]
    data: str
    """digest of the data set that the positions refer to"""

    @cached_property
    def digest(self) -> str:
        """sha256 over all positions and the data they refer to."""
        h = hashlib.sha256(f"{FORMAT} {self.data} {len(self.clients)}".encode())
        for split in self.clients:
            for part in (split.train, split.test):
                h.update(len(part).to_bytes(8, "little"))
                h.update(np.ascontiguousarray(part, dtype="<i8").data)
        return h.hexdigest()

    def text(self) -> str:
        """Plain JSON, one client per line: what a file holds."""
        lines = [
            json.dumps({"train": s.train.tolist(), "test": s.test.tolist()}, separators=(",", ":"))
            for s in self.clients
        ]
        head = {"format": FORMAT, "digest": self.digest, "data": self.data, "recipe": self.recipe}
        return json.dumps(head)[:-1] + ', "clients": [\n' + ",\n".join(lines) + "\n]}\n"

    def save(self, path: Path) -> None:
        path.write_text(self.text())


def load(path: Path, data: str, samples: int) -> Partition:
    """The partition in this file, refused where it is damaged or belongs to other data."""
    try:
        content = json.loads(path.read_text())
        if content.get("format") != FORMAT:
            raise Error(f"{path} is not a partition file ({FORMAT!r} expected)")
        clients = tuple(Split(_positions(c["train"]), _positions(c["test"])) for c in content["clients"])
        partition = Partition(clients, dict(content["recipe"]), content["data"])
        stated = content["digest"]
    except OSError as error:
        raise Error(f"partition {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Error(f"{path} is not a whole partition file: {error}") from error
    if partition.digest != stated:
        raise Error(f"{path} is damaged: its positions do not give the digest it states")
    if partition.data != data:
        raise Error(
            f"{path} was made for other data (digest {partition.data[:12]}, this data's is {data[:12]})"
        )
    _check(partition, path, samples)
    return partition


def names_in(path: Path) -> list[str] | None:
    """What the clients of a partition's file are called; None where they have no names."""
    try:
        names = json.loads(path.read_text())["recipe"].get("names")
        return None if names is None else [str(name) for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Error(f"{path} is not a whole partition file: {error}") from error


def _in_order(names: list[Any]) -> list[Any]:
    """Numbers by their size, also where they are written as text; words by the alphabet."""
    whole = all(str(name).removeprefix("-").isdecimal() for name in names)
    return sorted(names, key=(lambda name: (int(name), name)) if whole else None)


def _positions(values: list[int]) -> np.ndarray:
    array = np.array(values, dtype=np.int64)
    if array.ndim != 1:
        raise ValueError("positions must be a list of numbers")
    return array


def _check(partition: Partition, path: Path, samples: int) -> None:
    if not partition.clients:
        raise Error(f"{path} holds no client")
    for i, split in enumerate(partition.clients):
        both = np.concatenate([split.train, split.test])
        strange = both[(both < 0) | (both >= samples)]
        if len(strange):
            raise Error(f"{path}: client {i} refers to sample {strange[0]}, the data has {samples}")
        if np.intersect1d(split.train, split.test).size:
            raise Error(f"{path}: client {i} has samples in both train and test")


def make(
    kind: str,
    y: np.ndarray,
    data: str,
    *,
    clients: int | None,
    alpha: float,
    classes_each: int = 2,
    shards_each: int = 2,
    clients_each: int | None = None,
    minimum: int,
    test: float,
    seed: int,
    owner: np.ndarray | None = None,
    domain: np.ndarray | None = None,
) -> Partition:
    """Deals the samples and splits each client's share, on one stream. `owner` and `domain`: each sample's,
    where the data say it."""
    if clients_each is not None and kind != "domain":
        raise Error(
            f"clients_each = {clients_each} is for the partition 'domain', not {kind!r}; give clients"
        )
    stream = np.random.RandomState(seed)
    recipe: dict[str, Any] = {"kind": kind, "minimum": minimum, "test": test, "seed": seed}
    if kind == "domain":
        shares = _by_domain(domain, clients, clients_each, minimum, stream, recipe)
    elif kind == "given":
        if owner is None:
            raise Error("partition 'given' needs data that says whose each sample is (an array `client`)")
        everyone = _in_order(np.unique(owner).tolist())
        recipe["names"] = list(map(str, everyone))
        shares = [np.flatnonzero(owner == who) for who in everyone]
        if clients not in (None, len(shares)):
            raise Error(f"the data names {len(shares)} clients, {clients} were asked for")
        least = min(range(len(shares)), key=lambda i: len(shares[i]))
        if len(shares[least]) < minimum:
            raise Error(
                f"client {least} has {len(shares[least])} samples, the minimum is {minimum}: lower "
                "minimum or leave it out"
            )
    else:
        wanted = clients or 100

        def dealt(count: int, stream: np.random.RandomState, passes: int) -> list[np.ndarray]:
            return _dealt(kind, y, count, alpha, classes_each, shards_each, minimum, stream, recipe, passes)

        try:
            shares = dealt(wanted, stream, MOST_PASSES)
        except TooMany as error:
            most = _most_clients(dealt, min(wanted - 1, len(y) // minimum), seed)
            possible = f"{most} clients are possible, more with" if most else "choose"
            larger = "a larger alpha or " if "alpha" in recipe else ""
            raise Error(f"{error}; {possible} {larger}a smaller minimum") from None
    recipe["clients"] = len(shares)
    return Partition(tuple(_split(share, test, stream) for share in shares), recipe, data)


def _most_clients(
    dealt: Callable[[int, np.random.RandomState, int], list[np.ndarray]], clients: int, seed: int
) -> int:
    """A number of clients that this seed deals: the first that does, going down from `clients` by fifths."""
    while clients > 0:
        try:
            dealt(clients, np.random.RandomState(seed), FEW_PASSES)
            return clients
        except TooMany:
            clients = clients * 4 // 5
    return 0


def _dealt(
    kind: str,
    y: np.ndarray,
    clients: int,
    alpha: float,
    classes_each: int,
    shards_each: int,
    minimum: int,
    stream: np.random.RandomState,
    recipe: dict[str, Any],
    passes: int,
) -> list[np.ndarray]:
    if "dirichlet" in kind or kind == "quantity":
        recipe["alpha"] = alpha
    if clients * minimum > len(y):
        raise TooMany(
            f"{clients:,} clients of at least {minimum} samples need {clients * minimum:,}, and there are "
            f"{len(y):,}"
        )
    if kind == "iid":
        return [np.sort(part) for part in np.array_split(stream.permutation(len(y)), clients)]
    if kind == "shards":
        recipe["shards_each"] = shards_each
        return _shards(y, clients, shards_each, minimum, stream)
    if kind == "quantity":
        return _until(minimum, clients, lambda: _quantities(len(y), clients, alpha, stream), passes)
    if kind == "classes":
        recipe["classes_each"] = classes_each
        return _until(minimum, clients, lambda: _classes(y, clients, classes_each, stream), passes)
    pools = [np.flatnonzero(y == c) for c in range(int(y.max()) + 1)]
    cap = len(y) / clients if kind == "dirichlet" else float("inf")
    return _until(minimum, clients, lambda: _dirichlet(pools, clients, alpha, cap, stream), passes)


def _until(minimum: int, clients: int, deal: Callable[[], Deal], most: int) -> list[np.ndarray]:
    """Deals again, at most so often, until the smallest share is large enough."""
    best = 0
    for passes in range(1, most + 1):
        smallest, shares = deal()
        if smallest >= minimum:
            return shares()
        best = max(best, smallest)
        if passes == HOPELESS_AFTER and best < minimum / 2:
            break
    raise TooMany(
        f"none of {passes:,} random partitions gave each of {clients:,} clients {minimum} samples (the best "
        f"gave {best})"
    )


def _dirichlet(
    pools: list[np.ndarray], clients: int, alpha: float, cap: float, stream: np.random.RandomState
) -> Deal:
    """One pass over all classes. Proportions that vanish in float64, as they can for a tiny alpha, give no
    deal."""
    every_cut = []
    sizes = np.zeros(clients, dtype=np.int64)
    for pool in pools:
        stream.shuffle(pool)  # in place: pools stay permuted over passes
        p = stream.dirichlet(np.full(clients, alpha))
        p = np.where(sizes < cap, p, 0.0)
        if not p.sum() > 0:
            return -1, list
        p = p / p.sum()
        cuts = (np.cumsum(p)[:-1] * len(pool)).astype(np.int64)
        every_cut.append(cuts)
        sizes += np.diff(cuts, prepend=0, append=len(pool))

    def shares() -> list[np.ndarray]:
        parts = [np.split(pool, cuts) for pool, cuts in zip(pools, every_cut, strict=True)]
        return [np.concatenate(mine) for mine in zip(*parts, strict=True)]

    return int(sizes.min()), shares


def _classes(y: np.ndarray, clients: int, each: int, stream: np.random.RandomState) -> Deal:
    """Every client holds `each` classes, drawn so that classes are used evenly; a class is shared evenly by
    its holders."""
    kinds = np.unique(y)
    if each > len(kinds):
        raise Error(f"classes_each = {each} is more than the {len(kinds)} classes of the data")
    used = np.zeros(len(kinds), dtype=np.int64)
    holders: list[list[int]] = [[] for _ in kinds]
    for i in range(clients):
        least_used_first = np.lexsort((stream.random_sample(len(kinds)), used))
        for c in least_used_first[:each]:
            holders[c].append(i)
            used[c] += 1
    shares: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c, who in enumerate(holders):
        if who:
            pool = stream.permutation(np.flatnonzero(y == kinds[c]))
            for i, part in zip(who, np.array_split(pool, len(who)), strict=True):
                shares[i].append(part)
    return min(sum(map(len, parts)) for parts in shares), lambda: [
        np.concatenate(parts) for parts in shares
    ]


def _shards(
    y: np.ndarray, clients: int, each: int, minimum: int, stream: np.random.RandomState
) -> list[np.ndarray]:
    """Samples sorted by label, cut into equal shards, of which every client is dealt `each` (McMahan et al.
    2017)."""
    shards = np.array_split(np.argsort(y, kind="stable"), clients * each)
    if each * len(shards[-1]) < minimum:
        raise TooMany(
            f"{clients:,} clients of {each} shards have only {each * len(shards[-1])} samples, and the minimum "
            f"is {minimum}"
        )
    order = stream.permutation(len(shards))
    return [np.concatenate([shards[k] for k in mine]) for mine in order.reshape(clients, each)]


def _quantities(samples: int, clients: int, alpha: float, stream: np.random.RandomState) -> Deal:
    """Sizes by a Dirichlet distribution, labels as they come: clients differ in how much they have, not in
    what."""
    order = stream.permutation(samples)
    cuts = (np.cumsum(stream.dirichlet(np.full(clients, alpha)))[:-1] * samples).astype(np.int64)
    return int(np.diff(cuts, prepend=0, append=samples).min()), lambda: np.split(order, cuts)


def _by_domain(
    domain: np.ndarray | None,
    clients: int | None,
    each: int | None,
    minimum: int,
    stream: np.random.RandomState,
    recipe: dict[str, Any],
) -> list[np.ndarray]:
    """Every domain dealt at random to clients of its own, in equal parts; what is left over goes to the
    domain's last client."""
    if domain is None:
        raise Error("partition 'domain' needs data that says which domain each sample is of")
    names = np.unique(domain)
    if each is None:
        if clients is None or clients % len(names):
            raise Error(
                f"{clients} clients cannot be dealt evenly to {len(names)} domains; give "
                "clients_each, so many to each domain"
            )
        each = clients // len(names)
    elif clients not in (None, each * len(names)):
        raise Error(
            f"{clients} clients are not {each} for each of {len(names)} domains; give clients or "
            "clients_each, not both"
        )
    shares = []
    for name in names:
        pool = stream.permutation(np.flatnonzero(domain == name))
        if len(pool) // each < minimum:
            raise Error(
                f"domain {name} has {len(pool)} samples, too few for {each} clients of at least "
                f"{minimum}: lower minimum"
            )
        shares += np.split(pool, [k * (len(pool) // each) for k in range(1, each)])
    recipe["names"] = [f"{name} {k}" for name in names for k in range(each)]
    return shares


def hold_out(partition: Partition, share: float, seed: int) -> Partition:
    """The same with a share of the clients, drawn from the seed, put last: they never train
    (`recipe["unseen"]` says how many)."""
    clients = len(partition.clients)
    count = max(1, round(share * clients))
    if "unseen" in partition.recipe:  # a saved partition has them last already
        if partition.recipe["unseen"] != count:
            raise Error(
                f"unseen = {share}: this partition already holds back {partition.recipe['unseen']} of "
                f"{clients} clients"
            )
        return partition
    if count >= clients:
        raise Error(f"unseen = {share} leaves none of the {clients} clients to train")
    drawn = set(np.random.RandomState(seed).permutation(clients)[:count].tolist())
    order = [i for i in range(clients) if i not in drawn] + sorted(drawn)
    recipe = {**partition.recipe, "unseen": count}
    if "names" in recipe:
        recipe["names"] = [recipe["names"][i] for i in order]
    return Partition(tuple(partition.clients[i] for i in order), recipe, partition.data)


def _split(share: np.ndarray, test: float, stream: np.random.RandomState) -> Split:
    """The first part of the shuffled share trains: floor of (1 - test) of it, at least one sample each
    where there are two."""
    share = share.astype(np.int64)
    stream.shuffle(share)
    train = int(len(share) * (1 - test) + 1e-9)
    if len(share) > 1:
        train = min(max(train, 1), len(share) - 1)
    return Split(share[:train], share[train:])
