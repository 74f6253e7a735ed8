"""Build networks by name, or users' own as `module:Class` or `file.py:Class`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pfedsim.errors import Error, nearest
from pfedsim.plugin import load_class, refuse_file

if TYPE_CHECKING:
    from torch import nn

OURS = {
    "lenet5": "pfedsim.models.lenet5:LeNet5",
    "cnn4": "pfedsim.models.cnn4:CNN4",
    "mobilenetv2": "pfedsim.models.mobilenetv2:MobileNetV2",
    "resnet20": "pfedsim.models.resnet20:ResNet20",
    "mlp": "pfedsim.models.small:MLP",
    "cnn1d": "pfedsim.models.small:CNN1d",
}
NAMES = tuple(OURS)

__all__ = ["NAMES", "build", "check_name"]


def check_name(name: str) -> None:
    """Raise an error if there is no such network, without importing torch."""
    if ":" not in name and name not in NAMES:
        refuse_file(name)
        raise Error(
            f"there is no model {name!r}; {nearest(name, NAMES)} (your own: file.py:Class or module:Class)"
        )


def class_of(name: str) -> type[Any]:
    """The class of a network, by its name."""
    check_name(name)
    return load_class(OURS.get(name, name), "model")


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a network for samples of this shape. Its class is called with `shape` and `classes`, if it has these
    parameters."""
    import torch
    from torch import nn

    kind = class_of(name)
    if not issubclass(kind, nn.Module):
        raise Error(f"{name} is not a torch.nn.Module")
    asked = inspect.signature(kind.__init__).parameters
    given = {k: v for k, v in {"shape": shape, "classes": classes}.items() if k in asked}
    try:
        module: nn.Module = kind(**given)
    except TypeError as error:
        raise Error(
            f"{name} cannot be made with {given or 'no arguments'}: {error}; call its parameters shape and classes"
        ) from error
    module.eval()
    try:
        with torch.no_grad():
            out = module(torch.zeros(2, *shape))
    except Exception as error:
        raise Error(f"{name} cannot take samples of shape {shape}: {error}") from error
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != (2, classes):
        got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise Error(
            f"{name} returns {got} for two samples; a classifier of {classes} classes returns (2, {classes})"
        )
    return module
