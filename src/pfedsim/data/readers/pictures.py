"""Picture files as one array of pixels: any format and mode that Pillow reads, rescaled as asked; a broken
one is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from pfedsim.data.cache import Tell
from pfedsim.errors import Error

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
CLUTTER = {"Thumbs.db", "desktop.ini"}  # left by file managers, like names that begin with a dot


def listed(folder: Path, skip_broken: bool = False) -> list[Path]:
    """The pictures in a folder, sorted by name; anything else in it is refused, or left out where asked."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in CLUTTER:
            continue
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            found.append(path)
        elif not skip_broken:
            what = "a folder where pictures were expected" if path.is_dir() else "not a picture by its name"
            raise Error(
                f"{path} is {what}; take it away, or `pfedsim data add --skip-broken` leaves such out"
            )
    return found


def image_in(file: Path | IO[bytes], grey: bool, way_out: str = "") -> Image.Image:
    """The picture in a file, grey or in colour. What is transparent shows white; 16 bits become 8."""
    from PIL import Image, ImageOps

    name = str(file) if isinstance(file, Path) else "the picture"
    try:
        with Image.open(file) as opened:
            opened.load()
            image = ImageOps.exif_transpose(opened)
            if image.mode == "F":
                raise Error(f"{name} holds numbers with fractions, not pixels of 8 or 16 bits")
            if image.mode.startswith("I"):  # 16 bits of grey
                image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
            if image.has_transparency_data:
                over = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
            return image.convert("L" if grey else "RGB")
    except Error:
        raise
    except Exception as error:  # damaged files make decoders raise what they like
        why = " ".join(str(error).split()).replace(repr(name), "it").replace(name, "it")
        raise Error(f"{name} is not a whole picture ({why}){way_out}") from error


def rescaled(image: Image.Image, width: int, height: int) -> Image.Image:
    from PIL import Image

    return (
        image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
    )


def pixels_of(image: Image.Image) -> np.ndarray:
    """(channels, height, width) bytes."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def decoded(path: Path, size: int | None = None, grey: bool = False) -> np.ndarray:
    """One picture as (channels, height, width) bytes."""
    image = image_in(path, grey, "; `pfedsim data add --skip-broken` leaves such out")
    return pixels_of(image if size is None else rescaled(image, size, size))


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
    """All pictures as one array laid in the folder `into`, and the numbers of those that are in it."""
    x: np.ndarray | None = None
    whole: list[int] = []
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
            x = np.lib.format.open_memmap(
                into / "all.npy", mode="w+", dtype=np.uint8, shape=(len(files), *pixels.shape)
            )
        if pixels.shape != x.shape[1:]:
            (h, w), (first_h, first_w) = pixels.shape[1:], x.shape[2:]
            raise Error(
                f"{path} is {w} x {h} pixels, others are {first_w} x {first_h}: rescale them with size = N"
            )
        x[len(whole)] = pixels
        whole.append(k)
    tell(f"reading {what}", len(files), len(files))
    if x is None:
        raise Error(f"{what}: none of the {len(files)} pictures is whole")
    if len(whole) < len(files):
        part = np.lib.format.open_memmap(
            into / "x.npy", mode="w+", dtype=np.uint8, shape=(len(whole), *x.shape[1:])
        )
        part[:] = x[: len(whole)]
        (into / "all.npy").unlink()
        return part, np.array(whole)
    x.flush()  # type: ignore[attr-defined]
    (into / "all.npy").rename(into / "x.npy")
    return x, np.array(whole)
