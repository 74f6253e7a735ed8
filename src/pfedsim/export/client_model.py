"""One client's model, ready to use: it takes samples as stored and returns class names and probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pfedsim import models
from pfedsim.backends.torch import CHUNK, normalised
from pfedsim.core.method import Method
from pfedsim.core.seeds import torch_seeded
from pfedsim.data.tables.recipe import Recipe
from pfedsim.data.tables.sheets import Sheet, is_frame, of_frame
from pfedsim.errors import Error, Notice
from pfedsim.export.rows import Ranges, Rows, rows_of
from pfedsim.runs.network import changed

if TYPE_CHECKING:
    import pandas


class ClientModel(nn.Module):
    """Takes samples as the data set stores them, normalises them, and returns class scores. `module` is the plain
    network; `fill`: the value for missing cells of each channel at this client, if its data had any; `columns`:
    the names of a table's columns; `recipe`: how rows of the original table become samples; `ranges`: those of the
    client's own train part."""

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
        recipe: Recipe | None = None,
        ranges: Ranges | None = None,
    ):
        super().__init__()
        self.module = module
        self.classes, self.shape, self.dtype = tuple(classes), tuple(shape), dtype
        self.columns = None if columns is None else tuple(columns)
        self.recipe, self.ranges = recipe, ranges
        over = (-1, *[1] * (len(self.shape) - 1))
        for name, values in (("mean", mean), ("std", std), ("fill", fill)):
            self.register_buffer(
                name, None if values is None else torch.tensor(values).reshape(over), persistent=False
            )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of checked samples. Exported programs compute this function."""
        scores: Tensor = self.module(self._normal(x))
        return scores

    def _normal(self, x: Tensor) -> Tensor:
        filled = x if self.fill is None else torch.where(x.isnan(), self.fill, x)
        return normalised(filled, self.mean, self.std)

    def samples(self, x: Any) -> Tensor:
        """Check the samples' shape and values; a model trained on bytes takes bytes, or values from 0 to 1. A DataFrame
        holds rows of the original table."""
        if is_frame(x):
            rows = self.rows(of_frame(x, "the DataFrame"))
            for warning in rows.warnings:
                warnings.warn(warning, Notice, stacklevel=4)
            x = self.filled(rows.x)
        frozen = isinstance(x, np.ndarray) and not x.flags.writeable  # torch warns about sharing its memory
        samples = torch.as_tensor(x.copy() if frozen else x)
        if tuple(samples.shape[1:]) != self.shape:
            raise Error(
                f"samples have shape {tuple(samples.shape[1:])}; this model takes {self.shape}, one "
                "sample per row"
            )
        if samples.dtype.is_complex or samples.dtype == torch.bool:
            raise Error(f"samples are {samples.dtype}; this model takes {self.dtype}")
        if samples.dtype == torch.uint8 and self.dtype != "uint8":
            samples = samples.to(torch.float32)  # numbers, not pixels: the model was not trained on bytes
        if samples.dtype != torch.uint8:
            samples = samples.to(torch.float32)
            bad = samples.isinf() if self.fill is not None else ~samples.isfinite()
            if bad.any():
                raise Error(f"samples have {int(bad.sum())} missing or infinite values; replace them first")
            if self.dtype == "uint8" and len(samples) and not 0 <= samples.min() <= samples.max() <= 1:
                raise Error(
                    f"samples have values from {samples.min():g} to {samples.max():g}; this model takes "
                    "bytes (uint8) or values from 0 to 1"
                )
        return samples

    def rows(self, sheet: Sheet) -> Rows:
        """Rows of the original table as numbers, with labels and warnings."""
        if self.recipe is None:
            raise Error(
                f"this model takes samples of shape {self.shape}, not the rows of a table with named columns"
            )
        return rows_of(sheet, self.recipe, self.ranges)

    def filled(self, x: np.ndarray) -> np.ndarray:
        """The rows with the means of training in place of missing cells, if the client knows nothing better."""
        return x if self.fill is not None else np.where(np.isnan(x), self.mean.numpy(), x)

    def inputs(self, x: Any) -> Tensor:
        """Samples as `module` takes them: bytes scaled to 0..1, then normalised with the data set's mean and
        std."""
        return self._normal(self.samples(x))

    def scores(self, x: Any) -> Tensor:
        """Scores before the softmax, of shape (sample, class)."""
        with torch.no_grad():
            parts = [self(part) for part in torch.split(self.samples(x), CHUNK)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes))

    def probabilities(self, x: Any) -> Tensor:
        """Probabilities, of shape (sample, class)."""
        return self.scores(x).double().softmax(1)

    def predict(self, x: Any) -> list[str]:
        """The name of each sample's most probable class."""
        return [self.classes[k] for k in self.scores(x).argmax(1).tolist()]

    def to_pandas(self, x: Any) -> pandas.DataFrame:
        """Predictions as a DataFrame: the most probable class of each sample, its probability, and that of each class;
        of a DataFrame, with its index."""
        try:
            import pandas
        except ImportError:
            raise Error("to_pandas needs pandas: pip install pandas") from None
        p = self.probabilities(x).numpy()
        best = p.argmax(1)
        found = {"class": [self.classes[k] for k in best], "probability": p.max(1)}
        found |= {f"p({name})": p[:, k] for k, name in enumerate(self.classes)}
        return pandas.DataFrame(found, index=x.index if is_frame(x) else None)


def rebuild(
    name: str,
    shape: Sequence[int],
    classes: int,
    tensors: Mapping[str, Tensor],
    method: Method | None = None,
    head: str = "",
) -> nn.Module:
    """Build the network `name`, as `method` changes it at its `head`, and load these tensors. Tensors of another
    network are an error."""
    with torch_seeded(0, "model"):  # keeps the caller's generator; the initial values are overwritten
        module = models.build(name, tuple(shape), classes)
        if method is not None:
            module = changed(method, module, head, tuple(shape), classes)
    # the batch counters of norm layers, which are integers, are not kept
    own = {k: t for k, t in module.state_dict().items() if t.is_floating_point()}
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
