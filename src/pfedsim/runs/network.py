"""A network by its name: made the same way by the server, by a worker and on another machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from pfedsim import backends, models
from pfedsim.core import seeds
from pfedsim.core.hooks import hook
from pfedsim.core.layout import Layout, layout_of
from pfedsim.core.method import Method
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pfedsim.backends.base import Backend


@dataclass(frozen=True)
class Network:
    """All that making a network takes: its name, what it is for, and where it runs."""

    model: str
    head: str
    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    backend: str = "auto"
    device: str = "cpu"
    method: Method | None = None
    """what changes the network, or needs autograd"""

    def build(self, seed: int) -> tuple[nn.Module, Layout, Tensor]:
        """The module, its layout and the vector that every client starts from."""
        return initial_model(self.model, self.head, self.shape, self.classes, seed, self.method)

    def on_backend(self, module: nn.Module, layout: Layout) -> tuple[str, Backend, str]:
        """The backend's name, the network on it, and why it is not the fast one."""
        over = (-1, *[1] * (len(self.shape) - 1))
        mean, std = torch.tensor(self.mean).reshape(over), torch.tensor(self.std).reshape(over)
        device = _device(self.device)
        method, why = self.method, ""
        if method is not None and method.autograd():
            name = method.title or type(method).__name__
            why = f"{name} has a loss written for autograd, which needs backend = torch"
        name, net, why = backends.make(
            self.backend, module, layout, self.head, mean, std, self.shape, device, why
        )
        net.recipe = replace(self, backend=name)
        return name, net, why

    def open(self) -> Backend:
        """The network on its backend; a model is loaded with every call, so its first values do not matter."""
        module, layout, _ = self.build(seed=0)
        return self.on_backend(module, layout)[1]


def initial_model(
    name: str, head: str, shape: tuple[int, ...], classes: int, seed: int, method: Method | None = None
) -> tuple[nn.Module, Layout, Tensor]:
    """The network, as the method changes it, its layout and the vector that every client starts from."""
    with seeds.torch_seeded(seed, "model"):
        module = models.build(name, shape, classes)
        if method is not None:
            module = changed(method, module, head, shape, classes)
    layout = layout_of(module, head)
    state = module.state_dict()
    return module, layout, layout.flat({k: state[k] for k in layout.names})


def changed(
    method: Method, module: nn.Module, head: str, shape: tuple[int, ...], classes: int
) -> nn.Module:
    """What the method makes of the network: still a classifier of these samples, with the same `head`."""
    if not method.reshapes():
        return module
    with hook(method, "network"):
        made = method.network(module, head)
        if not isinstance(made, torch.nn.Module):
            raise TypeError(f"it gave {type(made).__name__}, expected a torch.nn.Module")
        made.eval()
        with torch.no_grad():
            out = made(torch.zeros(2, *shape))
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != (2, classes):
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise TypeError(f"its network returns {got} for two samples, expected (2, {classes})")
    return made


def _device(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise Error(
            f"device {name!r}: torch finds {torch.cuda.device_count()} CUDA devices here; use the device cpu"
        )
    return torch.device(name)
