"""Load pretrained weights from .safetensors or .npz: all tensors except the classifier's, which is new."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pfedsim import memory
from pfedsim.arrays import arrays_in
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core.layout import Layout

SUFFIXES = (".safetensors", ".npz")


def find(name: str, data_dir: Path) -> Path:
    """The file of these weights, given as a path or as a name that `pfedsim data get` has downloaded."""
    if name.endswith(SUFFIXES):
        if not Path(name).is_file():
            raise Error(f"pretrained = {name!r}: there is no such file")
        return Path(name)
    found = [path for suffix in SUFFIXES for path in sorted((data_dir / name).glob(f"*{suffix}"))]
    if not found:
        raise Error(
            f"no weights {name!r} in {data_dir}: get them with `pfedsim data get {name}`, or name a "
            ".safetensors or .npz file"
        )
    return found[0]


def load(path: Path) -> dict[str, Tensor]:
    """Load the tensors in this file."""
    memory.need(path, path.stat().st_size)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        import torch

        return {name: torch.from_numpy(array) for name, array in arrays_in(path).items()}
    except (Error, MemoryError):
        raise
    except Exception as error:  # with a damaged file, the libraries may raise anything
        raise Error(f"{path} is not a valid file of tensors: {' '.join(str(error).split())}") from error


def into(layout: Layout, initial: Tensor, tensors: dict[str, Tensor], path: Path) -> Tensor:
    """`initial` with everything except the classifier replaced by `tensors`. A missing, unknown or misshapen tensor
    is an error."""
    named = layout.named(initial.clone())
    counters = {f"{norm}.num_batches_tracked" for norm, _ in layout.norms}
    head = {name for name in layout.names if bool(layout.view(layout.head, name).any())}
    strange = sorted(set(tensors) - set(named) - counters)
    missing = [name for name in layout.names if name not in head and name not in tensors]
    if strange or missing:
        what = f"it has no {missing[0]!r}" if missing else f"the network has no {strange[0]!r}"
        raise Error(f"{path} does not fit this network: {what}")
    for name in layout.names:
        if name in head:
            continue
        if tensors[name].shape != named[name].shape:
            raise Error(
                f"{path}: {name!r} has shape {tuple(tensors[name].shape)}, the network's is "
                f"{tuple(named[name].shape)}"
            )
        if not bool(tensors[name].isfinite().all()):
            raise Error(f"{path}: {name!r} has values that are not finite")
        named[name] = tensors[name].float()
    return layout.flat(named)
