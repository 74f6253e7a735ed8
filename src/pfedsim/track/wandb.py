"""Weights & Biases: a run in the project PROJECT (default: pfedsim). WANDB_MODE=offline keeps it local."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb


class WandB:
    """Models are logged as an artifact of type "model"."""

    def __init__(self, place: str, name: str, settings: Mapping[str, Any]) -> None:
        quiet = wandb.Settings(console="off")  # do not capture the terminal's output
        project, config = place or "pfedsim", dict(settings)
        self._run = wandb.init(
            project=project, name=name, config=config, settings=quiet, reinit="create_new"
        )
        self._name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)

    def round(
        self, number: int, figures: Mapping[str, float], spreads: Mapping[str, Sequence[float]]
    ) -> None:
        spread = {f"{name}/histogram": wandb.Histogram(list(values)) for name, values in spreads.items()}
        self._run.log({**figures, **spread}, step=number)

    def artefacts(self, pictures: Sequence[Path], models: Path) -> None:
        self._run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in pictures})
        artifact = wandb.Artifact(f"models-{self._name}", type="model")
        artifact.add_dir(str(models))
        self._run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
