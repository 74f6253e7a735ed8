from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedsim import data
from pfedsim.data.dataset import DataSet
from pfedsim.data.readers import cifar10
from pfedsim.errors import Error

SIZE = 10_000 * 3073


def test_digits_are_the_real_ones_each_pixel_a_square() -> None:
    from sklearn.datasets import load_digits

    digits = data.read("digits")
    assert (digits.x.shape, digits.x.dtype, digits.shape) == ((1797, 1, 32, 32), np.uint8, (1, 32, 32))
    raw = load_digits()
    assert digits.y.tolist() == raw.target.tolist()
    assert np.abs(digits.x[:, 0, 2::4, 1::4] / 255 - raw.images / 16).max() < 0.002
    assert (digits.x[:, :, 0::4] == digits.x[:, :, 3::4]).all()
    assert digits.mean[0] == pytest.approx((digits.x / 255).mean(), abs=1e-4)
    assert digits.std[0] == pytest.approx((digits.x / 255).std(), abs=1e-4)
    d = digits.defaults
    assert (d.clients, d.partition, d.alpha, d.minimum, d.join, d.rounds) == (
        20,
        "dirichlet",
        0.1,
        10,
        0.5,
        20,
    )


def test_images_have_ordinary_strides_so_that_torch_takes_one_path_for_them(tmp_path: Path) -> None:
    grey = npz(tmp_path, x=np.zeros((4, 5, 6), np.uint8), y=Y)
    assert data.read("digits").x.strides == (
        1024,
        1024,
        32,
        1,
    )  # a channel of stride 0 looks like channels last: other bits
    assert grey.x.strides == (30, 30, 6, 1)


def test_the_digest_sees_every_pixel_label_and_constant() -> None:
    x, y = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2), np.array([0, 1, 0, 1, 0, 1])

    def made(**other: Any) -> str:
        words = {"name": "d", "x": x, "y": y, "classes": ("a", "b"), "mean": (0.5,), "std": (1.0,), **other}
        return DataSet(**words).digest

    pixel, label = x.copy(), y.copy()
    pixel[3, 0, 1, 1] += 1
    label[5] = 0
    others = [
        made(x=pixel),
        made(y=label),
        made(mean=(0.4,)),
        made(std=(2.0,)),
        made(client=y),
        made(x=x.reshape(6, 1, 1, 4)),
    ]
    assert made() == made(name="other", x=np.asfortranarray(x))
    assert len({made(), *others}) == 1 + len(others)


# CIFAR-10: files of the publisher's size; what is not written is a hole that reads as zeros


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for k, name in enumerate(cifar10.FILES):
        with open(folder / name, "wb") as file:
            file.write(bytes([k]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes(range(32)) * 32)
            file.truncate(SIZE)
    return tmp_path


@pytest.mark.usefixtures("made_up")
def test_cifar10_is_pooled_in_the_publishers_order(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSIM_DATA", str(cifar))
    pooled = data.read("cifar10")
    assert (pooled.x.shape, pooled.x.dtype) == ((60_000, 3, 32, 32), np.uint8)
    assert pooled.y[::10_000].tolist() == [0, 1, 2, 3, 4, 5]
    assert pooled.x[0, :, 4, 7].tolist() == [10, 20, 7]
    d = pooled.defaults
    assert (d.clients, d.alpha, d.minimum, d.join, d.rounds) == (100, 0.1, 40, 0.1, 200)


def test_a_cut_foreign_or_missing_cifar10_is_refused_by_file(cifar: Path) -> None:
    folder = cifar / "cifar-10-batches-bin"
    third, last = folder / "data_batch_3.bin", folder / "test_batch.bin"
    with open(third, "r+b") as file:
        file.write(b"\x0b")
    with pytest.raises(Error, match=r"data_batch_3\.bin has a label above 9"):
        cifar10.read(folder)
    with open(third, "r+b") as file:
        file.truncate(SIZE - 1)
    with pytest.raises(Error, match=r"data_batch_3\.bin has 30,729,999 bytes instead of 30,730,000"):
        cifar10.read(cifar)
    third.write_bytes(b"")
    with open(third, "wb") as file:
        file.truncate(SIZE)
    last.unlink()
    with pytest.raises(Error, match=r"test_batch\.bin cannot be read"):
        cifar10.read(cifar)


def test_cifar10s_python_version_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="data_dir"):
        data.read("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"")
    with pytest.raises(Error, match="Python version of CIFAR-10, which uses pickle"):
        data.read("cifar10", tmp_path)


# .npz


def npz(folder: Path, **arrays: Any) -> DataSet:
    np.savez(folder / "mine.npz", **arrays)
    return data.read(str(folder / "mine.npz"))


Y = np.array([0, 1, 2, 1])


def test_pixels_of_any_layout_become_channels_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6)).astype(np.uint8)
    assert npz(tmp_path, x=pixels, y=Y).x.tolist() == pixels.tolist()
    assert npz(tmp_path, x=pixels.transpose(0, 2, 3, 1), y=Y).x.tolist() == pixels.tolist()
    grey = npz(tmp_path, x=pixels[:, 0], y=Y)
    assert grey.x.tolist() == pixels[:, :1].tolist()
    assert grey.x.dtype == np.uint8
    assert grey.mean[0] == pytest.approx((pixels[:, 0] / 255).mean())
    assert grey.std[0] == pytest.approx((pixels[:, 0] / 255).std())


def test_tables_and_signals_are_normalised_by_column_and_channel(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(3, 2, (4, 5))
    values[:, 2] = 7.0  # a constant column divides by one, not by zero
    found = npz(tmp_path, x=values, y=Y)
    assert (found.x.dtype, found.shape) == (np.float32, (5,))
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.std, np.where(np.arange(5) == 2, 1.0, values.std(0)), rtol=1e-5)
    signal = np.random.default_rng(1).normal(size=(4, 2, 9))
    found = npz(tmp_path, x=signal, y=Y)
    np.testing.assert_allclose(found.mean, signal.mean((0, 2)), rtol=1e-5, atol=1e-7)
    assert found.shape == (2, 9)


def test_words_as_labels_and_names_of_classes(tmp_path: Path) -> None:
    x = np.zeros((4, 2))
    found = npz(tmp_path, x=x, y=np.array(["ill", "well", "ill", "dead"]))
    assert (found.classes, found.y.tolist()) == (("dead", "ill", "well"), [1, 2, 1, 0])
    assert npz(tmp_path, x=x, y=Y, classes=np.array(["a", "b", "c", "d"])).classes == ("a", "b", "c", "d")
    assert npz(tmp_path, x=x, y=Y).classes == ("0", "1", "2")


def test_a_client_column_becomes_the_partition(tmp_path: Path) -> None:
    found = npz(
        tmp_path,
        x=np.zeros((4, 2)),
        y=Y,
        client=np.array(["b", "a", "b", "a"]),
        domain=np.array([0, 0, 1, 1]),
    )
    assert found.defaults.partition == "given"
    assert found.client is not None
    assert found.client.tolist() == ["b", "a", "b", "a"]
    assert found.domain is not None


def test_own_constants(tmp_path: Path) -> None:
    found = npz(tmp_path, x=np.zeros((4, 2)), y=Y, mean=np.array([1.0, 2.0]), std=np.array([3.0, 4.0]))
    assert (found.mean, found.std) == ((1.0, 2.0), (3.0, 4.0))
    with pytest.raises(Error, match="each of the 2 channels"):
        npz(tmp_path, x=np.zeros((4, 2)), y=Y, mean=np.array([1.0]), std=np.array([3.0]))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"y": Y}, "no array 'x'; it has y"),
        ({"x": np.zeros((4, 2))}, "no array 'y'"),
        ({"x": np.array([[0, np.nan], [1, np.inf]]), "y": Y[:2]}, "2 missing or infinite values"),
        ({"x": np.zeros((4, 2)), "y": Y[:3]}, "4 samples but 3 labels"),
        ({"x": np.zeros((4, 2)), "y": np.zeros((4, 2), int)}, "one label per sample"),
        ({"x": np.zeros((4, 2)), "y": Y * 0 + 1}, "y has only one class, '1'"),
        (
            {"x": np.zeros((4, 9, 9, 3), np.float32), "y": Y},
            "x has shape (4, 9, 9, 3); channels come first for float images: x.transpose(0, 3, 1, 2)",
        ),
        ({"x": np.zeros((4, 2)), "y": Y / 2}, "integers from 0, or words"),
        (
            {"x": np.zeros((4, 2)), "y": Y, "classes": np.array(["a", "b"])},
            "one for each label from 0 to 2",
        ),
        ({"x": np.array(["a", "b"]), "y": Y[:2]}, "must hold numbers"),
        (
            {"x": np.zeros((4, 2)), "y": Y, "client": np.array([1, 2])},
            "one entry for each of the 4 samples",
        ),
        ({"x": np.zeros((0, 2)), "y": Y[:0]}, "has no samples"),
        ({"x": np.array([{}, {}], dtype=object), "y": Y[:2]}, "the array 'x' holds Python objects"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_that_make_no_sense_are_refused(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(Error) as caught:
        npz(tmp_path, **arrays)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    np.savez_compressed(tmp_path / "mine.npz", x=np.arange(800.0).reshape(40, 20) % 7, y=np.arange(40) % 3)
    return tmp_path / "mine.npz"


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"hello\n" * 9])
def test_a_damaged_npz_is_refused_in_one_sentence(whole: Path, damage: Any) -> None:
    whole.write_bytes(damage(whole.read_bytes()))
    with pytest.raises(Error, match=r"mine\.npz is not a valid \.npz file"):
        data.read(str(whole))


def test_one_bare_array_is_no_npz(tmp_path: Path) -> None:
    with open(tmp_path / "bare.npz", "wb") as file:
        np.save(file, np.zeros((4, 2)))
    with pytest.raises(Error, match="is not a valid"):
        data.read(str(tmp_path / "bare.npz"))


@pytest.mark.filterwarnings("ignore")  # numpy's own about headers
def test_any_flipped_byte_gives_an_error_of_ours_or_the_data(whole: Path) -> None:
    content, sound = whole.read_bytes(), data.read(str(whole))
    for place in range(len(content)):
        whole.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with contextlib.suppress(Error):  # a byte that nothing depends on leaves the data
            found = data.read(str(whole))
            assert np.array_equal(found.x, sound.x), place
            assert np.array_equal(found.y, sound.y), place


def test_a_set_or_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Error, match="did you mean 'cifar10'"):
        data.read("cifar1")
    with pytest.raises(Error, match="there is no file"):
        data.read(str(tmp_path / "none.npz"))


def test_labels_that_are_ids_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "ids.npz", x=np.zeros((3, 4)), y=np.array([5, 10**9, 7]))
    with pytest.raises(Error, match="y has 3 different values for 3 samples, too many for classes"):
        data.read(str(tmp_path / "ids.npz"))
