"""Read picture files into one array of pixels: any format and mode that Pillow reads, rescaled if asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from pfedsim import memory
from pfedsim.data.cache import Tell
from pfedsim.errors import Error

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SKIP = "`pfedsim data add --skip-broken`"
PIXEL = 8  # bytes of a pixel while a picture is decoded: in its own mode, and as RGBA
CLUTTER = {"Thumbs.db", "desktop.ini"}  # left by file managers, like hidden files


def listed(folder: Path, skip_broken: bool = False) -> list[Path]:
    """The pictures in a folder, sorted by name. Any other file is an error, or skipped if asked."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in CLUTTER:
            continue
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            found.append(path)
        elif not skip_broken:
            what = "is a folder where images were expected"
            what = what if path.is_dir() else "does not have the name of an image"
            raise Error(f"{path} {what}; remove it, or skip such files with {SKIP}")
    return found


def image_in(file: Path | IO[bytes], grey: bool, way_out: str = "") -> Image.Image:
    """Read a picture, in grey or colour. Transparent pixels become white; 16 bits become 8."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = str(file) if isinstance(file, Path) else "the image"
    try:
        with _any_size(), Image.open(file) as opened:
            memory.need(name, PIXEL * opened.width * opened.height)
            opened.load()
            image = ImageOps.exif_transpose(opened)
            if image.mode == "F":
                raise Error(f"{name} has floating-point pixels, not pixels of 8 or 16 bits")
            if image.mode.startswith("I"):  # 16 bits of grey
                image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
            if image.has_transparency_data:
                over = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
            return image.convert("L" if grey else "RGB")
    except Error:
        raise
    except UnidentifiedImageError as error:
        raise Error(f"{name} is not an image that Pillow can read{way_out}") from error
    except Exception as error:  # with a damaged file, decoders may raise anything
        why = (
            " ".join(str(error).split() or [type(error).__name__])
            .replace(repr(name), "it")
            .replace(name, "it")
        )
        raise Error(f"{name} is not a valid image ({why}){way_out}") from error


@contextmanager
def _any_size() -> Iterator[None]:
    """Without Pillow's own limit of pixels, which cannot be raised from outside: ours is `memory.need`."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def rescaled(image: Image.Image, width: int, height: int) -> Image.Image:
    from PIL import Image

    if image.size == (width, height):
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)


def pixels_of(image: Image.Image) -> np.ndarray:
    """The picture as bytes of shape (channels, height, width)."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def decoded(path: Path, size: int | None = None, grey: bool = False) -> np.ndarray:
    """Read one picture as bytes of shape (channels, height, width)."""
    if size is not None:
        memory.need(f"an image of {size} x {size} pixels", PIXEL * size * size)
    image = image_in(path, grey, f"; skip such files with {SKIP}")
    return pixels_of(image if size is None else rescaled(image, size, size))


def mapped(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A new array of bytes in a file. Its space on the disk is reserved: to write to a mapped file on a full disk
    would kill the process."""
    made: np.ndarray = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return made


def is_readable(path: Path) -> bool:
    """Whether Pillow can read this image."""
    try:
        decoded(path)
    except Error:
        return False
    return True


def stacked(
    files: Sequence[Path],
    into: Path,
    tell: Tell,
    *,
    what: str,
    size: int | None,
    grey: bool = False,
    skip_broken: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Read all pictures into one array, stored in the folder `into`, and return it with their indices in `files`."""
    x: np.ndarray | None = None
    intact: list[int] = []
    for k, path in enumerate(files):
        if k % 200 == 0:
            tell(f"reading {what}", k, len(files))
        try:
            pixels = decoded(path, size, grey)
        except Error:
            if not skip_broken:
                raise
            continue
        if x is None:
            x = mapped(into / "all.npy", (len(files), *pixels.shape))
        if pixels.shape != x.shape[1:]:
            (h, w), (first_h, first_w) = pixels.shape[1:], x.shape[2:]
            raise Error(
                f"{path} is {w} x {h} pixels, others are {first_w} x {first_h}: rescale them with --size N"
            )
        x[len(intact)] = pixels
        intact.append(k)
    tell(f"reading {what}", len(files), len(files))
    if x is None:
        raise Error(f"{what}: none of the {len(files)} images can be read")
    if len(intact) < len(files):
        part = mapped(into / "x.npy", (len(intact), *x.shape[1:]))
        part[:] = x[: len(intact)]
        (into / "all.npy").unlink()
        return part, np.array(intact)
    x.flush()  # type: ignore[attr-defined]
    (into / "all.npy").rename(into / "x.npy")
    return x, np.array(intact)
