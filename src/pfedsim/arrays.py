"""Read the arrays of a `.npz` file. Their sizes are read from the headers first: a small file can unpack to an
array of any size."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from pfedsim import memory
from pfedsim.errors import Error

ENDING = ".npy"
KEPT = ("uint8", "float32")  # other numbers become float32


def arrays_in(
    path: Path, needed: Collection[str] = (), wanted: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays `needed`, and those of the `wanted` that are there (default: all)."""
    if not path.is_file():
        raise Error(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as packed:
            there = {
                n.removesuffix(ENDING): packed.getinfo(n) for n in packed.namelist() if n.endswith(ENDING)
            }
            absent = [name for name in needed if name not in there]
            if absent:
                has = ", ".join(sorted(there)) or "none"
                raise Error(f"{path} has no array {absent[0]!r}; it has {has}")
            taken = [name for name in there if wanted is None or name in wanted or name in needed]
            for name in taken:
                _check_objects(path, packed, there[name], name)
            memory.need(path, sum(_bytes(packed, there[name]) for name in taken))
            arrays = {}
            for name in taken:
                with packed.open(there[name]) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                _check_words(name, arrays[name])
            return arrays
    except (Error, MemoryError):
        raise
    except Exception as error:  # with a damaged file, zip, zlib, tokenize and numpy may raise anything
        raise Error(f"{path} is not a valid .npz file: {' '.join(str(error).split())[:200]}") from error


def _check_objects(path: Path, packed: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> None:
    """Raise an error for an array of Python objects, which only pickle could read."""
    with packed.open(member) as file:
        objects = _header(file)[1].hasobject
    if objects:
        raise Error(
            f"{path}: the array {name!r} holds Python objects, as a list of signals of unequal lengths does; save all "
            "steps one after another in x, as (steps, channels), and the number of steps of each signal in `length`"
            if name == "x"
            else f"{path}: the array {name!r} holds Python objects; convert it to numbers or text with numpy's astype"
        )


def _check_words(name: str, array: np.ndarray) -> None:
    """Raise ValueError for text that no file could store: halves of pairs, and numbers beyond Unicode."""
    if array.dtype.kind == "U" and array.size:
        codes = array.astype(array.dtype.newbyteorder("=")).reshape(-1).view(np.uint32)
        if ((codes >> 11) == 0xD800 >> 11).any() or (codes > 0x10FFFF).any():
            raise ValueError(f"{name} holds text that is not Unicode")
    if array.dtype.kind == "S":
        for word in np.unique(array).tolist():
            word.decode("ascii")


def _bytes(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """The memory that an array takes: as stored, and as float32 if it is of another type of numbers."""
    with packed.open(member) as file:
        shape, dtype = _header(file)
        if min(shape, default=0) < 0:
            raise ValueError(f"{member.filename} has the shape {shape}")
        stored = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and stored != member.file_size - file.tell():
            raise ValueError(
                f"{member.filename} should hold {stored} bytes, not {member.file_size - file.tell()}"
            )
    return stored + (4 * math.prod(shape) if dtype.kind in "uifb" and dtype.name not in KEPT else 0)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
