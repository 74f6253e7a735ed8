"""Read Hugging Face data sets and apply flwr-datasets partitioners (extra `hf`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim import memory
from pfedsim.data.dataset import DataSet, deviation, moments
from pfedsim.data.readers.pictures import pixels_of
from pfedsim.data.task import suiting
from pfedsim.errors import Error, nearest


def read(
    dataset: Any,
    *,
    label: str = "label",
    columns: Sequence[str] | None = None,
    partitioner: Any = None,
    size: int | None = None,
    name: str = "hf:dataset",
) -> DataSet:
    """Convert a `datasets.Dataset` with a label column and a column of pictures or columns of numbers (default:
    all others). `partitioner`: one of flwr_datasets, whose partitions become the clients (partition `given`);
    `size`: rescale pictures."""
    owner = None
    if partitioner is not None:
        from datasets import concatenate_datasets

        partitioner.dataset = dataset
        parts = [partitioner.load_partition(k) for k in range(partitioner.num_partitions)]
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        dataset = concatenate_datasets(parts)
    if label not in dataset.column_names:
        raise Error(f"{name} has no column {label!r}; {nearest(label, dataset.column_names)}")
    taken = [c for c in dataset.column_names if c != label] if columns is None else list(columns)
    classes, y = _labels(dataset, label)
    if len(set(y.tolist())) == 1:
        raise Error(f"{name}: column {label!r} has only one class, {classes[y[0]]!r}")
    named = None
    pictures = [c for c in taken if type(dataset.features[c]).__name__ == "Image"]
    if len(pictures) > 1 or (pictures and columns is not None and len(taken) > 1):
        raise Error(
            f"{name} has several columns for a sample ({', '.join(taken)}); choose one column of images "
            "with `columns`"
        )
    if pictures:
        x = _pixels(dataset[pictures[0]], size, name)
        mean, std = moments(x)
    else:
        if size is not None:
            raise Error(f"size = {size}: {name} has no images to rescale")
        if not taken:
            raise Error(f"{name} has no columns besides {label!r}")
        x = _numbers(dataset, taken, name)
        named = tuple(taken) if x.ndim == 2 and x.shape[1] == len(taken) else None
        others = (0, *range(2, x.ndim))
        centre = x.mean(axis=others, dtype=np.float64)
        spread = deviation(x, centre)
        mean, std = tuple(centre.tolist()), tuple(np.where(spread > 0, spread, 1.0).tolist())
    defaults = suiting(tuple(x.shape[1:]), len(y), owner)
    return DataSet(name, x, y.astype(np.int64), classes, mean, std, owner, defaults=defaults, columns=named)


def _labels(dataset: Any, label: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the classes, and each sample's class."""
    labels, feature = dataset[label], dataset.features[label]
    if hasattr(feature, "names"):
        return tuple(feature.names), np.array(labels, dtype=np.int64)
    words, y = np.unique(np.array(labels), return_inverse=True)
    return tuple(map(str, words)), y


def _numbers(dataset: Any, columns: Sequence[str], name: str) -> np.ndarray:
    """The columns side by side; a single column of arrays as it is."""
    try:
        x = np.stack([np.asarray(dataset[c], dtype=np.float32) for c in columns], axis=1)
    except (ValueError, TypeError) as error:
        raise Error(
            f"{name}: columns {', '.join(columns)} are not all numbers ({error}); choose columns of numbers with "
            "`columns`"
        ) from error
    return x[:, 0] if len(columns) == 1 and x.ndim > 2 else x


def load(spec: str, size: int | None = None) -> DataSet:
    """Read `--data hf:FOLDER` (written by `save_to_disk`) or `--data hf:NAME` from the Hub. All splits are pooled,
    in sorted order."""
    try:
        import datasets
    except ImportError:
        raise Error(f"hf:{spec} needs the extra hf: pip install 'pfedsim[hf]'") from None
    try:
        found = datasets.load_from_disk(spec) if Path(spec).is_dir() else datasets.load_dataset(spec)
    except Exception as error:  # the library may raise anything
        raise Error(f"hf:{spec} cannot be loaded: {' '.join(str(error).split())}") from error
    if isinstance(found, dict):
        found = datasets.concatenate_datasets([found[split] for split in sorted(found)])
    return read(found, size=size, name=f"hf:{spec}")


def _pixels(images: Any, size: int | None, name: str) -> np.ndarray:
    from PIL import Image

    found: np.ndarray | None = None
    for k, image in enumerate(images):
        image = image if image.mode in ("L", "RGB") else image.convert("RGB")
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        pixels = pixels_of(image)
        if found is None:
            memory.need(name, len(images) * pixels.nbytes)
            found = np.empty((len(images), *pixels.shape), np.uint8)
        if pixels.shape != found.shape[1:]:
            raise Error(
                f"{name}: image {k} has shape {pixels.shape}, others {found.shape[1:]}: rescale them with size = N"
            )
        found[k] = pixels
    if found is None:
        raise Error(f"{name} has no samples")
    return found
