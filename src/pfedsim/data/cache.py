"""A disk cache of decoded samples: written once, checked against its digest, then memory-mapped. Changed source
files are decoded again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import durable, seal
from pfedsim.data.dataset import DataSet
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

FORMAT = "pfedsim cache 2"
ARRAYS = ("x", "y", "client", "domain")
FILES = (
    "about.json",
    "all.npy",
    *(f"{name}.npy" for name in ARRAYS),
)  # "all.npy": while pictures are decoded
Tell = Callable[[str, int, int], None]
"""progress callback: what is being done, how much is done, and the total"""


def quiet(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


def cache_dir() -> Path:
    """The folder of decoded samples: $PFEDSIM_CACHE, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("PFEDSIM_CACHE") or platformdirs.user_cache_path("pfedsim"))


def cached(
    name: str,
    files: Sequence[Path],
    asked: Mapping[str, Any],
    make: Callable[[Path], DataSet],
    defaults: Defaults | None = None,
) -> DataSet:
    """The data set that `make` reads from these files. It comes from the cache if the files are unchanged (by
    name, size and time), `asked` is the same and the cached arrays match their digest. `make` gets a folder in
    which it may write `x.npy`."""
    if not files:
        raise Error(f"{name} has no samples")
    where = hashlib.sha256(
        json.dumps([FORMAT, [str(files[0].resolve()), len(files)], dict(asked)], sort_keys=True).encode()
    ).hexdigest()
    place, source = cache_dir() / f"{name}-{where[:16]}", fingerprint(files)
    if (found := _opened(place, name, source, defaults)) is not None:
        return found
    try:
        # not flushed: its digest is checked on every use
        with ExitStack() as turn, durable.building(place, flush=False) as aside:
            _write(make(aside), aside, source)
            turn.enter_context(durable.in_turn(place.parent))  # one process replaces, the others find it
            if place.exists() and _opened(place, name, source, defaults) is None:
                durable.remove(place, lambda file: file in FILES)
    except durable.Taken:  # another process has just written the same
        pass
    except durable.Unwritable as error:
        raise Error(f"the cache cannot be written: {error}; set PFEDSIM_CACHE to another folder") from error
    except OSError as error:
        raise Error(
            f"{error.filename or place}: {error.strerror or error}; set PFEDSIM_CACHE to cache elsewhere"
        ) from error
    found = _opened(place, name, source, defaults)
    if found is None:
        raise Error(
            f"the cache in {place} is damaged right after writing it; set PFEDSIM_CACHE to another folder"
        )
    return found


def fingerprint(files: Sequence[Path]) -> str:
    """sha256 of every file's path, size and modification time."""
    h = hashlib.sha256()
    for path in files:
        try:
            state = path.stat()
        except OSError as error:
            raise Error(f"{path} cannot be read: {error.strerror}") from error
        h.update(os.fsencode(path) + f"\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
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
    (folder / "about.json").write_text(seal.sealed(about), encoding="utf-8")


def _opened(place: Path, name: str, source: str, defaults: Defaults | None) -> DataSet | None:
    """The cached data set; None if there is none, its source has changed or it is damaged."""
    from pfedsim.data.task import suiting

    try:
        about = seal.load(place / "about.json", "a description of cached samples")
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
        classes, mean, std = (tuple(about[key]) for key in ("classes", "mean", "std"))
        data = DataSet(name, x, y, classes, mean, std, client, domain, ours)
        return data if data.digest == about["digest"] else None
    except (OSError, ValueError, KeyError, TypeError, EOFError, Error):
        return None
