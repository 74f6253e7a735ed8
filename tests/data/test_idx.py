"""idx files in the publishers' exact format, small."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from pfedsim import data
from pfedsim.data.readers import idx
from pfedsim.errors import Error


def images(count: int, first: int = 0) -> bytes:
    pixels = (np.arange(count * 28 * 28) // (28 * 28) + first).astype(np.uint8)
    return b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28)) + pixels.tobytes()


def labels(*values: int) -> bytes:
    return b"\x00\x00\x08\x01" + len(values).to_bytes(4, "big") + bytes(values)


def written(
    folder: Path, prefix: str = "", parts: tuple[str, str] = ("train", "t10k"), first: int = 0
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, start in zip(parts, (0, 3), strict=True):
        (folder / f"{prefix}{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images(3, start)))
        (folder / f"{prefix}{part}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(labels(first, first + 9, first + 4))
        )
    return folder


@pytest.mark.usefixtures("made_up")
def test_train_then_test_pooled(tmp_path: Path) -> None:
    found = data.read("mnist", written(tmp_path / "mnist").parent)
    assert (found.x.shape, found.x.dtype) == ((6, 1, 28, 28), np.uint8)
    assert found.x[:, 0, 5, 5].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.y.tolist() == [0, 9, 4, 0, 9, 4]
    assert (found.mean, found.std) == ((0.1307,), (0.3081,))
    assert data.read("fashion-mnist", written(tmp_path / "fashion-mnist")).classes[9] == "Ankle boot"


@pytest.mark.usefixtures("made_up")
def test_files_that_are_not_compressed_are_read_too(tmp_path: Path) -> None:
    for file in written(tmp_path).iterdir():
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert len(data.read("mnist", tmp_path).y) == 6


@pytest.mark.parametrize(
    ("split", "classes", "first"),
    [("byclass", 62, 0), ("bymerge", 47, 0), ("balanced", 47, 0), ("letters", 26, 1), ("digits", 10, 0)],
)
def test_every_split_of_emnist(tmp_path: Path, split: str, classes: int, first: int) -> None:
    written(tmp_path / "gzip", f"emnist-{split}-", ("train", "test"), first)
    found = data.read("emnist" if split == "byclass" else f"emnist-{split}", tmp_path)
    assert len(found.classes) == len(set(found.classes)) == classes
    assert found.y.tolist() == [0, 9, 4, 0, 9, 4]
    assert found.x[3, 0, 0, 0] == 3  # as the publisher has them: no turning
    if split == "byclass":
        assert (found.mean, found.std, found.classes[10], found.classes[36]) == (
            (0.1736,),
            (0.3248,),
            "A",
            "a",
        )


@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        (
            "train-images-idx3",
            lambda b: gzip.compress(b"\0\0\x08\x01" + gzip.decompress(b)[4:]),
            "an idx file of images begins with",
        ),
        (
            "train-labels-idx1",
            lambda b: gzip.compress(b"hello world"),
            "an idx file of labels begins with 0x00000801",
        ),
        ("t10k-images-idx3", lambda b: b[: len(b) // 2], "is truncated or not a gzip file"),
        ("t10k-images-idx3", lambda b: b"not gzip at all", "is truncated or not a gzip file"),
        (
            "t10k-images-idx3",
            lambda b: gzip.compress(gzip.decompress(b)[:-1]),
            r"should have 3 x 28 x 28 bytes but has 2,351",
        ),
        (
            "train-labels-idx1",
            lambda b: gzip.compress(labels(0, 12, 1)),
            "holds labels from 0 to 12; mnist has 0 to 9",
        ),
        (
            "train-labels-idx1",
            lambda b: gzip.compress(labels(0, 1)),
            "holds 3 images, train-labels-idx1-ubyte.gz 2 labels",
        ),
        ("train-labels-idx1", lambda b: gzip.compress(labels(9, 0, 0, 3, 0, 2, 7, 2, 5, 5)), "10 labels"),
        ("train-labels-idx1", None, "has no train-labels-idx1-ubyte.gz"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, file: str, damage: object, says: str) -> None:
    path = written(tmp_path) / f"{file}-ubyte.gz"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(Error) as caught:
        data.read("mnist", tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("made_up")
def test_mnist_and_fashion_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    (written(tmp_path) / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images(10)))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(labels(*idx.FIRST_LABELS["fashion-mnist"]))
    )
    with pytest.raises(Error, match="holds the labels of fashion-mnist, not of mnist"):
        data.read("mnist", tmp_path)
    assert data.read("fashion-mnist", tmp_path).y[0] == 9


def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        Error,
        match="get it with `pfedsim data get emnist-letters`, or set `--data-dir` to the folder that contains it",
    ):
        data.read("emnist-letters", tmp_path)
    with pytest.raises(Error, match="mnist cannot be rescaled"):
        data.read("mnist", written(tmp_path), size=32)
