"""Sweep settings of one method on one federation, judged on the validation parts, never on the test parts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell
from pfedsim.experiments.space import Space, drawn, grid
from pfedsim.experiments.store import Store
from pfedsim.experiments.sweep_folder import TRIALS
from pfedsim.experiments.trials import Trial, Workshop, best_of, described, run_trials, rung_of
from pfedsim.experiments.vary import RANDOM, changed, space_over, validated
from pfedsim.runs.config import Config, Digests
from pfedsim.runs.execution import Watch
from pfedsim.runs.setup import one_thread, prepare

PRUNE = 0.25  # share of the rounds after which the worse half of a sweep is pruned
ONLY_NUMBERS = ("lr", "lr_decay", "momentum", "decay", "epochs", "local_steps", "batch")
"""settings whose values need no other check than their range"""


@dataclass(frozen=True)
class Sweep:
    """The trials of a sweep, in the order in which they were drawn up."""

    trials: tuple[Trial, ...]
    over: Space
    """the settings that vary, with the values or the range that each may have"""
    prune: float
    """the share of the rounds after which the worse half was pruned; 0: none was"""
    keep: Any = field(default=None, repr=False, compare=False)
    """keeps a temporary folder alive"""

    @property
    def best(self) -> Trial:
        """The finished trial with the highest accuracy on the validation parts."""
        return best_of(self.trials)

    def table(self) -> list[dict[str, Any]]:
        """One row per trial, best first, as for `pandas.DataFrame(s.table())`. No row has a test score."""
        from pfedsim.report.sweep import rows

        return rows(self)

    def __str__(self) -> str:
        from pfedsim.report.sweep import text

        return text(self)

    def _repr_html_(self) -> str:
        from pfedsim.report.sweep import notebook

        return notebook(self)


def sweep(
    config: Config,
    over: Mapping[str, Any],
    out: Path | None,
    federation: Federation,
    trials: int | None = None,
    sampler: str = "random",
    prune: float | None = None,
    watch: Watch | None = None,
    allow_drift: bool = False,
) -> Sweep:
    """Run the configuration with every combination of `over` (setting -> values, or a Range), or with so many
    `trials` of them. `prune`: the share of the rounds after which the worse half ends (None: a quarter, if a round is
    scored there; 0: never). Finished trials in `out` are reused, stopped ones continue."""
    config = validated(config)
    space = space_over(config, over, trials, sampler)
    keep = tempfile.TemporaryDirectory(prefix="pfedsim-") if out is None else None
    folder = Path(keep.name) if keep else Path(str(out))
    shop = Workshop(Store(folder / TRIALS), federation, config, watch, allow_drift)
    cells = Cells(config, federation)
    if sampler == RANDOM:
        asked = grid(space) if trials is None else drawn(space, trials, config.seed)
        group = cells.of(asked)
        share = _share(prune, [cell for _, cell in group])
        found = _run(group, shop, share)
    else:
        from pfedsim.experiments.suggest import Suggestions

        assert trials is not None
        suggestions = Suggestions(space, trials, config.seed)
        share = _share(prune, [cell for _, cell in cells.of([suggestions.first()])])
        found = []
        while batch := suggestions.ask():
            made = _run(cells.of(batch), shop, share, found)
            suggestions.tell(made)
            found += made
    shop.store.tidy()
    result = Sweep(tuple(found), space, share, keep)
    _ = result.best  # an error if there is none
    return result


def _run(
    group: Sequence[tuple[Mapping[str, Any], Cell]],
    shop: Workshop,
    share: float,
    before: Sequence[Trial] = (),
) -> list[Trial]:
    shop.names.update({cell.digest: described(settings) for settings, cell in group})
    return run_trials([group], shop, share, before)[0]


def _share(prune: float | None, cells: Sequence[Cell]) -> float:
    """The share of the rounds after which trials are pruned; by default none where no round is scored there."""
    share = PRUNE if prune is None else prune
    try:
        for cell in cells if share else ():
            rung_of(cell.config, share)
    except Error:
        if prune is not None:
            raise
        return 0.0
    return share


class Cells:
    """The cells of a configuration with some settings changed, on a federation. Checks all before any is run."""

    def __init__(self, config: Config, federation: Federation):
        self._config, self._federation = config, federation
        self._prepared: dict[str, tuple[Digests, Config]] = {}

    def of(self, trials: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Cell]]:
        """The cells of these settings, by dotted name, in order. Raises an error for one that cannot run, or that is
        the run of another."""
        made = [(settings, self._cell(settings)) for settings in trials]
        first: dict[str, Mapping[str, Any]] = {}
        for settings, cell in made:
            same = first.setdefault(cell.digest, settings)
            if same is not settings:
                raise Error(
                    f"{described(same)} and {described(settings)} are the same run; leave one of them out"
                )
        return made

    def different(self, trials: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Cell]]:
        """The same, without the runs that are those of earlier settings."""
        first: dict[str, tuple[Mapping[str, Any], Cell]] = {}
        for settings in trials:
            cell = self._cell(settings)
            first.setdefault(cell.digest, (settings, cell))
        return list(first.values())

    def can_run(self, settings: Mapping[str, Any]) -> bool:
        """Whether a run with these settings can begin."""
        try:
            self._cell(settings)
        except Error:
            return False
        return True

    def _cell(self, settings: Mapping[str, Any]) -> Cell:
        config = changed(self._config, settings)
        digests, planned = self._checked(config)
        assert planned.rounds is not None
        resolved = config.resolved(self._federation.data.defaults, self._federation.clients)
        content = resolved.model_copy(update={"digests": digests, "buffers": planned.buffers}).plain()
        return Cell({**content, "backend": config.backend})

    def _checked(self, config: Config) -> tuple[Digests, Config]:
        """What a run records of data and code, and its settings as its method has them. The run is prepared to see
        that it can begin, once for all that differ only in `ONLY_NUMBERS`."""
        differs = {name: v for name, v in Cell.of(config).words.items() if name not in ONLY_NUMBERS}
        key = json.dumps(differs, sort_keys=True, default=str)
        if key not in self._prepared:
            here = {"engine": "serial", "workers": 1, "address": None, "time_limit": None}
            with one_thread():
                session = prepare(config.model_copy(update=here), self._federation)
                session.begin()
            self._prepared[key] = session.config.digests, session.config
        return self._prepared[key]
