"""Where gradients come from: `torch` takes any network and device, `native` graphs of common layers on
the CPU, faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.errors import Error
from pfedsim.lazy import public

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from pfedsim.backends.base import Backend
    from pfedsim.backends.torch import normalised as normalised
    from pfedsim.core.layout import Layout

NAMES = ("auto", "torch", "native")

_later, __getattr__, _ = public(__name__, {"pfedsim.backends.torch": "normalised"})
__all__ = ["NAMES", "make", *_later]


def make(
    asked: str,
    module: nn.Module,
    layout: Layout,
    head: str,
    mean: Tensor,
    std: Tensor,
    shape: tuple[int, ...],
    device: torch.device,
    why: str = "",
) -> tuple[str, Backend, str]:
    """The backend's name, the network on it, and why it is not the fast one ("" where it is, or where torch
    was asked for). `why`: why it cannot be the fast one, if that is known."""
    from pfedsim.backends import native
    from pfedsim.backends.graph import Unfit
    from pfedsim.backends.torch import TorchNet

    if why:
        pass
    elif device.type != "cpu":
        why = f"the native backend runs on the CPU, not on {device}"
    elif not native.available():
        why = "the native backend was not built here (it needs a C++17 compiler when pfedsim is installed)"
    if asked != "torch" and not why:
        try:
            return "native", native.NativeNet(module, layout, head, mean, std, shape), ""
        except Unfit as reason:
            why = f"this network cannot run natively: {reason}"
    if asked == "native":
        raise Error(f"backend = native: {why}")
    return "torch", TorchNet(module, layout, head, mean, std, device), "" if asked == "torch" else why
