"""Read CIFAR-10 in its binary version: six files of 10,000 records, each a label byte and 3 x 32 x 32 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.task import Defaults
from pfedsim.errors import Error

FOLDER = "cifar-10-batches-bin"
FILES = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32
DEFAULTS = Defaults()
GET = "`pfedsim data get cifar10`"


def read(folder: Path) -> DataSet:
    """Read and pool train and test, in the publisher's order, from `folder` or the publisher's folder in it."""
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    if not (folder / FILES[0]).is_file():
        if any(folder.glob("**/data_batch_1")):
            raise Error(
                f"{folder} holds the Python version of CIFAR-10, which uses pickle and is not supported; get "
                f"the binary version: {GET}"
            )
        raise Error(
            f"no CIFAR-10 in {folder}: {GET}, or put {FOLDER}/ there, or set data_dir to its folder"
        )
    records = np.concatenate([_records(folder / name) for name in FILES])
    y = records[:, 0].astype(np.int64)
    x = records[:, 1:].reshape(-1, 3, 32, 32)
    return DataSet(
        "cifar10", x, y, CLASSES, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), defaults=DEFAULTS
    )


def _records(path: Path) -> np.ndarray:
    try:
        size = path.stat().st_size
        raw = np.fromfile(path, np.uint8, 10_000 * RECORD)
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    if size != 10_000 * RECORD or len(raw) != size:
        raise Error(
            f"{path} has {size:,} bytes instead of {10_000 * RECORD:,}: it is truncated, or not a CIFAR-10 file"
        )
    records = raw.reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise Error(f"{path} has a label above 9: it is not a CIFAR-10 file")
    return records
