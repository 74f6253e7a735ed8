"""Decoded samples on disk: made once, held to their digest, memory-mapped after; a source that has changed
is decoded again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

FORMAT = "pfedsim cache 1"
ARRAYS = ("x", "y", "client", "domain")
Tell = Callable[[str, int, int], None]
"""told what is being done, how much of it is done and how much there is"""


def quiet(what: str, done: int, total: int) -> None:
    """Tells nobody."""


def cache_dir() -> Path:
    """Where decoded samples are kept: $PFEDSIM_CACHE, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("PFEDSIM_CACHE") or platformdirs.user_cache_path("pfedsim"))


def kept(
    name: str,
    files: Sequence[Path],
    asked: Mapping[str, Any],
    make: Callable[[Path], DataSet],
    defaults: Defaults | None = None,
) -> DataSet:
    """The set that `make` reads from these files in the way `asked` for: from the cache where the files are
    as they were (by name, size and time) and what is kept still gives its digest. `make` gets a folder that
    it may lay `x.npy` in."""
    if not files:
        raise Error(f"{name} holds no sample")
    where = hashlib.sha256(
        json.dumps([FORMAT, [str(files[0].resolve()), len(files)], dict(asked)], sort_keys=True).encode()
    ).hexdigest()
    place, source = cache_dir() / f"{name}-{where[:16]}", fingerprint(files)
    if (found := _opened(place, name, source, defaults)) is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place.parent))
    except OSError as error:
        raise Error(
            f"the cache {place.parent} cannot be written: {error.strerror}; name another folder with "
            "PFEDSIM_CACHE"
        ) from error
    try:
        _write(make(aside), aside, source)
        shutil.rmtree(place, ignore_errors=True)
        try:
            aside.rename(place)
        except OSError:  # another process has just put its own there
            place = aside if not place.is_dir() else place
        found = _opened(place, name, source, defaults)
    except OSError as error:
        raise Error(
            f"{error.filename or place}: {error.strerror or error}; another folder for the cache: "
            "PFEDSIM_CACHE"
        ) from error
    finally:
        if aside != place:
            shutil.rmtree(aside, ignore_errors=True)
    if found is None:
        raise Error(
            f"what was written to {place} does not read back as it was; name another folder with "
            "PFEDSIM_CACHE"
        )
    return found


def fingerprint(files: Sequence[Path]) -> str:
    """sha256 over every file's path, size and time of change."""
    h = hashlib.sha256()
    for path in files:
        try:
            state = path.stat()
        except OSError as error:
            raise Error(f"{path} cannot be read: {error.strerror}") from error
        h.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return h.hexdigest()


def _write(data: DataSet, folder: Path, source: str) -> None:
    for name in ARRAYS:
        array = getattr(data, name)
        if array is not None and not (folder / f"{name}.npy").exists():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    about = {
        "format": FORMAT,
        "source": source,
        "digest": data.digest,
        "classes": data.classes,
        "mean": data.mean,
        "std": data.std,
    }
    (folder / "about.json").write_text(json.dumps(about))


def _opened(place: Path, name: str, source: str, defaults: Defaults | None) -> DataSet | None:
    """None where there is nothing, the source has changed, or a byte has."""
    from pfedsim.data.task import suiting

    try:
        about = json.loads((place / "about.json").read_text())
        if (about["format"], about["source"]) != (FORMAT, source):
            return None
        arrays = {
            n: np.load(place / f"{n}.npy", mmap_mode="c", allow_pickle=False)
            for n in ARRAYS
            if (place / f"{n}.npy").is_file()
        }
        x, y, client, domain = (arrays.get(n) for n in ARRAYS)
        if x is None or y is None:
            return None
        ours = defaults or suiting(tuple(x.shape[1:]), len(y), client)
        data = DataSet(
            name,
            x,
            y,
            tuple(about["classes"]),
            tuple(about["mean"]),
            tuple(about["std"]),
            client,
            domain,
            ours,
        )
        return data if data.digest == about["digest"] else None
    except (OSError, ValueError, KeyError, TypeError, EOFError, Error):
        return None
