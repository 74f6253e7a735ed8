"""Pictures in the publishers' layouts, small."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfedsim import data
from pfedsim.data.catalogue import DOMAINS
from pfedsim.errors import Error


def picture(path: Path, shade: int, size: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (shade, 0, 0)).save(path)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate(["n02", "n01"]):
        for i in (10, 9):
            picture(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 20 * k + i)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    for i in range(2):
        picture(root / "val" / "images" / f"val_{i}.JPEG", 200 + i)
    Image.new("L", (64, 64), 99).save(root / "val" / "images" / "val_1.JPEG")  # some of the set are grey
    (root / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn01\t0\t0\t63\t63\nval_1.JPEG\tn02\t0\t0\t9\t9\n"
    )
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "words.txt").write_text("n01\ttench, Tinca tinca\nn02\tgoldfish\nn03\tnot here\n")
    return tmp_path


def test_tiny_imagenet_is_train_then_val_in_the_order_of_wnids(tiny: Path) -> None:
    found = data.read("tiny-imagenet", tiny)
    assert found.classes == ("goldfish", "tench")
    assert found.y.tolist() == [0, 0, 1, 1, 1, 0]
    assert np.abs(found.x[:, 0, 5, 5].astype(int) - [10, 9, 30, 29, 200, 99]).max() <= 2  # JPEG
    assert found.x[5, :, 0, 0].tolist() == [99, 99, 99]
    assert found.mean == pytest.approx((122.5119 / 255, 114.2915 / 255, 101.388 / 255))
    assert found.defaults.model == "mobilenetv2"


def test_tiny_imagenet_that_is_not_whole(tiny: Path) -> None:
    root = tiny / "tiny-imagenet-200"
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t63\t63\n")
    with pytest.raises(Error, match=r"val_annotations\.txt, line 1: 'n99' is not in wnids\.txt"):
        data.read("tiny-imagenet", tiny)
    (root / "val" / "val_annotations.txt").write_text("val_7.JPEG\tn01\t0\t0\t63\t63\n")
    with pytest.raises(Error, match=r"val_7\.JPEG cannot be read"):
        data.read("tiny-imagenet", tiny)
    for file in (root / "train" / "n01" / "images").iterdir():
        file.unlink()
    with pytest.raises(Error, match="n01/images has no images"):
        data.read("tiny-imagenet", tiny)


def test_cinic10_is_test_train_valid(tmp_path: Path) -> None:
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    for p, part in enumerate(("train", "valid", "test")):
        for k, name in enumerate(names):
            picture(tmp_path / part / name / "cifar10-train-1.png", 50 * p + k, 32)
    found = data.read("cinic10", tmp_path)
    assert found.classes == names
    assert found.y.tolist() == 3 * list(range(10))
    assert found.x[:, 0, 0, 0].tolist() == [*range(100, 110), *range(10), *range(50, 60)]
    (tmp_path / "train" / "truck" / "cifar10-train-1.png").unlink()
    with pytest.raises(Error, match="truck has no images"):
        data.read("cinic10", tmp_path)


@pytest.fixture
def domainnet(tmp_path: Path) -> Path:
    for d, domain in enumerate(DOMAINS):
        for c in range(23):
            for k in range(10):
                picture(tmp_path / domain / f"class{c:02d}" / f"{domain}_{k}.jpg", 40 * d + c, 70 + d)
    return tmp_path


def test_domainnet_is_twenty_classes_and_thirty_percent(domainnet: Path) -> None:
    found = data.read("domainnet", domainnet)
    assert found.classes == tuple(
        sorted(random.Random(42).sample([f"class{c:02d}" for c in range(23)], 20))
    )
    assert found.x.shape == (6 * 20 * 3, 3, 64, 64)  # int(0.3 * 10) of each class and domain, rescaled
    assert found.domain is not None
    assert [str(d) for d in np.unique(found.domain)] == list(DOMAINS)
    for domain, base in (("clipart", 0), ("real", 160)):
        mine = found.domain == domain
        assert np.bincount(found.y[mine]).tolist() == [3] * 20
        shades = [base + int(found.classes[c].removeprefix("class")) for c in found.y[mine]]
        assert np.abs(found.x[mine, 0, 30, 30].astype(int) - shades).max() <= 2
    d = found.defaults
    assert (d.clients, d.partition, d.model) == (120, "domain", "mobilenetv2")


def test_domainnets_lists_say_which_pictures_there_are(domainnet: Path) -> None:
    by_folder = data.read("domainnet", domainnet)
    for domain in DOMAINS:
        lines = [
            f"{domain}/{p.parent.name}/{p.name} 0" for p in sorted((domainnet / domain).rglob("*.jpg"))
        ]
        (domainnet / f"{domain}_train.txt").write_text("\n".join(lines[::2]) + "\n")
        (domainnet / f"{domain}_test.txt").write_text("\n".join(lines[1::2]) + "\n")
    assert data.read("domainnet", domainnet).digest == by_folder.digest
    (domainnet / "real_test.txt").write_text("class00/1.jpg 3\n")
    with pytest.raises(
        Error, match=r"real_test\.txt, line 1: .* should have the form domain/class/file\.jpg NUMBER"
    ):
        data.read("domainnet", domainnet)


def test_a_domainnet_with_too_few_classes(tmp_path: Path) -> None:
    picture(tmp_path / "clipart" / "zebra" / "1.jpg", 1)
    with pytest.raises(Error, match="has 1 classes; DomainNet has 345"):
        data.read("domainnet", tmp_path)


def test_a_domainnet_without_all_its_domains(domainnet: Path) -> None:
    for domain in ("painting", "sketch"):
        shutil.rmtree(domainnet / domain)
    with pytest.raises(Error, match="has no painting, sketch: DomainNet has six domains"):
        data.read("domainnet", domainnet)


def test_a_domainnet_with_too_few_pictures(tmp_path: Path) -> None:
    for c in range(20):
        for domain in DOMAINS:
            picture(tmp_path / domain / f"class{c}" / "1.jpg", 1)  # int(0.3 * 1) is none
    with pytest.raises(Error, match="domainnet has no samples"):
        data.read("domainnet", tmp_path)


def test_pacs_is_domains_of_classes(tmp_path: Path) -> None:
    for domain in ("art_painting", "sketch"):
        for name in ("dog", "guitar"):
            picture(tmp_path / "pacs" / domain / name / "pic.webp", 9)
    found = data.read("pacs", tmp_path)
    assert (found.classes, found.y.tolist(), found.defaults.partition) == (
        ("dog", "guitar"),
        [0, 1, 0, 1],
        "domain",
    )
    assert data.read("pacs", tmp_path, size=32).shape == (3, 32, 32)


def test_digit_domains_are_brought_to_one_size_and_three_channels(tmp_path: Path) -> None:
    np.savez(tmp_path / "usps.npz", x=np.full((2, 16, 16), 7, np.uint8), y=np.array([0, 1]))
    np.savez(tmp_path / "svhn.npz", x=np.full((3, 32, 32, 3), (1, 2, 3), np.uint8), y=np.array([1, 2, 0]))
    found = data.read("digit-domains", tmp_path)
    assert found.domain is not None
    assert found.domain.tolist() == ["svhn"] * 3 + ["usps"] * 2
    assert found.x[0, :, 0, 0].tolist() == [1, 2, 3]
    assert (found.x[3:] == 7).all()
    assert found.y.tolist() == [1, 2, 0, 0, 1]
    np.savez(tmp_path / "table.npz", x=np.zeros((2, 4)), y=np.array([0, 1]))
    with pytest.raises(Error, match=r"table\.npz does not contain images of the ten digits"):
        data.read("digit-domains", tmp_path)
