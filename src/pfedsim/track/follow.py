"""Follow a run in its folder, round by round, and log it to a tracker. If the tracker fails, the run continues."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.runs.config import Config
from pfedsim.runs.news import title
from pfedsim.runs.reader import Run
from pfedsim.track import start

QUANTILES = {"worst": 0, "p10": 10, "median": 50, "p90": 90, "best": 100}


class Follower:
    """Logs everything new in a run's folder to a tracker."""

    def __init__(self, spec: str, config: Config, folder: Path, say: Callable[[str], None]):
        self._spec, self._folder, self._say, self._given_up = spec, folder, say, False
        settings = config.plain()
        self._tracker = start(spec, title(settings), _dotted(settings))
        self._metrics, self._clients = _Tail(folder / "metrics.jsonl"), _Tail(folder / "clients.csv")

    def look(self) -> None:
        """Log what is new. If the tracker fails, this is reported once and tracking ends."""
        if self._given_up:
            return
        with self._forgiving():
            accuracies = self._accuracies()
            for line in self._metrics.lines():
                record = json.loads(line)
                number, split = record.pop("round"), record.pop("split", "test")
                model = record.pop("model", None)
                name = f"{model}/{split}" if model else "round"
                figures = {
                    f"{name}/{key}": float(v) for key, v in record.items() if isinstance(v, (int, float))
                }
                spread = accuracies.get((number, model, split), [])
                if spread:
                    figures |= {
                        f"{name}/clients/{word}": float(np.percentile(spread, q))
                        for word, q in QUANTILES.items()
                    }
                self._tracker.round(number, figures, {f"{name}/clients": spread} if spread else {})

    def close(self, failed: bool) -> None:
        self.look()
        with self._forgiving():
            if not failed and not self._given_up:
                from pfedsim.report import pictures

                run = Run(self._folder)
                made = pictures.save(
                    pictures.of_runs({run.summary["method"]: run}), self._folder / "figures"
                )
                self._tracker.artefacts(made, self._folder / "models")
        with self._forgiving():
            self._tracker.close(failed)

    def _accuracies(self) -> dict[tuple[int, str, str], list[float]]:
        """Every client's accuracy in the new scores."""
        found: dict[tuple[int, str, str], list[float]] = {}
        for number, _, model, split, metric, value in csv.reader(self._clients.lines()):
            if metric == "accuracy" and value:
                found.setdefault((int(number), model, split), []).append(float(value))
        return found

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a failing tracker must not stop the run
            self._given_up = True
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._say(f"tracking with {self._spec} stopped: {why}")


class _Tail:
    """Reads the complete lines added to a file since the last read."""

    def __init__(self, path: Path):
        self._path, self._seen = path, 0

    def lines(self) -> list[str]:
        with open(self._path, "rb") as file:
            file.seek(self._seen)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._seen += len(complete)
        return complete.decode().splitlines()


def _dotted(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables as `table.key`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _dotted(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat
