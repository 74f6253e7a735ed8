"""Tune every method with the same number of trials over its own search space, judged on the validation parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pfedsim import durable, seal
from pfedsim.core.method import Method
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell
from pfedsim.experiments.folders import CHOSEN
from pfedsim.experiments.space import Range, rounded, split, spread, values_of
from pfedsim.experiments.store import Store
from pfedsim.experiments.sweep import Cells
from pfedsim.experiments.trials import Trial, Workshop, best_of, described, run_trials
from pfedsim.experiments.vary import validated
from pfedsim.methods import METHODS, label, parse
from pfedsim.runs.config import Config, table_of
from pfedsim.runs.execution import Watch

FORMAT = "pfedsim tuning 1"
LR = "lr"
DECADE = 10  # learning rates are tried from a tenth to ten times that of the settings


@dataclass(frozen=True)
class Tuned:
    """A method with the settings chosen for it."""

    method: str
    """as it was asked for: name, name:preset or file.py:Class, perhaps with options"""
    label: str
    """its name in tables, without what was chosen"""
    trials: tuple[Trial, ...]
    """the first has the settings as they were given"""

    @property
    def best(self) -> Trial:
        return best_of(self.trials)

    @property
    def chosen(self) -> Mapping[str, Any]:
        """What differs from the settings as given, by dotted name; empty if those were best."""
        return self.best.settings

    def cell(self, seed: int) -> Cell:
        """The run of the chosen settings with this seed. Its words leave nothing open."""
        return Cell({**self.best.cell.words, "seed": seed})


@dataclass(frozen=True)
class Tuning:
    """How the methods of a comparison were tuned, as its folder keeps it."""

    trials: int
    """of each method"""
    seed: int
    validation: float
    """the share of the train parts by which settings were chosen"""
    methods: Mapping[str, Mapping[str, Any]]
    """by label: `chosen` settings, their `validation` accuracy, that of the settings `as_given`, and all `trials`"""

    @classmethod
    def of(cls, found: Mapping[str, Tuned]) -> Tuning:
        config = next(iter(found.values())).best.config
        methods = {
            t.label: {
                "chosen": dict(t.chosen),
                "validation": t.best.validation,
                "as_given": t.trials[0].validation,
                "trials": [
                    {"settings": dict(x.settings), "validation": x.validation, "outcome": x.outcome}
                    for x in t.trials
                ],
            }
            for t in found.values()
        }
        trials = min(len(t.trials) for t in found.values())
        return cls(trials, config.seed, config.validation, methods)

    def write(self, folder: Path) -> None:
        durable.make_folder(folder)
        durable.write(folder / CHOSEN, seal.sealed({"format": FORMAT, **asdict(self)}).encode())

    @classmethod
    def read(cls, folder: Path) -> Tuning:
        """What `write` has written. Raises an error if it is damaged."""
        content = seal.load(folder / CHOSEN, "what was chosen by tuning")
        if content.get("format") != FORMAT:
            raise Error(f"{folder / CHOSEN} is not what compare --tune writes ({FORMAT!r} expected)")
        return cls(**{f.name: content[f.name] for f in fields(cls)})


def tuning_seed(seeds: Sequence[int]) -> int:
    """The seed of all trials: the lowest that is not compared, so no run chooses its own settings."""
    return next(seed for seed in range(len(seeds) + 1) if seed not in seeds)


def space_of(config: Config, method: str) -> dict[str, Any]:
    """What is tried for this method, by dotted name: its learning rate, from a tenth to ten times what it is, and
    the options that it declares in `search`; none of the options that the user has set."""
    made, table = parse(method, config.options), table_of(method)
    kept = {*config.options.get(table, {}), *_stated(method, made)}
    space: dict[str, Any] = {}
    if made.rate not in kept:
        now = config.lr if made.rate == LR else float(getattr(made, made.rate))
        name = LR if made.rate == LR else f"{table}.{made.rate}"
        space[name] = Range(rounded(now / DECADE), rounded(now * DECADE), log=True)
    own = {option: values for option, values in made.search.items() if option not in kept}
    return space | {f"{table}.{option}": values_of(option, list(values)) for option, values in own.items()}


def _stated(method: str, made: Method) -> set[str]:
    """The options that are given with the name: by a preset, or in parentheses."""
    name, _, inside = method.partition("(")
    preset = name.strip().partition(":")[2]
    words = {part.partition("=")[0].strip() for part in split(inside.rpartition(")")[0])}
    return words | set(made.presets.get(preset, {}) if table_of(method) in METHODS else ())


def _possible(space: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    """The space without values that the method refuses beside the other settings, such as as many epochs
    for FedRep's body as there are in all."""
    _ = cells.of([{}])  # the settings as they are must do
    left: dict[str, Any] = {}
    for name, values in space.items():
        possible = values if isinstance(values, Range) else [v for v in values if cells.can_run({name: v})]
        if possible:
            left[name] = possible
    return left


def tuned(
    config: Config,
    methods: Sequence[str],
    trials: int,
    store: Store,
    federation: Federation,
    seeds: Sequence[int] = (),
    watch: Watch | None = None,
    prune: float = 0.0,
    allow_drift: bool = False,
) -> dict[str, Tuned]:
    """Choose the settings of every method by so many trials each, which run side by side in `store`: finished ones
    are reused, stopped ones continue. The first trial has the settings as they are; the others are spread over
    `space_of`, with the same learning rates for every method. A method with fewer combinations runs them all.

    All trials have the same seed, `tuning_seed(seeds)` for the `seeds` that are compared, and the partition,
    validation parts and rounds of the final runs, which are `result[method].cell(seed)`. Where `config` leaves
    `validation` open, all of them hold 0.2 back."""
    if trials < 2:
        raise Error(
            f"tune = {trials}: the first trial has the settings as they are, so at least 2 are needed"
        )
    config = validated(config)
    shop = Workshop(store, federation, config, watch, allow_drift)
    groups, labels = [], {}
    for method in dict.fromkeys(methods):
        mine = config.model_copy(update={"method": method, "seed": tuning_seed(seeds)})
        labels[method] = label(parse(method, config.options))
        cells = Cells(mine, federation)
        groups.append(cells.different([{}, *spread(_possible(space_of(mine, method), cells), trials - 1)]))
        shop.names.update({c.digest: f"{labels[method]}: {described(s)}" for s, c in groups[-1]})
    found = run_trials(groups, shop, prune)
    store.tidy()
    made = {
        method: Tuned(method, labels[method], tuple(g)) for method, g in zip(labels, found, strict=True)
    }
    for method, result in made.items():
        try:
            _ = result.best
        except Error as error:
            raise Error(f"{method}: {error}") from error
    return made
