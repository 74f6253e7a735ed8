"""Inputs that would take more memory or disk than there is, refused by the sizes in their headers."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pfedsim import memory
from pfedsim.data.dataset import deviation
from pfedsim.data.fetch import unpack
from pfedsim.data.readers import hf, idx, npz, pictures, tables, torch_file
from pfedsim.errors import Error
from pfedsim.models import pretrained
from pfedsim.runs.config import check
from pfedsim.runs.setup import prepare


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSIM_MEMORY", "20M")


def bomb(path: Path, shape: str, kind: str = "|u1", size: int = 30_000_000) -> Path:
    """A small .npz with an array x of this shape, made of `size` zeros."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(
            "x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(size)
        )
        packed.writestr("y.npy", _npy(np.arange(3)))
    return path


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_the_sentence_says_what_is_needed_what_is_there_and_how_to_raise_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bomb(tmp_path / "a.npz", "(30000000, 1)")
    assert path.stat().st_size < 50_000
    with pytest.raises(Error) as caught:
        npz.read(path)
    assert str(caught.value) == (
        f"{path} needs 28.6 MiB of memory, PFEDSIM_MEMORY allows 20.0 MiB; set PFEDSIM_MEMORY=1G to try anyway"
    )
    monkeypatch.delenv("PFEDSIM_MEMORY")
    monkeypatch.setattr(memory, "free", lambda: 25 << 20)
    with pytest.raises(Error, match=r"25\.0 MiB are free here; set PFEDSIM_MEMORY=1G"):
        npz.read(path)
    monkeypatch.setenv("PFEDSIM_MEMORY", "1G")
    with pytest.raises(Error, match="30000000 samples but 3 labels"):
        npz.read(path)


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("2K", 2048), ("1.5 GiB", 3 << 29), ("3mb", 3 << 20)])
def test_the_setting(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSIM_MEMORY", text)
    memory.need("it", size)
    with pytest.raises(Error, match="it needs"):
        memory.need("it", size + 1)


def test_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSIM_MEMORY", "much")
    with pytest.raises(Error, match="PFEDSIM_MEMORY='much': give a number of bytes such as 8G"):
        memory.need("it", 1)


def test_what_is_free_is_what_the_machine_or_its_container_has() -> None:
    assert 0 < memory.free() < 1 << 50


@pytest.mark.parametrize("shape", ["(10000000000000, 1)", "(-1, 5)", "(2, 3)", "(4000000, 1)"])
def test_an_array_that_is_not_as_large_as_its_header_says(tmp_path: Path, shape: str) -> None:
    with pytest.raises(Error, match=r"not a valid \.npz file"):
        npz.read(bomb(tmp_path / "a.npz", shape, size=100))


def test_other_numbers_count_as_float32_too(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.npz", "(2000000, 1)", "<f8", 16_000_000)  # 15 MiB as stored, 8 MiB as float32
    with pytest.raises(Error, match=r"22\.9 MiB"):
        npz.read(path)


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.ones((4, 2), np.float32), y=np.arange(4) % 2, huge=np.zeros(30_000_000))
    assert len(npz.read(path).y) == 4
    with pytest.raises(Error, match=r"needs 343\.3 MiB"):
        pretrained.load(path)


SHAPES = [(900, 3, 8, 8), (900, 1, 8, 8), (700, 6, 30), (900, 13), (900, 1), (33, 2, 5, 7)]


@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_deviation_in_parts_has_the_bits_of_numpy(
    shape: tuple[int, ...], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfedsim.data.dataset.PART", 1024)
    x = (np.random.default_rng(0).random(shape) * 255).astype(kind)
    others = (0, *range(2, x.ndim))
    mean = np.mean(x, axis=others, dtype=np.float64)
    np.testing.assert_array_equal(deviation(x, mean), np.std(x, axis=others, dtype=np.float64))


def test_moments_take_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((3000, 3, 40, 40), np.uint8), y=np.arange(3000) % 3)  # 14 MB
    tracemalloc.start()
    npz.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000, peak  # np.std alone would take 115 MB


def test_idx_files(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    head = b"\0\0\x08\x03"
    path.write_bytes(gzip.compress(head + struct.pack(">III", 60_000, 28, 28) + bytes(60_000 * 784)))
    with pytest.raises(Error, match=r"needs 44\.9 MiB of memory"):
        idx.values(path, idx.IMAGES)
    path.write_bytes(gzip.compress(head + struct.pack(">III", 2, 2, 2) + bytes(60_000_000)))
    with pytest.raises(Error, match="should have 2 x 2 x 2 bytes but has more"):
        idx.values(path, idx.IMAGES)


def test_pictures(tmp_path: Path) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    path = tmp_path / "a.png"
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    with pytest.raises(Error, match=r"a\.png needs 74.5 GiB of memory"):
        pictures.decoded(path)
    limit = Image.MAX_IMAGE_PIXELS
    Image.new("L", (4, 4)).save(path)
    with pytest.raises(Error, match=r"an image of 100000 x 100000 pixels needs 74\.5 GiB"):
        pictures.decoded(path, size=100_000)
    assert pictures.decoded(path).shape == (3, 4, 4)
    assert limit == Image.MAX_IMAGE_PIXELS  # other users of Pillow keep its limit


def test_pictures_of_a_hub(tmp_path: Path) -> None:
    class Many(list[Image.Image]):
        def __len__(self) -> int:
            return 10**6

    with pytest.raises(Error, match=r"hf:x needs 61\.0 MiB"):
        hf._pixels(Many([Image.new("L", (8, 8))]), None, "hf:x")


def test_torch_files(tmp_path: Path) -> None:
    for zipped in (True, False):
        path = tmp_path / f"{zipped}.pth"
        torch.save({"a": torch.zeros(()).expand(10**9, 10**3)}, path, _use_new_zipfile_serialization=zipped)
        assert path.stat().st_size < 5000
        with pytest.raises(Error, match=r"needs 3,725.3 GiB of memory"):
            torch_file.read(path)
    path.write_bytes(bytes(30_000_000))
    with pytest.raises(Error, match=r"needs 28\.6 MiB"):
        torch_file.read(path)


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,a,b\n" + "x,1,2\n" * 200_000)
    with pytest.raises(Error, match=r"a\.csv needs 22\.9 MiB of memory"):
        tables.read(path)
    path.write_text("x" * 30_000_000)
    with pytest.raises(Error, match=r"a\.csv needs 28\.6 MiB of memory"):
        tables.read(path)


def test_tables_of_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    column = pyarrow.array(np.zeros(300_000, np.int8))
    parquet.write_table(pyarrow.table({"label": column, "a": column}), tmp_path / "a.parquet")
    with pytest.raises(Error, match=r"a\.parquet needs 22\.9 MiB of memory"):
        tables.read(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_archives_that_do_not_fit_on_the_disk(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = tmp_path / name, bytes(3_000_000)
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a", content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            member = tarfile.TarInfo("a")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, 1 << 20))
    with pytest.raises(
        Error, match=r"unpacks to 2.9 MiB, 1.0 MiB are free on the disk; nothing was unpacked"
    ):
        unpack.archive(path, tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_the_space_of_decoded_pictures_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        pictures.mapped(tmp_path / "x.npy", (10, 10))


def test_a_schedule() -> None:
    with pytest.raises(Error, match="a schedule of 1,000,000,000 rounds needs"):
        prepare(check({"rounds": 10**9}))
