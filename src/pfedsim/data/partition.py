"""Partitions: which client holds which samples, and a JSON file format to share them.

The label Dirichlet with a size cap reproduces the paper's data table to the digit. It uses one legacy numpy
stream, shuffles each class and then divides it, keeps the classes permuted over retries, gives no more samples
to clients at or above the mean size, and tests the minimum at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import durable, seal
from pfedsim.errors import Error

KINDS = ("dirichlet", "dirichlet-plain", "classes", "shards", "quantity", "iid", "domain", "given")
FORMAT = "pfedsim partition 1"  # part of every digest
HOPELESS_AFTER = 1000  # passes, if the best one has not reached half the minimum
FEW_PASSES = 50  # to find out how many clients are possible
MOST_PASSES = 5000  # the plain Dirichlet(0.1) of CIFAR-10 with the paper's minimum takes 2,670
Attempt = tuple[int, Callable[[], list[np.ndarray]]]  # size of the smallest share; computes all shares


class TooMany(Error):
    """There are not enough samples to give every client the minimum."""


@dataclass(frozen=True)
class Split:
    """One client's samples, as positions in the data set, in stored order."""

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Partition:
    """Every client's train and test samples, and the recipe that produced them."""

    clients: tuple[Split, ...]
    recipe: dict[str, Any]
    data: str
    """digest of the data set that the positions refer to"""

    @cached_property
    def digest(self) -> str:
        """sha256 of all positions and the data set's digest."""
        h = hashlib.sha256(f"{FORMAT} {self.data} {len(self.clients)}".encode())
        for split in self.clients:
            for part in (split.train, split.test):
                h.update(len(part).to_bytes(8, "little"))
                h.update(np.ascontiguousarray(part, dtype="<i8").data)
        return h.hexdigest()

    def text(self) -> str:
        """The contents of a partition file: JSON with one client per line and the sha256 of it all."""
        clients = [{"train": s.train.tolist(), "test": s.test.tolist()} for s in self.clients]
        lines = ",\n".join(json.dumps(client, separators=(",", ":")) for client in clients)
        head = {"format": FORMAT, "digest": self.digest, "data": self.data, "recipe": self.recipe}
        whole = seal.digest({**head, "clients": clients})
        return f'{json.dumps(head)[:-1]}, "clients": [\n{lines}\n], "{seal.KEY}": "{whole}"}}\n'

    def save(self, path: Path) -> None:
        durable.write(path, self.text().encode())


def load(path: Path, data: str, samples: int) -> Partition:
    """Load a partition file. Raises an error if it is damaged or belongs to other data."""
    content = _content(path)
    try:
        clients = tuple(Split(_positions(c["train"]), _positions(c["test"])) for c in content["clients"])
        partition = Partition(clients, dict(content["recipe"]), content["data"])
        recorded = content["digest"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Error(f"{path} is not a valid partition file: {error}") from error
    if partition.digest != recorded:
        raise Error(f"{path} is damaged: its positions do not match its digest")
    if partition.data != data:
        raise Error(
            f"{path} was made for other data (digest {partition.data[:12]}, this data's is {data[:12]})"
        )
    _check(partition, path, samples)
    return partition


def names_in(path: Path) -> list[str] | None:
    """The names of the clients in a partition file; None if they have no names."""
    try:
        names = _content(path)["recipe"].get("names")
        return None if names is None else [str(name) for name in names]
    except (KeyError, TypeError, AttributeError) as error:
        raise Error(f"{path} is not a valid partition file: {error}") from error


def _content(path: Path) -> dict[str, Any]:
    content = seal.load(path, "a partition file")
    if content.get("format") != FORMAT:
        raise Error(f"{path} is not a partition file ({FORMAT!r} expected)")
    return content


def _in_order(names: list[Any]) -> list[Any]:
    """Sort numerically if all names are integers (also as text), else alphabetically."""
    integers = all(str(name).removeprefix("-").isdecimal() for name in names)
    return sorted(names, key=(lambda name: (int(name), name)) if integers else None)


def _positions(values: list[int]) -> np.ndarray:
    array = np.array(values, dtype=np.int64)
    if array.ndim != 1:
        raise ValueError("positions must be a list of numbers")
    return array


def _check(partition: Partition, path: Path, samples: int) -> None:
    if not partition.clients:
        raise Error(f"{path} has no clients")
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
    """Partition the samples and split each client's share into train and test, with one random stream.
    `owner` and `domain`: those of each sample, if known."""
    if clients_each is not None and kind != "domain":
        raise Error(
            f"clients_each = {clients_each} is for the partition 'domain', not {kind!r}; give clients"
        )
    stream = np.random.RandomState(seed)
    recipe: dict[str, Any] = {"kind": kind, "minimum": minimum, "test": test, "seed": seed}
    if kind == "domain":
        shares = _by_domain(domain, clients, clients_each, minimum, stream, recipe)
    elif kind == "given":
        shares = _as_given(owner, clients, minimum, recipe)
    else:
        wanted = clients or 100

        def by_label(count: int, stream: np.random.RandomState, passes: int) -> list[np.ndarray]:
            return _by_label(
                kind, y, count, alpha, classes_each, shards_each, minimum, stream, recipe, passes
            )

        try:
            shares = by_label(wanted, stream, MOST_PASSES)
        except TooMany as error:
            most = _most_clients(by_label, min(wanted - 1, len(y) // minimum), seed)
            possible = f"{most} clients are possible, more with" if most else "choose"
            larger = "a larger alpha or " if "alpha" in recipe else ""
            raise Error(f"{error}; {possible} {larger}a smaller minimum") from None
    recipe["clients"] = len(shares)
    return Partition(tuple(split_share(share, test, stream) for share in shares), recipe, data)


def _as_given(
    owner: np.ndarray | None, clients: int | None, minimum: int, recipe: dict[str, Any]
) -> list[np.ndarray]:
    """The shares of the clients that the data name."""
    if owner is None:
        raise Error("partition 'given' needs data that name each sample's client (an array `client`)")
    everyone = _in_order(np.unique(owner).tolist())
    recipe["names"] = list(map(str, everyone))
    shares = [np.flatnonzero(owner == who) for who in everyone]
    if clients not in (None, len(shares)):
        raise Error(f"the data name {len(shares)} clients, not {clients}")
    least = min(range(len(shares)), key=lambda i: len(shares[i]))
    if len(shares[least]) < minimum:
        count, lower = len(shares[least]), "lower minimum, " if minimum > 2 else ""
        raise Error(
            f"client {str(everyone[least])!r} has {count} sample{'s' * (count != 1)}; every client needs at least "
            f"{minimum}: {lower}remove its rows or merge it with another client"
        )
    return shares


def _most_clients(
    by_label: Callable[[int, np.random.RandomState, int], list[np.ndarray]], clients: int, seed: int
) -> int:
    """A possible number of clients for this seed: the first that works, going down from `clients` by fifths."""
    while clients > 0:
        try:
            by_label(clients, np.random.RandomState(seed), FEW_PASSES)
            return clients
        except TooMany:
            clients = clients * 4 // 5
    return 0


def _by_label(
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
            f"{clients:,} clients with at least {minimum} samples need {clients * minimum:,}, but there are "
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


def _until(minimum: int, clients: int, attempt: Callable[[], Attempt], most: int) -> list[np.ndarray]:
    """Draw up to `most` random partitions until the smallest share reaches the minimum."""
    best = 0
    for passes in range(1, most + 1):
        smallest, shares = attempt()
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
) -> Attempt:
    """One pass over all classes. It fails if all proportions vanish in float64, as they can for a tiny alpha."""
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


def _classes(y: np.ndarray, clients: int, each: int, stream: np.random.RandomState) -> Attempt:
    """Every client gets `each` classes. All classes are used about equally often, and the clients of a class share
    it evenly."""
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
    smallest = min(sum(map(len, parts)) for parts in shares)
    return smallest, lambda: [np.concatenate(parts) for parts in shares]


def _shards(
    y: np.ndarray, clients: int, each: int, minimum: int, stream: np.random.RandomState
) -> list[np.ndarray]:
    """Sort the samples by label, cut them into equal shards and give `each` to every client (McMahan et al.
    2017)."""
    shards = np.array_split(np.argsort(y, kind="stable"), clients * each)
    if each * len(shards[-1]) < minimum:
        raise TooMany(
            f"{clients:,} clients with {each} shards have only {each * len(shards[-1])} samples each, but the "
            f"minimum is {minimum}"
        )
    order = stream.permutation(len(shards))
    return [np.concatenate([shards[k] for k in mine]) for mine in order.reshape(clients, each)]


def _quantities(samples: int, clients: int, alpha: float, stream: np.random.RandomState) -> Attempt:
    """Sizes follow a Dirichlet distribution; labels are random. Clients differ only in how many samples they
    have."""
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
    """Every domain has its own clients, which share it randomly in equal parts; its last client also gets the
    remainder."""
    if domain is None:
        raise Error("partition 'domain' needs data that name each sample's domain")
    names = np.unique(domain)
    if each is None:
        if clients is None or clients % len(names):
            raise Error(
                f"{clients} clients cannot be divided evenly among {len(names)} domains; give "
                "clients_each, the number per domain"
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
                f"domain {name} has {len(pool)} samples, too few for {each} clients with at least "
                f"{minimum}: lower minimum"
            )
        shares += np.split(pool, [k * (len(pool) // each) for k in range(1, each)])
    recipe["names"] = [f"{name} {k}" for name in names for k in range(each)]
    return shares


def hold_out(partition: Partition, share: float, seed: int) -> Partition:
    """Move a random share of the clients to the end: they never train. `recipe["unseen"]` is their number."""
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


def split_share(share: np.ndarray, test: float, stream: np.random.RandomState) -> Split:
    """Shuffle the share; the first floor((1 - test) n) samples are for training, the rest for testing. Both parts
    get at least one sample if there are two."""
    share = share.astype(np.int64)
    stream.shuffle(share)
    train = int(len(share) * (1 - test) + 1e-9)
    if len(share) > 1:
        train = min(max(train, 1), len(share) - 1)
    return Split(share[:train], share[train:])
