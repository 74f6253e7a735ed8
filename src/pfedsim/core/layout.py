"""A flat vector's names, shapes, slices and groups: what lies where in `theta`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pfedsim.errors import Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Layout:
    """Which entries of a model's one vector belong to which tensor and group. Groups are found by module
    type."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    size: int
    last: str
    """name of the last linear layer's weight: one row per class"""
    norms: tuple[tuple[str, int], ...]
    """norm layers and their channels, in order"""
    head: Tensor
    body: Tensor
    norm: Tensor
    buffers: Tensor
    trainable: Tensor

    @cached_property
    def statistics(self) -> Tensor:
        """Where the norm statistics lie."""
        return self.buffers.nonzero()[:, 0]

    @cached_property
    def bias(self) -> Tensor:
        """Mask of the last linear layer's bias, one entry per class in order; of nothing where it has none."""
        mask, name = self.head & False, self.last.removesuffix("weight") + "bias"
        if name in self.names:
            self.view(mask, name).fill_(True)
        return mask

    def inside(self, module: str) -> Tensor:
        """Mask of everything in the network's submodule of this name."""
        mask, within = self.head & False, [n for n in self.names if n.startswith(f"{module}.")]
        if not within:
            raise Error(f"the network has no tensor inside {module!r}; it has {', '.join(self.names)}")
        for name in within:
            self.view(mask, name).fill_(True)
        return mask

    def view(self, theta: Tensor, name: str) -> Tensor:
        """The tensor `name` as a shaped view of `theta` (of its last dimension, where `theta` holds several
        models)."""
        k = self._place(name)
        start, shape = self.starts[k], self.shapes[k]
        return theta[..., start : start + _count(shape)].reshape(*theta.shape[:-1], *shape)

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        """All tensors by name, as views."""
        return {name: self.view(theta, name) for name in self.names}

    def flat(self, tensors: dict[str, Tensor]) -> Tensor:
        """One vector from named tensors; a missing, foreign or misshapen one is refused by name."""
        import torch

        strange = sorted(set(tensors) - set(self.names))
        missing = [name for name in self.names if name not in tensors]
        if strange or missing:
            raise Error(
                f"tensors do not fit this network: missing {missing or 'none'}, unknown {strange or 'none'}"
            )
        for name, shape in zip(self.names, self.shapes, strict=True):
            if tuple(tensors[name].shape) != shape:
                raise Error(
                    f"tensor {name!r} has shape {tuple(tensors[name].shape)}, the network's is {shape}"
                )
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in self.names])

    def rows(self, theta: Tensor) -> Tensor:
        """The last linear layer's weight, one row per class."""
        return self.view(theta, self.last)

    def to(self, device: torch.device) -> Layout:
        """The same with its masks on this device."""
        masks = {
            name: getattr(self, name).to(device)
            for name in ("head", "body", "norm", "buffers", "trainable")
        }
        return replace(self, **masks)

    def where(self, index: int) -> str:
        """The name of the tensor that holds this entry."""
        k = max(k for k, start in enumerate(self.starts) if start <= index)
        return self.names[k]

    def _place(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            raise Error(f"the network has no tensor {name!r}; it has {', '.join(self.names)}") from None


def layout_of(module: nn.Module, head: str = "classifier") -> Layout:
    """The layout of a network whose classifier is the attribute `head`. Refuses, by name, what one float32
    vector cannot hold."""
    import torch

    linear = _last_linear(module, head)
    counters = _counters(module)
    named = dict(module.named_parameters(remove_duplicate=False)) | dict(
        module.named_buffers(remove_duplicate=False)
    )
    state = {name: named[name] for name in module.state_dict() if name not in counters}
    _refuse(state)
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    of_head = {
        id(t) for t in [*module.get_submodule(head).parameters(), *module.get_submodule(head).buffers()]
    }
    norms = norm_layers(module)
    of_norm = {id(t) for norm in norms.values() for t in [*norm.parameters(), *norm.buffers()]}
    of_buffers = {id(b) for b in module.buffers()}

    def mask(members: set[int]) -> torch.Tensor:
        return torch.cat([torch.full((t.numel(),), id(t) in members) for t in state.values()])

    starts, at = [], 0
    for tensor in state.values():
        starts.append(at)
        at += tensor.numel()
    groups = {
        "head": mask(of_head),
        "norm": mask(of_norm),
        "buffers": mask(of_buffers),
        "trainable": mask(trainable),
    }
    return Layout(
        names=tuple(state),
        shapes=tuple(tuple(t.shape) for t in state.values()),
        starts=tuple(starts),
        size=at,
        last=next(name for name, t in state.items() if t is linear.weight),
        norms=tuple((name, _channels(norm)) for name, norm in norms.items()),
        body=groups["trainable"] & ~groups["head"],
        **groups,
    )


def norm_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The network's norm layers by name, of any torch norm type, in order."""
    from torch import nn
    from torch.nn.modules.batchnorm import _NormBase

    kinds: tuple[type[nn.Module], ...] = (
        _NormBase,
        nn.GroupNorm,
        nn.LayerNorm,
        nn.RMSNorm,
        nn.LocalResponseNorm,
    )
    return {name: m for name, m in module.named_modules() if isinstance(m, kinds) and list(m.state_dict())}


def _last_linear(module: nn.Module, head: str) -> nn.Linear:
    from torch import nn

    try:
        classifier = module.get_submodule(head)
    except AttributeError:
        raise Error(
            f"{type(module).__name__} has no attribute {head!r}: personalised learning by classifier "
            "similarity is not suitable "
            "for models without a classifier, e.g. image segmentation and content generation (the "
            "paper's first limitation); "
            "name yours as head"
        ) from None
    linear = [m for m in classifier.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise Error(
            f"the classifier {head!r} of {type(module).__name__} holds no linear layer to compare "
            "clients by"
        )
    return linear[-1]


def _counters(module: nn.Module) -> set[str]:
    """Names of the norm layers' batch counters, which momentum makes useless; they are left out."""
    names = set()
    for prefix, norm in norm_layers(module).items():
        if getattr(norm, "num_batches_tracked", None) is None:
            continue
        if getattr(norm, "momentum", 0.0) is None:
            raise Error(
                f"norm layer {prefix!r} has momentum=None: its statistics depend on a counter; give it a "
                "momentum"
            )
        names.add(f"{prefix}.num_batches_tracked" if prefix else "num_batches_tracked")
    return names


def _refuse(state: dict[str, Tensor]) -> None:
    import torch

    seen: dict[int, str] = {}
    for name, tensor in state.items():
        if tensor.dtype != torch.float32:
            raise Error(
                f"tensor {name!r} is {str(tensor.dtype).removeprefix('torch.')}; every tensor must be "
                "float32"
            )
        if tensor.numel() and (other := seen.setdefault(tensor.data_ptr(), name)) != name:
            raise Error(f"tensors {other!r} and {name!r} are tied; give each its own storage")


def _channels(norm: nn.Module) -> int:
    for attribute in ("num_features", "num_channels"):
        if hasattr(norm, attribute):
            return int(getattr(norm, attribute))
    return _count(tuple(next(iter(norm.state_dict().values())).shape))


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
