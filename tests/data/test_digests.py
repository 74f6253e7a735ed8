"""Data sets that are held to the digest of their samples."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedsim import data
from pfedsim.cli.app import app
from pfedsim.data import cache, catalogue
from pfedsim.data.readers import npz
from pfedsim.errors import Error


def idx(folder: Path) -> Path:
    """Four pictures in the files of MNIST."""
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        shape = b"".join(n.to_bytes(4, "big") for n in (2, 28, 28))
        images = b"\x00\x00\x08\x03" + shape + bytes(range(196)) * 8
        labels = b"\x00\x00\x08\x01" + (2).to_bytes(4, "big") + bytes([7, 3])
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, mtime=0))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels, mtime=0))
    return folder


def test_one_changed_pixel_of_a_published_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = idx(tmp_path / "mnist")
    known = catalogue.KNOWN["mnist"]
    with pytest.raises(Error, match=r"mnist does not hold mnist as published: .* not f2758268d73e"):
        data.read("mnist", tmp_path)
    monkeypatch.setitem(catalogue.KNOWN, "mnist", replace(known, digest=None))
    intact = data.read("mnist", tmp_path).digest
    monkeypatch.setitem(catalogue.KNOWN, "mnist", replace(known, digest=intact))
    assert data.read("mnist", tmp_path).digest == intact
    file = place / "train-images-idx3-ubyte.gz"
    pixels = bytearray(gzip.decompress(file.read_bytes()))
    pixels[500] ^= 1
    file.write_bytes(gzip.compress(bytes(pixels), mtime=0))
    with pytest.raises(Error, match=f"the samples' sha256 is .*, not {intact[:12]}") as refused:
        data.read("mnist", tmp_path)
    assert "\n" not in str(refused.value)


def test_the_digits_are_those_that_were_published() -> None:
    assert data.read("digits").digest == catalogue.KNOWN["digits"].digest


def test_a_set_that_was_added_stays_as_it_was_added(tmp_path: Path) -> None:
    x = np.arange(60, dtype=np.float32).reshape(12, 5)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(12) % 2)
    words = ["data", "add", "mine", str(tmp_path / "mine.npz"), "--data-dir", str(tmp_path / "sets")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert data.read("mine", tmp_path / "sets").digest == npz.read(tmp_path / "mine.npz").digest
    x[3, 3] += 1
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(12) % 2)
    with pytest.raises(Error, match=r"mine is not as it was added: the samples in .* have changed"):
        data.read("mine", tmp_path / "sets")


def test_a_changed_description_of_cached_samples_is_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the classes are in no digest of the samples."""
    monkeypatch.setenv("PFEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(catalogue.KNOWN, "mnist", replace(catalogue.KNOWN["mnist"], digest=None))
    idx(tmp_path / "mnist")
    assert data.read("mnist", tmp_path).classes[7] == "7"
    (about,) = cache.cache_dir().glob("*/about.json")
    about.write_text(about.read_text().replace('"7"', '"1"'))
    assert data.read("mnist", tmp_path).classes[7] == "7"
