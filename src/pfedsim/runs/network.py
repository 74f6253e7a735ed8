"""A network by its name: made the same way by the server, by a worker and on another machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from pfedsim import backends, models
from pfedsim.core import seeds
from pfedsim.core.layout import Layout, layout_of
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

    def build(self, seed: int) -> tuple[nn.Module, Layout, Tensor]:
        """The module, its layout and the vector that every client starts from."""
        return initial_model(self.model, self.head, self.shape, self.classes, seed)

    def on_backend(self, module: nn.Module, layout: Layout) -> tuple[str, Backend, str]:
        """The backend's name, the network on it, and why it is not the fast one."""
        over = (-1, *[1] * (len(self.shape) - 1))
        mean, std = torch.tensor(self.mean).reshape(over), torch.tensor(self.std).reshape(over)
        device = _device(self.device)
        name, net, why = backends.make(
            self.backend, module, layout, self.head, mean, std, self.shape, device
        )
        net.recipe = replace(self, backend=name)
        return name, net, why

    def open(self) -> Backend:
        """The network on its backend; a model is loaded with every call, so its first values do not matter."""
        module, layout, _ = self.build(seed=0)
        return self.on_backend(module, layout)[1]


def initial_model(
    name: str, head: str, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[nn.Module, Layout, Tensor]:
    """The network, its layout and the vector that every client starts from."""
    with seeds.torch_seeded(seed, "model"):
        module = models.build(name, shape, classes)
    layout = layout_of(module, head)
    state = module.state_dict()
    return module, layout, layout.flat({k: state[k] for k in layout.names})


def _device(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise Error(
            f"device {name!r}: torch finds {torch.cuda.device_count()} CUDA devices here; use the device cpu"
        )
    return torch.device(name)
