"""Which round counts, and when a run stops, judged by the accuracy on the validation parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfedsim.core.server import State
from pfedsim.errors import Error
from pfedsim.runs.config import BEST, Stop


class Choice:
    """Hears the validation accuracy of every scored round. A round is better only if its accuracy is higher, so the
    earliest of equal ones counts. `before` and `best`: the record and the best state of a run that continues."""

    def __init__(
        self, stop: Stop | None, before: Mapping[str, Any] | None = None, best: State | None = None
    ):
        self._stop = stop or Stop()
        self.best = best
        self.record: dict[str, Any] = dict(before or {"round": None, "accuracy": None, "since": 0})

    @property
    def keeps(self) -> bool:
        """Whether the best round is reported in place of the last."""
        return self._stop.round == BEST

    @property
    def spent(self) -> bool:
        """Whether patience has run out."""
        return self._stop.patience is not None and self.record["since"] >= self._stop.patience

    def hear(self, state: State, accuracy: float) -> None:
        """Take note of a round. NaN, for clients that hold nothing back, is never better."""
        known = self.record["accuracy"]
        if accuracy >= 0 and (known is None or accuracy > known):
            self.record = {"round": state.server.round, "accuracy": accuracy, "since": 0}
            if self.keeps:
                self.best = state
        else:
            self.record = {**self.record, "since": self.record["since"] + 1}

    def chosen(self) -> State:
        """The state of the best round."""
        if self.best is None:
            raise Error(
                "no round has a validation accuracy, so none can be chosen: no client holds a sample back; raise "
                "validation"
            )
        return self.best
