"""Settings that Optuna suggests, after it has seen how earlier ones did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfedsim.core import seeds
from pfedsim.errors import Error
from pfedsim.experiments.space import Range, Space, rounded
from pfedsim.experiments.trials import FINISHED, PRUNED, Trial

BATCH = 8  # trials that are suggested before any of them is told; not the number of cores, which may change
IN_VAIN = 50  # suggestions in a row that give nothing new before there is nothing new


class Suggestions:
    """Batches of settings. The same seed and scores give the same suggestions, so a stopped sweep continues."""

    def __init__(self, space: Space, trials: int, seed: int):
        optuna = check_optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seeds.address(seed, "sweep") % 2**32)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._states = optuna.trial.TrialState
        self._space, self._left = space, trials
        self._asked: list[tuple[Any, dict[str, Any]]] = []
        self._known: list[tuple[dict[str, Any], Trial]] = []

    def first(self) -> dict[str, Any]:
        """Some settings of the space, to see whether they can be run."""
        return {name: v.at(0.5) if isinstance(v, Range) else v[0] for name, v in self._space.items()}

    def ask(self) -> list[dict[str, Any]]:
        """The next settings to try, all new; empty when there are enough or no others."""
        self._asked, in_vain = [], 0
        while len(self._asked) < min(BATCH, self._left) and in_vain < IN_VAIN:
            trial = self._study.ask()
            settings = {name: self._suggested(trial, name, v) for name, v in self._space.items()}
            before = next((t for s, t in self._known if s == settings), None)
            if before is None and all(settings != s for _, s in self._asked):
                self._asked.append((trial, settings))
                in_vain = 0
                continue
            in_vain += 1
            self._tell(trial, before)
        self._left -= len(self._asked)
        return [settings for _, settings in self._asked]

    def tell(self, trials: Sequence[Trial]) -> None:
        """How the trials of the last batch did, in order."""
        for (asked, settings), trial in zip(self._asked, trials, strict=True):
            self._known.append((settings, trial))
            self._tell(asked, trial)

    def _suggested(self, trial: Any, name: str, values: Sequence[Any] | Range) -> Any:
        if not isinstance(values, Range):
            return values[trial.suggest_categorical(name, range(len(values)))]
        if values.whole:
            return trial.suggest_int(name, values.low, values.high, log=values.log)
        found = trial.suggest_float(name, values.low, values.high, log=values.log)
        return min(max(rounded(found), values.low), values.high)

    def _tell(self, asked: Any, trial: Trial | None) -> None:
        """A diverged trial, and one that stands in this very batch already, has no value."""
        if trial is None or trial.validation is None:
            self._study.tell(asked, state=self._states.FAIL)
        elif trial.outcome == PRUNED:
            asked.report(trial.validation, trial.round)
            self._study.tell(asked, state=self._states.PRUNED)
        else:
            assert trial.outcome == FINISHED
            self._study.tell(asked, trial.validation)


def check_optuna() -> Any:
    """Optuna; raises an error if it is missing."""
    try:
        import optuna
    except ImportError:
        raise Error("the sampler optuna is not installed: pip install 'pfedsim[optuna]'") from None
    return optuna
