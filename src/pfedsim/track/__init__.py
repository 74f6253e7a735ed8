"""Log runs to TensorBoard, MLflow or Weights & Biases, if --track is given."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pfedsim.errors import Error, nearest

KINDS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}  # module -> class


class Tracker(Protocol):
    """A tracker. `place`: where it writes; `settings`: the run's settings by dotted name."""

    def __init__(self, place: str, name: str, settings: Mapping[str, Any]) -> None: ...

    def round(
        self, number: int, figures: Mapping[str, float], spreads: Mapping[str, Sequence[float]]
    ) -> None:
        """Log values after this round; `spreads`: the values of all clients."""

    def artefacts(self, pictures: Sequence[Path], models: Path) -> None:
        """Log pictures and the folder of the clients' models at the end."""

    def close(self, failed: bool) -> None: ...


def check(spec: str) -> None:
    """Raise an error if `spec` names no installed tracker, without importing any."""
    kind, _, place = spec.partition(":")
    if kind not in KINDS:
        raise Error(f"there is no tracker {kind!r}; {nearest(kind, KINDS)}")
    if kind == "tensorboard" and not place:
        raise Error("track = 'tensorboard': name the folder for its files, as in tensorboard:DIR")
    if importlib.util.find_spec(kind) is None:
        raise Error(f"track = {spec!r}: {kind} is not installed; pip install 'pfedsim[track]'")


def start(spec: str, name: str, settings: Mapping[str, Any]) -> Tracker:
    """Start a run of this name in the tracker `kind:place`."""
    check(spec)
    kind, _, place = spec.partition(":")
    try:
        module = importlib.import_module(f"pfedsim.track.{kind}")
        tracker: Tracker = getattr(module, KINDS[kind])(place, name, settings)
    except Exception as error:  # each library has its own classes for a wrong URL, permissions or login
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Error(f"tracking with {spec} cannot start: {why}") from error
    return tracker
