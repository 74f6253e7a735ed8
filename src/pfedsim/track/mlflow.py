"""MLflow: a run in the experiment "pfedsim" of the store at URI (default: MLflow's default)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param


class MLflow:
    """Uses a separate client, which leaves a user's active MLflow run alone. Spreads are not logged; their quantiles
    are among the figures."""

    def __init__(self, place: str, name: str, settings: Mapping[str, Any]) -> None:
        self._client = MlflowClient(tracking_uri=place or None)
        known = self._client.get_experiment_by_name("pfedsim")
        experiment = known.experiment_id if known else self._client.create_experiment("pfedsim")
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        self._client.log_batch(
            self._run, params=[Param(key, str(value)) for key, value in settings.items()]
        )

    def round(
        self, number: int, figures: Mapping[str, float], spreads: Mapping[str, Sequence[float]]
    ) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(
            self._run, metrics=[Metric(key, value, now, number) for key, value in figures.items()]
        )

    def artefacts(self, pictures: Sequence[Path], models: Path) -> None:
        for path in pictures:
            self._client.log_artifact(self._run, str(path), "figures")
        self._client.log_artifacts(self._run, str(models), "models")

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
