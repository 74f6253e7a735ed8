from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfedsim.data.partition import Partition, Split, hold_out, load, make
from pfedsim.data.readers import cifar10
from pfedsim.errors import Error
from pfedsim.seal import sealed

EMNIST = [
    40363,
    44704,
    40072,
    41112,
    39154,
    36606,
    39937,
    41893,
    39579,
    39533,
    7469,
    4526,
    11833,
    5341,
    5785,
    10622,
    2964,
    3673,
    13994,
    4388,
    2850,
    5886,
    10487,
    9588,
    29139,
    9744,
    3018,
    5882,
    24272,
    11396,
    14604,
    5433,
    5501,
    3203,
    5541,
    3165,
    11677,
    6012,
    3286,
    11860,
    28723,
    2961,
    4276,
    10217,
    3152,
    2213,
    2957,
    17853,
    3109,
    13316,
    3215,
    2816,
    3499,
    16425,
    3136,
    21227,
    3312,
    3378,
    3164,
    3292,
    2746,
    3176,
]
COUNTS = {"cifar10": [6000] * 10, "cinic10": [27_000] * 10, "tiny": [550] * 200, "emnist": EMNIST}


def deal(y: np.ndarray, kind: str = "dirichlet", **asked: Any) -> Partition:
    words = {
        "clients": 100,
        "alpha": 0.1,
        "classes_each": 2,
        "minimum": 40,
        "test": 0.5,
        "seed": 42,
        **asked,
    }
    return make(kind, y, "digest", **words)


def by_class(name: str) -> np.ndarray:
    """Labels with a set's class counts, in the order of the classes."""
    return np.repeat(np.arange(len(COUNTS[name])), COUNTS[name])


def sizes(partition: Partition) -> list[int]:
    return [len(s.train) + len(s.test) for s in partition.clients]


def dealt(partition: Partition) -> list[np.ndarray]:
    return [np.concatenate([s.train, s.test]) for s in partition.clients]


@pytest.mark.parametrize(
    ("name", "alpha", "least", "most", "std"),
    [
        ("cifar10", 0.1, 50, 2197, 487.033),
        ("cifar10", 0.5, 213, 1036, 170.400),
        ("cinic10", 0.1, 40, 9115, 1962.403),
        ("cinic10", 0.5, 578, 4847, 843.357),
        ("tiny", 0.1, 605, 1307, 118.842),
        ("tiny", 0.5, 911, 1200, 38.233),
        ("emnist", 0.1, 2817, 17_627, 2545.991),
        ("emnist", 0.5, 4523, 9992, 782.930),
    ],
)
def test_the_papers_data_table(name: str, alpha: float, least: int, most: int, std: float) -> None:
    found = sizes(deal(by_class(name), alpha=alpha))
    assert (min(found), max(found), round(float(np.std(found)), 3)) == (least, most, std)
    assert sum(found) == sum(COUNTS[name])


@pytest.mark.parametrize(
    ("name", "alpha", "first"),
    [
        ("cifar10", 0.1, [2035, 336, 79, 619, 449, 186]),
        ("cifar10", 0.5, [638, 706, 248, 602, 814, 453]),
        ("emnist", 0.1, [8315, 8209, 8626, 17_627, 8757, 13_712]),
        ("emnist", 0.5, [8509, 8284, 8244, 8193, 8663, 7138]),
    ],
)
def test_sizes_need_only_the_class_counts_whatever_the_order_of_the_labels(
    name: str, alpha: float, first: list[int]
) -> None:
    y = by_class(name)
    assert sizes(deal(y, alpha=alpha))[:6] == first
    mixed = np.random.default_rng(5).permutation(y)
    assert sizes(deal(mixed, alpha=alpha)) == sizes(deal(y, alpha=alpha))


@pytest.mark.parametrize(
    ("alpha", "train", "test", "classes"), [(0.1, 29_977, 30_023, 4.52), (0.5, 29_973, 30_027, 8.34)]
)
def test_totals_after_the_split(alpha: float, train: int, test: int, classes: float) -> None:
    y = by_class("cifar10")
    partition = deal(y, alpha=alpha)
    assert sum(len(s.train) for s in partition.clients) == train
    assert sum(len(s.test) for s in partition.clients) == test
    assert all(len(s.test) - len(s.train) in (0, 1) for s in partition.clients)
    assert np.mean([len(np.unique(y[share])) for share in dealt(partition)]) == pytest.approx(classes)


@pytest.mark.parametrize(
    ("alpha", "first"),
    [(0.1, [3234, 25409, 35856, 22311, 19768]), (0.5, [32714, 52683, 56328, 24854, 2658])],
)
def test_the_index_lists_of_real_cifar10(alpha: float, first: list[int]) -> None:
    folder = Path(os.environ.get("PFEDSIM_DATA", "nowhere"))
    try:
        data = cifar10.read(folder)
    except Error:
        pytest.skip("no CIFAR-10 in $PFEDSIM_DATA")
    partition = make(
        "dirichlet",
        data.y,
        data.digest,
        clients=100,
        alpha=alpha,
        classes_each=2,
        minimum=40,
        test=0.5,
        seed=42,
    )
    assert partition.clients[0].train[:5].tolist() == first


@pytest.mark.parametrize(("alpha", "std"), [(0.1, 572.4), (0.5, 242.8)])
def test_plain_dirichlet_has_no_cap(alpha: float, std: float) -> None:
    assert round(float(np.std(sizes(deal(by_class("cifar10"), "dirichlet-plain", alpha=alpha)))), 1) == std


def test_iid_shares_are_even_in_size_and_classes() -> None:
    y = by_class("cifar10")
    partition = deal(y, "iid", clients=7)
    assert max(sizes(partition)) - min(sizes(partition)) <= 1
    shares = np.stack([np.bincount(y[share], minlength=10) / len(share) for share in dealt(partition)])
    assert abs(shares - 0.1).max() < 0.02


@pytest.mark.parametrize("each", [1, 2, 5, 10])
def test_every_client_holds_k_classes_and_classes_are_used_evenly(each: int) -> None:
    y = by_class("cifar10")
    partition = deal(y, "classes", clients=20, classes_each=each)
    held = np.stack([np.bincount(y[share], minlength=10) > 0 for share in dealt(partition)])
    assert (held.sum(1) == each).all()
    assert (held.sum(0) == 20 * each / 10).all()
    assert np.unique(np.concatenate(dealt(partition))).size == len(y)


def test_given_clients_keep_their_own_samples() -> None:
    owner = np.array(["ward b", "ward a", "ward b", "ward a", "ward c", "ward b", "ward c", "ward a"])
    partition = deal(np.zeros(8, int), "given", clients=None, minimum=2, owner=owner)
    assert [sorted(share.tolist()) for share in dealt(partition)] == [[1, 3, 7], [0, 2, 5], [4, 6]]


labels = st.lists(st.integers(0, 5), min_size=30, max_size=300).map(np.array)


@given(
    labels,
    st.sampled_from(["dirichlet", "dirichlet-plain", "classes", "iid"]),
    st.integers(1, 9),
    st.floats(0.05, 20),
    st.integers(1, 3),
    st.integers(2, 6),
    st.floats(0.05, 0.95),
    st.integers(0, 2**32 - 1),
)
def test_every_sample_is_dealt_once_and_the_minimum_is_kept(
    y: np.ndarray, kind: str, clients: int, alpha: float, each: int, minimum: int, test: float, seed: int
) -> None:
    try:
        partition = deal(
            y, kind, clients=clients, alpha=alpha, classes_each=each, minimum=minimum, test=test, seed=seed
        )
    except Error:
        return  # a request that cannot be met; what it says is tested below
    everything = np.concatenate(dealt(partition))
    assert len(everything) == len(set(everything.tolist()))
    if kind != "classes" or clients * each >= len(
        np.unique(y)
    ):  # fewer holders than classes leave classes out
        assert len(everything) == len(y)
    assert min(sizes(partition)) >= minimum
    assert len(partition.clients) == clients
    assert all(len(s.train) and len(s.test) for s in partition.clients)
    again = deal(
        y, kind, clients=clients, alpha=alpha, classes_each=each, minimum=minimum, test=test, seed=seed
    )
    assert again.digest == partition.digest


@pytest.mark.parametrize(
    ("kind", "asked", "way_out"),
    [
        ("dirichlet", {"minimum": 100}, "a larger alpha or a smaller minimum"),
        (
            "dirichlet",
            {"alpha": 1e-3, "clients": 20, "minimum": 25},
            "a larger alpha or a smaller minimum",
        ),
        ("dirichlet", {"alpha": 1e-300, "clients": 20, "minimum": 2}, "a larger alpha"),
        ("dirichlet-plain", {"alpha": 1e-3, "clients": 20, "minimum": 2}, "a larger alpha"),
        ("iid", {"clients": 601, "minimum": 1}, "600 clients are possible, more with a smaller minimum"),
        ("classes", {"classes_each": 4, "clients": 5}, "classes_each = 4 is more than the 3 classes"),
        (
            "classes",
            {"classes_each": 1, "clients": 20, "minimum": 30},
            "gave each of 20 clients 30 samples (the best gave 28)",
        ),
        ("given", {}, "array `client`"),
        ("given", {"owner": np.arange(600) // 300, "clients": 3}, "the data name 2 clients, not 3"),
        (
            "given",
            {"owner": (np.arange(600) > 0).astype(int), "clients": None},
            "client '0' has 1 sample; every client needs at least 40: lower minimum, remove its rows or merge",
        ),
    ],
)
def test_an_impossible_request_names_a_way_out(kind: str, asked: dict[str, Any], way_out: str) -> None:
    with pytest.raises(Error) as caught:
        deal(np.repeat([0, 1, 2], 200), kind, **asked)
    assert way_out in str(caught.value)


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-plain", "classes", "shards", "quantity", "iid"])
def test_the_number_of_clients_that_a_refusal_names_can_be_dealt(kind: str) -> None:
    y = np.arange(1797) % 10
    with pytest.raises(Error) as caught:
        deal(y, kind, clients=1000, minimum=10)
    (most,) = re.findall(r"(\d+) clients are possible", str(caught.value))
    assert 1 < int(most) <= 179
    assert min(sizes(deal(y, kind, clients=int(most), minimum=10))) >= 10


# the file


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    partition = make(
        "dirichlet",
        np.repeat([0, 1, 2], 40),
        "d" * 64,
        clients=4,
        alpha=1.0,
        classes_each=2,
        minimum=5,
        test=0.5,
        seed=1,
    )
    partition.save(tmp_path / "partition.json")
    return tmp_path / "partition.json"


def test_a_partition_comes_back_from_its_file(saved: Path) -> None:
    made = make(
        "dirichlet",
        np.repeat([0, 1, 2], 40),
        "d" * 64,
        clients=4,
        alpha=1.0,
        classes_each=2,
        minimum=5,
        test=0.5,
        seed=1,
    )
    read = load(saved, "d" * 64, 120)
    assert read.digest == made.digest == json.loads(saved.read_text())["digest"]
    assert read.recipe == made.recipe
    for a, b in zip(read.clients, made.clients, strict=True):
        assert (a.train.tolist(), a.test.tolist()) == (b.train.tolist(), b.test.tolist())


def _moved(content: dict[str, Any]) -> None:
    content["clients"][0]["train"].append(content["clients"][1]["train"].pop())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_moved, "damaged"),
        (lambda c: c["clients"].pop(), "damaged: its positions"),
        (lambda c: c["clients"][0].pop("test"), "not a valid partition file"),
        (lambda c: c["clients"][0]["train"].append("x"), "not a valid partition file"),
        (lambda c: c["clients"][0]["train"].append([1]), "not a valid partition file"),
        (lambda c: c["clients"][0]["train"].append(10**30), "not a valid partition file"),
        (lambda c: c.update(format="another"), "is not a partition file"),
    ],
)
def test_damage_is_noticed(saved: Path, damage: Any, says: str) -> None:
    content = json.loads(saved.read_text())
    del content["sha256"]
    damage(content)
    saved.write_text(sealed(content))
    with pytest.raises(Error, match=says):
        load(saved, "d" * 64, 120)


def test_a_changed_recipe_is_noticed(saved: Path) -> None:
    """How many clients never train, and their names, are in the recipe, which the positions do not show."""
    text = saved.read_text()
    saved.write_text(text.replace('"recipe": {', '"recipe": {"unseen": 1, '))
    assert saved.read_text() != text
    with pytest.raises(Error, match="does not match its sha256"):
        load(saved, "d" * 64, 120)


def test_a_file_cut_short_or_missing_is_refused(saved: Path) -> None:
    saved.write_text(saved.read_text()[:-40])
    with pytest.raises(Error, match="it is not a partition file"):
        load(saved, "d" * 64, 120)
    with pytest.raises(Error, match="cannot be read"):
        load(saved.with_name("other.json"), "d" * 64, 120)


def test_another_data_sets_partition_is_refused(saved: Path) -> None:
    with pytest.raises(Error, match="made for other data"):
        load(saved, "e" * 64, 120)


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ([Split(np.array([0, 1]), np.array([1, 2]))], "both train and test"),
        ([Split(np.array([0]), np.array([120]))], "sample 120, the data has 120"),
        ([Split(np.array([-1]), np.array([5]))], "sample -1, the data has 120"),
        ([], "no client"),
    ],
)
def test_positions_that_make_no_sense_are_refused(tmp_path: Path, clients: list[Split], says: str) -> None:
    Partition(tuple(clients), {}, "d").save(tmp_path / "p.json")
    with pytest.raises(Error, match=says):
        load(tmp_path / "p.json", "d", 120)


# shards, quantities, domains, unseen clients


def made(kind: str, y: np.ndarray, **options: Any) -> Partition:
    return make(
        kind, y, "d", **{"clients": 10, "alpha": 0.5, "minimum": 2, "test": 0.5, "seed": 42, **options}
    )


def shares(partition: Partition) -> list[np.ndarray]:
    return [np.sort(np.concatenate([s.train, s.test])) for s in partition.clients]


def all_once(partition: Partition, count: int) -> bool:
    return bool(np.array_equal(np.sort(np.concatenate(shares(partition))), np.arange(count)))


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 99))
def test_shards_are_dealt_whole_and_hold_few_classes(clients: int, each: int, seed: int) -> None:
    y = np.random.RandomState(seed).randint(0, 5, 240)
    partition = made("shards", y, clients=clients, shards_each=each, seed=seed)
    assert all_once(partition, 240)
    sizes = [len(share) for share in shares(partition)]
    assert max(sizes) - min(sizes) <= each
    # a shard of sorted labels crosses at most as many classes as it is long
    assert all(len(np.unique(y[share])) <= each * 5 for share in shares(partition))


def test_two_shards_of_equal_classes_are_at_most_two_classes() -> None:
    y = np.arange(400) * 7 % 10
    partition = made("shards", y, clients=10, shards_each=2)  # 20 shards of 20: none crosses a class
    assert [len(share) for share in shares(partition)] == [40] * 10
    assert {len(np.unique(y[share])) for share in shares(partition)} <= {1, 2}
    for share, (a, b) in zip(
        shares(partition), np.random.RandomState(42).permutation(20).reshape(10, 2), strict=True
    ):
        assert sorted(y[share]) == sorted([a // 2] * 20 + [b // 2] * 20)  # shard k is of class k // 2
    with pytest.raises(
        Error, match="10 clients with 3 shards have only 39 samples each, but the minimum is 40"
    ):
        made("shards", y, shards_each=3, minimum=40)


@given(st.integers(2, 12), st.integers(0, 99))
def test_quantities_differ_and_labels_do_not(clients: int, seed: int) -> None:
    partition = made("quantity", np.arange(600) % 3, clients=clients, seed=seed)
    assert all_once(partition, 600)
    assert min(len(share) for share in shares(partition)) >= 2


def test_quantity_follows_alpha() -> None:
    y = np.repeat(np.arange(10), 2000)
    even, uneven = (
        [len(s) for s in shares(made("quantity", y, alpha=a, clients=50))] for a in (100.0, 0.5)
    )
    assert np.std(even) < 60 < 200 < np.std(uneven)
    share = max(shares(made("quantity", y, alpha=0.5, clients=50)), key=len)
    assert np.abs(np.bincount(y[share]) / len(share) - 0.1).max() < 0.03
    with pytest.raises(Error, match="a larger alpha or a smaller minimum"):
        made("quantity", np.arange(100) % 2, alpha=0.01, clients=10, minimum=8)


@pytest.mark.parametrize(
    ("samples", "test", "train"),
    [(100, 0.9, 10), (7, 0.5, 3), (3, 0.0, 2), (3, 1.0, 1), (2, 0.5, 1), (1, 0.5, 0)],
)
def test_the_split_is_exact_and_leaves_both_parts_a_sample(samples: int, test: float, train: int) -> None:
    """100 * (1 - 0.9) is 9.999999999999998."""
    owner = np.zeros(samples, int)
    (split,) = made("given", owner, clients=None, minimum=1, test=test, owner=owner).clients
    assert (len(split.train), len(split.test)) == (train, samples - train)


def test_every_client_is_of_one_domain_and_the_last_takes_the_rest() -> None:
    domain = np.array(["b"] * 23 + ["a"] * 11)
    partition = made("domain", np.zeros(34, int), clients=None, clients_each=3, domain=domain)
    assert all_once(partition, 34)
    assert [len(share) for share in shares(partition)] == [3, 3, 5, 7, 7, 9]
    assert [set(domain[share]) for share in shares(partition)] == [{"a"}] * 3 + [{"b"}] * 3
    assert partition.recipe["names"] == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]
    assert made("domain", np.zeros(34, int), clients=6, domain=domain).digest == partition.digest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"domain": None}, "needs data that name each sample's domain"),
        ({"clients": 5}, "5 clients cannot be divided evenly among 2 domains; give clients_each"),
        ({"clients": 5, "clients_each": 2}, "5 clients are not 2 for each of 2 domains"),
        (
            {"clients_each": 9, "clients": None},
            "domain a has 11 samples, too few for 9 clients with at least 2",
        ),
    ],
)
def test_domains_that_cannot_be_dealt(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Error) as caught:
        made("domain", np.zeros(34, int), **{"domain": np.array(["b"] * 23 + ["a"] * 11), **options})
    assert says in str(caught.value)


def test_unseen_clients_are_put_last_and_nothing_else_changes(tmp_path: Path) -> None:
    owner = np.repeat(["a", "b", "c", "d", "e"], 8)
    whole = made("given", np.zeros(40, int), clients=None, owner=owner)
    held = hold_out(whole, 0.4, 42)
    assert held.recipe["unseen"] == 2
    names = held.recipe["names"]
    assert sorted(names) == list("abcde")
    assert names[:3] == sorted(names[:3])
    by_name = dict(zip(whole.recipe["names"], whole.clients, strict=True))
    assert [by_name[name] for name in names] == list(held.clients)
    assert hold_out(whole, 0.4, 42).digest == held.digest
    held.save(tmp_path / "p.json")
    again = load(tmp_path / "p.json", "d", 40)
    assert hold_out(again, 0.4, 7).digest == held.digest  # they are last already
    with pytest.raises(Error, match="already holds back 2 of 5"):
        hold_out(again, 0.2, 42)
    with pytest.raises(Error, match="leaves none of the 5 clients"):
        hold_out(whole, 0.95, 42)


def test_clients_that_are_numbers_are_in_their_order() -> None:
    owner = np.repeat(["10", "9", "100"], 4)
    assert deal(np.arange(12) % 2, "given", clients=None, minimum=2, owner=owner).recipe["names"] == [
        "9",
        "10",
        "100",
    ]
    owner = np.repeat(["b", "9", "10"], 4)
    assert deal(np.arange(12) % 2, "given", clients=None, minimum=2, owner=owner).recipe["names"] == [
        "10",
        "9",
        "b",
    ]


def test_clients_of_each_domain_are_for_domains() -> None:
    with pytest.raises(
        Error, match="clients_each = 3 is for the partition 'domain', not 'iid'; give clients"
    ):
        deal(np.arange(12) % 2, "iid", clients=None, clients_each=3)


def test_quantity_has_an_alpha_of_its_own() -> None:
    from pfedsim import federate

    federation = federate("digits", partition="quantity")
    assert federation.partition.recipe["alpha"] == 2
    assert min(sizes(federation.partition)) >= 10


def dealt_by_hand(y: np.ndarray, clients: int, alpha: float, minimum: int) -> tuple[list[Any], int]:
    """The capped Dirichlet partition and the split, written out: one stream; pools stay permuted over passes;
    (train, test) of every client, and the number of passes."""
    stream = np.random.RandomState(42)
    pools = {c: [k for k in range(len(y)) if y[k] == c] for c in range(int(y.max()) + 1)}
    passes = 0
    while True:
        passes += 1
        shares: list[list[int]] = [[] for _ in range(clients)]
        for pool in pools.values():
            stream.shuffle(pool)
            p = [
                q if len(share) < len(y) / clients else 0.0
                for q, share in zip(stream.dirichlet([alpha] * clients), shares, strict=True)
            ]
            ends = [int(e * len(pool)) for e in np.cumsum(np.array(p) / sum(p))[:-1]] + [len(pool)]
            for share, begin, end in zip(shares, [0, *ends], ends, strict=False):
                share += pool[begin:end]
        if min(map(len, shares)) >= minimum:
            break
    split = []
    for share in shares:
        stream.shuffle(share)
        split.append((share[: len(share) // 2], share[len(share) // 2 :]))
    return split, passes


def test_the_index_lists_of_made_up_labels() -> None:
    """Against a few lines of their own, and an anchor; fails where the split is not shuffled, its halves are
    swapped, or pools are reset between passes."""
    y = np.arange(600) * 7 % 600 % 5
    expected, passes = dealt_by_hand(y, clients=8, alpha=0.3, minimum=25)
    partition = deal(y, clients=8, alpha=0.3, minimum=25)
    assert passes > 1
    assert [(s.train.tolist(), s.test.tolist()) for s in partition.clients] == expected
    assert partition.clients[0].train[:5].tolist() == [312, 467, 357, 492, 292]
    assert partition.digest[:16] == "7495818a9de67b2c"
