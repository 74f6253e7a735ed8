"""One client's model as its users meet it: samples as stored go in, class names and probabilities come
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pfedsim import models
from pfedsim.backends.torch import CHUNK, normalised
from pfedsim.core.seeds import torch_seeded
from pfedsim.errors import Error


class ClientModel(nn.Module):
    """Takes samples as the data set stores them, normalises them, and gives class scores. The network alone
    is `module`. `fill`: what stands for a missing value of each channel at this client, where its data had
    any; `columns`: what a table's columns are called."""

    mean: Tensor
    std: Tensor
    fill: Tensor | None

    def __init__(
        self,
        module: nn.Module,
        classes: Sequence[str],
        shape: Sequence[int],
        dtype: str,
        mean: Sequence[float],
        std: Sequence[float],
        fill: Sequence[float] | None = None,
        columns: Sequence[str] | None = None,
    ):
        super().__init__()
        self.module = module
        self.classes, self.shape, self.dtype = tuple(classes), tuple(shape), dtype
        self.columns = None if columns is None else tuple(columns)
        over = (-1, *[1] * (len(self.shape) - 1))
        for name, values in (("mean", mean), ("std", std), ("fill", fill)):
            self.register_buffer(
                name, None if values is None else torch.tensor(values).reshape(over), persistent=False
            )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of checked samples; what an exported program computes."""
        scores: Tensor = self.module(self._normal(x))
        return scores

    def _normal(self, x: Tensor) -> Tensor:
        whole = x if self.fill is None else torch.where(x.isnan(), self.fill, x)
        return normalised(whole, self.mean, self.std)

    def samples(self, x: Any) -> Tensor:
        """Samples checked against what the model takes: their shape, and bytes, or values 0 to 1, where it
        was trained on bytes."""
        samples = torch.as_tensor(x)
        if tuple(samples.shape[1:]) != self.shape:
            raise Error(
                f"samples have shape {tuple(samples.shape[1:])}; this model takes {self.shape}, one "
                "sample per row"
            )
        if samples.dtype.is_complex or samples.dtype == torch.bool:
            raise Error(f"samples are {samples.dtype}; this model takes {self.dtype}")
        if samples.dtype == torch.uint8 and self.dtype != "uint8":
            samples = samples.to(torch.float32)  # numbers, not pixels: the model never saw bytes
        if samples.dtype != torch.uint8:
            samples = samples.to(torch.float32)
            bad = samples.isinf() if self.fill is not None else ~samples.isfinite()
            if bad.any():
                raise Error(
                    f"samples have {int(bad.sum())} missing or infinite values; fill them in before"
                )
            if self.dtype == "uint8" and len(samples) and not 0 <= samples.min() <= samples.max() <= 1:
                raise Error(
                    f"samples have values from {samples.min():g} to {samples.max():g}; this model takes "
                    "bytes (uint8) or values from 0 to 1"
                )
        return samples

    def inputs(self, x: Any) -> Tensor:
        """Samples as `module` takes them: bytes brought to 0..1, then the set's mean and deviation."""
        return self._normal(self.samples(x))

    def scores(self, x: Any) -> Tensor:
        """(sample, class) scores before the softmax."""
        with torch.no_grad():
            parts = [self(part) for part in torch.split(self.samples(x), CHUNK)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes))

    def probabilities(self, x: Any) -> Tensor:
        """(sample, class) probabilities."""
        return self.scores(x).double().softmax(1)

    def predict(self, x: Any) -> list[str]:
        """Each sample's most probable class, by name."""
        return [self.classes[k] for k in self.scores(x).argmax(1).tolist()]


def rebuild(name: str, shape: Sequence[int], classes: int, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network `name` with these tensors in it; refuses tensors of another network by name."""
    with torch_seeded(0, "model"):  # its first values are thrown away; the caller's generator is left alone
        module = models.build(name, tuple(shape), classes)
    own = {
        k: t for k, t in module.state_dict().items() if t.is_floating_point()
    }  # the batch counters of norm layers are not kept
    odd = sorted(own.keys() ^ tensors.keys())
    if odd:
        what = "is missing" if odd[0] in own else "is not one of its tensors"
        raise Error(f"these tensors are not those of {name}: {odd[0]!r} {what}")
    for k, t in own.items():
        if tensors[k].shape != t.shape or tensors[k].dtype != t.dtype:
            found = f"{tensors[k].dtype} {tuple(tensors[k].shape)}"
            raise Error(
                f"these tensors are not those of {name}: {k!r} is {found}, expected {t.dtype} "
                f"{tuple(t.shape)}"
            )
    module.load_state_dict(dict(tensors), strict=False)
    return module.eval()
