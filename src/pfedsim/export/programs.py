"""Export a model as a program that runs without pfedsim, checked against the original on real samples."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfedsim.errors import Error
from pfedsim.export.client_model import ClientModel

CLOSE = 1e-5  # largest allowed difference of a score, relative to the largest score if that is above 1


def write_onnx(model: ClientModel, x: Tensor, path: Path) -> float:
    """Write model.onnx, with input `x` (any number of samples as stored) and output `scores`. Returns its largest
    difference from the model."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise Error(f"ONNX needs {error.name}: pip install 'pfedsim[export]'") from None
    with _quietly("ONNX"):
        program = torch.onnx.export(
            model,
            (_two(x),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            input_names=["x"],
            output_names=["scores"],
            verbose=False,
        )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # stack traces with this machine's paths
        program.save(path, external_data=False)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return _difference("ONNX", model, x, lambda part: session.run(["scores"], {"x": part.numpy()})[0])


def write_pt2(model: ClientModel, x: Tensor, path: Path) -> float:
    """Write model.pt2 with torch.export, for `torch.export.load(path).module()(x)`."""
    with _quietly("torch.export"):
        program = torch.export.export(
            model, (_two(x),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # this machine's paths
        torch.export.save(program, path)
        again = torch.export.load(path).module()
    return _difference("torch.export", model, x, lambda part: again(part).detach().numpy())


def _two(x: Tensor) -> Tensor:
    """A batch of two: from a batch of one, torch would specialise to batches of one."""
    return x[:2] if len(x) > 1 else x.repeat(2, *[1] * (x.ndim - 1))


def _difference(kind: str, model: ClientModel, x: Tensor, run: Callable[[Tensor], np.ndarray]) -> float:
    """The largest difference on all samples at once and on the first alone."""
    largest = 0.0
    for part in (x, x[:1]):
        right = model.scores(part).numpy()
        apart = float(np.abs(run(part) - right).max())
        if not apart <= CLOSE * max(1.0, float(np.abs(right).max())):
            raise Error(
                f"the {kind} program's scores differ from the model's by {apart:g} on the client's test samples; "
                "it is not exported"
            )
        largest = max(largest, apart)
    return largest


@contextmanager
def _quietly(kind: str) -> Iterator[None]:
    """Silence the exporters' logs and warnings, and turn their errors into one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise Error(f"this network cannot be written as {kind}: {why[0]}") from error
    finally:
        logging.disable(before)
