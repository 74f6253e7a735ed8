"""Folders of pictures through Pillow and the cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfedsim import data
from pfedsim.data import cache
from pfedsim.data.dataset import DataSet, moments
from pfedsim.data.readers import folders
from pfedsim.data.readers.pictures import decoded
from pfedsim.errors import Error


def picture(path: Path, shade: int = 0, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 20, 30)).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for k, name in enumerate(["cat/b.png", "cat/a.png", "dog/10.png", "dog/9.png", "ape/x.png"]):
        picture(tmp_path / "photos" / name, 10 * k)
    return tmp_path / "photos"


def read(folder: Path, layout: str = "class", **options: object) -> DataSet:
    return folders.read("mine", folder, layout, **options)  # type: ignore[arg-type]


def test_a_class_folder_is_read_in_sorted_order_whatever_the_file_system_says(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: sorted(real(self), reverse=True))
    found = read(photos)
    assert found.classes == ("ape", "cat", "dog")
    assert found.y.tolist() == [0, 1, 1, 2, 2]
    assert found.x[:, 0, 0, 0].tolist() == [40, 10, 0, 20, 30]  # ape/x, cat/a, cat/b, dog/10, dog/9
    assert found.x.shape == (5, 3, 6, 8)
    assert found.mean == pytest.approx([np.mean([40, 10, 0, 20, 30]) / 255, 20 / 255, 30 / 255])
    assert found.std[0] == pytest.approx(np.std([40, 10, 0, 20, 30]) / 255)
    assert found.std[1:] == (1.0, 1.0)  # a constant channel divides by one


def test_moments_are_those_of_numpy() -> None:
    x = np.random.default_rng(0).integers(0, 256, (1500, 2, 3, 4)).astype(np.uint8)
    mean, std = moments(x)
    np.testing.assert_allclose(mean, (x / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, (x / 255).std((0, 2, 3)), rtol=1e-12)


def test_domains_and_clients_are_the_outer_folders(tmp_path: Path) -> None:
    for name in ("north/ill/1.png", "north/well/1.png", "south/ill/1.png"):
        picture(tmp_path / name)
    by_domain, by_client = read(tmp_path, "domain/class"), read(tmp_path, "client/class")
    assert by_domain.domain is not None
    assert by_client.client is not None
    assert by_domain.domain.tolist() == by_client.client.tolist() == ["north", "north", "south"]
    assert by_domain.client is None
    assert by_client.y.tolist() == [0, 1, 0]
    assert (by_client.defaults.partition, by_client.defaults.clients) == ("given", None)


def test_grey_palette_alpha_sixteen_bits_and_rotation(tmp_path: Path) -> None:
    grey = picture(tmp_path / "grey.png", 100, mode="L")
    assert decoded(grey)[:, 0, 0].tolist() == [100, 100, 100]
    assert decoded(grey, grey=True).shape == (1, 6, 8)
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    palette.save(tmp_path / "palette.png")
    assert decoded(tmp_path / "palette.png")[:, 0, 0].tolist() == [200, 100, 50]
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert decoded(tmp_path / "clear.png")[:, 0, 0].tolist() == [255, 255, 255]  # not the black below
    Image.fromarray(np.full((2, 2), 65535, np.uint16)).save(tmp_path / "deep.png")
    assert decoded(tmp_path / "deep.png")[:, 0, 0].tolist() == [255, 255, 255]
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert decoded(tmp_path / "turned.jpg").shape == (3, 8, 4)


def test_pictures_are_rescaled_as_asked(photos: Path) -> None:
    picture(photos / "ape" / "large.png", 40, (50, 30))
    with pytest.raises(
        Error, match=r"ape/x\.png is 8 x 6 pixels, others are 50 x 30: rescale them with --size N"
    ):
        read(photos)
    assert read(photos, size=16).shape == (3, 16, 16)


def half(path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8))
    image.save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("kind", ["half", "text", "named"])
def test_a_broken_picture_is_named_and_skipped_only_when_asked(photos: Path, kind: str) -> None:
    bad = photos / "cat" / {"half": "half.jpg", "text": "notes.txt", "named": "a0.png"}[kind]
    half(bad) if kind == "half" else bad.write_text("hello")
    with pytest.raises(Error) as caught:
        read(photos)
    said = str(caught.value)
    assert str(bad) in said
    why = {
        "half": "is not a valid image",
        "text": "does not have the name of an image",
        "named": "is not an image that Pillow can read",
    }
    assert why[kind] in said
    assert "\n" not in said
    assert "--skip-broken" in said
    found = read(photos, skip_broken=True)
    assert found.y.tolist() == [0, 1, 1, 2, 2]
    assert found.x[:, 0, 0, 0].tolist() == [40, 10, 0, 20, 30]


def test_clutter_of_file_managers_is_left_out(photos: Path) -> None:
    for name in (".DS_Store", "cat/.DS_Store", "cat/Thumbs.db"):
        (photos / name).write_text("")
    assert len(read(photos).y) == 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: (p / "bat").mkdir(), r"class folder .*bat has no images"),
        (lambda p: picture(p / "Cat" / "1.png"), "classes 'Cat' and 'cat' differ only in case"),
        (
            lambda p: (p / "readme.txt").write_text("x"),
            r"readme\.txt is a file where folders were expected",
        ),
        (lambda p: picture(p / "cat" / "more" / "1.png"), "more is a folder where images were expected"),
    ],
)
def test_folders_that_make_no_sense_are_refused(photos: Path, make: object, says: str) -> None:
    make(photos)  # type: ignore[operator]
    with pytest.raises(Error, match=says):
        read(photos)


def test_a_folder_that_is_missing_empty_or_of_another_layout(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(Error, match="there is no folder"):
        read(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Error, match="has no class folder"):
        read(tmp_path / "empty")
    with pytest.raises(Error, match="has no folders; domain/class expects one for each domain"):
        read(tmp_path / "empty", "domain/class")
    for layout, levels in (("client/class", "CLIENT/CLASS"), ("domain/class", "DOMAIN/CLASS")):
        with pytest.raises(Error, match=f"expected {levels}/file; this looks like `--layout class`"):
            read(photos, layout)
    for skip in (False, True):
        with pytest.raises(Error, match="cat holds images directly; put them into one folder per class"):
            read(photos / "cat", skip_broken=skip)


def test_a_single_class_is_refused(photos: Path) -> None:
    for name in ("ape", "dog"):
        shutil.rmtree(photos / name)
    with pytest.raises(Error, match="photos has only one class, 'cat'"):
        read(photos)


# the cache


@pytest.fixture
def decodings(photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("PFEDSIM_CACHE", str(tmp_path / "cache"))
    return []


def counted(folder: Path, times: list[str]) -> DataSet:
    return read(folder, tell=lambda what, done, total: times.append(what) if done == 0 else None)


def test_decoded_once_and_memory_mapped_after(photos: Path, decodings: list[str]) -> None:
    first = counted(photos, decodings)
    again = counted(photos, decodings)
    assert len(decodings) == 1
    assert isinstance(again.x, np.memmap)
    assert again.digest == first.digest
    assert np.array_equal(again.x, first.x)


def test_a_changed_source_is_noticed(photos: Path, decodings: list[str]) -> None:
    counted(photos, decodings)
    picture(photos / "cat" / "a.png", 77)
    assert counted(photos, decodings).x[1, 0, 0, 0] == 77
    (photos / "cat" / "b.png").unlink()
    assert len(counted(photos, decodings).y) == 4
    os.rename(photos / "dog" / "9.png", photos / "dog" / "11.png")
    assert counted(photos, decodings).x[:, 0, 0, 0].tolist() == [40, 77, 20, 30]
    os.utime(photos / "ape" / "x.png", (1, 1))
    counted(photos, decodings)
    assert len(decodings) == 5


def test_a_picture_moved_to_another_class_is_noticed(photos: Path, decodings: list[str]) -> None:
    assert counted(photos, decodings).y.tolist() == [0, 1, 1, 2, 2]
    os.rename(photos / "cat" / "b.png", photos / "dog" / "0.png")
    assert counted(photos, decodings).y.tolist() == [0, 1, 2, 2, 2]


def test_a_flipped_byte_in_the_cache_is_noticed(photos: Path, decodings: list[str], tmp_path: Path) -> None:
    sound = counted(photos, decodings)
    for file in sorted((tmp_path / "cache").rglob("*.npy")) + sorted(
        (tmp_path / "cache").rglob("about.json")
    ):
        content = bytearray(file.read_bytes())
        content[-7] ^= 1
        file.write_bytes(content)
        assert counted(photos, decodings).digest == sound.digest, file
    assert len(decodings) == 4  # x, y and about.json


def test_two_processes_that_decode_at_once_keep_the_first_result(
    photos: Path, decodings: list[str], tmp_path: Path
) -> None:
    """The second one would otherwise take the cache away while the first reads it."""
    places: list[int] = []

    def inodes() -> list[int]:
        finished = [place for place in (tmp_path / "cache").iterdir() if place.suffix != ".pfedsim"]
        return [place.stat().st_ino for place in finished]

    def meanwhile(what: str, done: int, total: int) -> None:
        if not places:
            places.append(0)
            counted(photos, decodings)  # as another process would, while this one decodes
            places.extend(inodes())

    found = read(photos, tell=meanwhile)
    assert len(places) == 2
    assert places[1:] == inodes()
    assert found.x[:, 0, 0, 0].tolist() == [40, 10, 0, 20, 30]


def test_a_cache_that_cannot_be_written_is_one_sentence(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFEDSIM_CACHE", str(photos / "ape" / "x.png" / "below a file"))
    with pytest.raises(Error, match=r"cannot be written: .*PFEDSIM_CACHE"):
        read(photos)
    assert cache.cache_dir() == photos / "ape" / "x.png" / "below a file"


# names of one's own


def test_an_added_folder_is_a_name(photos: Path, tmp_path: Path) -> None:
    from pfedsim.data import own

    mine = own.Own(str(photos), size=16, grey=True)
    own.add("mine", mine, tmp_path / "sets")
    assert own.load(tmp_path / "sets" / "mine.toml") == mine
    assert data.read("mine", tmp_path / "sets").shape == (1, 16, 16)
    assert data.read("mine", tmp_path / "sets", size=20).shape == (1, 20, 20)
    with pytest.raises(Error, match="did you mean 'mine'"):
        data.read("minee", tmp_path / "sets")
    own.check_new("mine", mine, tmp_path / "sets", data.NAMES)  # the same again, as after a kill
    with pytest.raises(Error, match="was already added with other settings"):
        own.check_new("mine", own.Own(str(photos)), tmp_path / "sets", data.NAMES)
    with pytest.raises(Error, match="built into pfedsim"):
        own.check_new("cifar10", mine, tmp_path / "sets", data.NAMES)
    with pytest.raises(Error, match="cannot name a data set"):
        own.check_new("My set", mine, tmp_path / "sets", data.NAMES)
    with pytest.raises(Error, match="add it under a name first with `pfedsim data add NAME"):
        data.read(str(photos))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"layout": "clas"}, "did you mean 'class'"), ({"missing": "zero"}, "known are refuse, mean")],
)
def test_options_that_do_not_exist(options: dict[str, str], says: str) -> None:
    from pfedsim.data import own

    with pytest.raises(Error, match=says):
        own.Own("x", **options)  # type: ignore[arg-type]
