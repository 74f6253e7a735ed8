"""Another device without one: tensors of torch's meta device stand for a GPU's, and mixing them is an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("meta")
MOVES = {Tensor.to, Tensor.cpu, Tensor.copy_}


class NoMixing(TorchFunctionMode):
    """Refuses, as CUDA does, what mixes tensors of two devices; reading a value off the device gives a one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func not in MOVES and len({t.device for t in tensors if t.ndim or t.device == GPU}) > 1:
            raise RuntimeError(f"{func.__name__} was given tensors on {[str(t.device) for t in tensors]}")
        if tensors and tensors[0].device == GPU:
            if func in (Tensor.__float__, Tensor.item):
                return 1.0
            if func is Tensor.__bool__:
                return True
            if func is Tensor.cpu or (func is Tensor.to and torch.device("cpu") in args):
                return torch.zeros(tensors[0].shape, dtype=tensors[0].dtype)
        return func(*args, **kwargs)
