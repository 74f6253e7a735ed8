"""A run's story into the trackers that people watch: TensorBoard, MLflow, Weights & Biases. Off unless
asked for by --track."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pfedsim.errors import Error, nearest

KINDS = {
    "tensorboard": "TensorBoard",
    "mlflow": "MLflow",
    "wandb": "WandB",
}  # module of this room -> its class


class Tracker(Protocol):
    """Made with where it writes, the run's name and its settings by dotted name."""

    def __init__(self, place: str, name: str, settings: Mapping[str, Any]) -> None: ...

    def round(
        self, number: int, figures: Mapping[str, float], spreads: Mapping[str, Sequence[float]]
    ) -> None:
        """Figures after this round; spreads: a figure of every client."""

    def artefacts(self, pictures: Sequence[Path], models: Path) -> None:
        """At the end: pictures, and the folder of the clients' models."""

    def close(self, failed: bool) -> None: ...


def check(spec: str) -> None:
    """Refuses what names no tracker, without importing any."""
    kind, _, place = spec.partition(":")
    if kind not in KINDS:
        raise Error(f"there is no tracker {kind!r}; {nearest(kind, KINDS)}")
    if kind == "tensorboard" and not place:
        raise Error("track = 'tensorboard': say where its files go, as in tensorboard:DIR")
    if importlib.util.find_spec(kind) is None:
        raise Error(f"track = {spec!r}: {kind} is not installed; pip install 'pfedsim[track]'")


def start(spec: str, name: str, settings: Mapping[str, Any]) -> Tracker:
    """The tracker that `kind:place` names, with a run of this name begun."""
    check(spec)
    kind, _, place = spec.partition(":")
    try:
        module = importlib.import_module(f"pfedsim.track.{kind}")
        tracker: Tracker = getattr(module, KINDS[kind])(place, name, settings)
    except Exception as error:  # a wrong address, no right to write, no login: each library has its own
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Error(f"tracking by {spec} cannot begin: {why}") from error
    return tracker
