"""Where gradients come from: `torch` takes any network and device, `native` chains of common layers on the
CPU, several times as fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.errors import Error
from pfedsim.lazy import public

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from pfedsim.backends.native import NativeNet
    from pfedsim.backends.torch import TorchNet
    from pfedsim.backends.torch import normalised as normalised
    from pfedsim.core.layout import Layout

    Backend = TorchNet | NativeNet

NAMES = ("auto", "torch", "native")

_later, __getattr__, _ = public(__name__, {"pfedsim.backends.torch": "normalised"})
__all__ = ["NAMES", "choose", "make", *_later]


def choose(
    asked: str, module: nn.Module, shape: tuple[int, ...], head: str, device: torch.device
) -> tuple[str, str]:
    """The backend to use, and why it is not the fast one ("" where it is, or where torch was asked for)."""
    from pfedsim.backends import native

    if asked == "torch":
        return "torch", ""
    why = None
    if device.type != "cpu":
        why = f"the native backend runs on the CPU, not on {device}"
    elif not native.available():
        why = "the native backend was not built here (it needs a C++17 compiler when pfedsim is installed)"
    elif reason := native.unfit(module, shape, head):
        why = f"this network cannot run natively: {reason}"
    if why and asked == "native":
        raise Error(f"backend = native: {why}")
    return ("torch", why) if why else ("native", "")


def make(
    name: str,
    module: nn.Module,
    layout: Layout,
    head: str,
    mean: Tensor,
    std: Tensor,
    shape: tuple[int, ...],
    device: torch.device,
) -> Backend:
    """The network on this backend."""
    if name == "native":
        from pfedsim.backends.native import NativeNet

        return NativeNet(module, layout, head, mean, std, shape)
    from pfedsim.backends.torch import TorchNet

    return TorchNet(module, layout, head, mean, std, device)
