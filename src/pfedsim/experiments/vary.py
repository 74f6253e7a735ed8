"""Which settings a sweep may vary, and a configuration with some of them changed. Needs no data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pfedsim.errors import Error, nearest
from pfedsim.experiments.cell import Cell
from pfedsim.experiments.space import drawn, grid, values_of
from pfedsim.runs import config as configs
from pfedsim.runs.config import OF_FEDERATION, OF_THE_PLACE, Config
from pfedsim.runs.unused import refuse_unused

HELD_BACK = 0.2  # share of the train parts that is held back where the settings do not say
RANDOM, OPTUNA = SAMPLERS = ("random", "optuna")
NOT_SWEPT = {
    **dict.fromkeys(("data", *OF_FEDERATION), "it decides which client holds which samples"),
    "validation": "it decides by which samples trials are judged",
    "seed": "a seed is repeated, not chosen",
    "score": "it decides when clients are scored",
    **dict.fromkeys((*OF_THE_PLACE, "digests"), "it decides no result"),
}


def validated(config: Config) -> Config:
    """The configuration with a validation part, which trials are judged by."""
    if config.validation:
        return config
    if "validation" in config.model_fields_set:
        raise Error(
            f"validation = {config.validation}: trials are judged on validation parts; leave it out for {HELD_BACK}, "
            "or set another share"
        )
    return config.model_copy(update={"validation": HELD_BACK})


def space_over(config: Config, over: Mapping[str, Any], trials: int | None, sampler: str) -> dict[str, Any]:
    """The space that `over` describes: setting -> values or a Range. Refuses what cannot be swept, and a value that
    is not allowed."""
    if sampler not in SAMPLERS:
        raise Error(f"there is no sampler {sampler!r}; {nearest(sampler, SAMPLERS)}")
    if trials is not None and trials < 1:
        raise Error(f"trials = {trials}: there should be at least one")
    if trials is None and sampler != RANDOM:
        raise Error(f"sampler = {sampler!r} has no effect on a grid: say how many trials it may draw")
    if not over:
        raise Error("a sweep needs the settings to vary, such as lr=0.003,0.01,0.03")
    space = {name: values_of(name, values) for name, values in over.items()}
    for name in space:
        if (why := NOT_SWEPT.get(name.partition(".")[0])) is not None:
            raise Error(f"over {name}: {why}, so validation cannot choose it; use --set or an option")
    combinations = drawn(space, trials, config.seed) if trials is not None else grid(space)
    for settings in combinations:
        changed(config, settings)
    return space


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with these settings, by dotted name."""
    words, nested = deepcopy(dict(Cell.of(config).words)), dict[str, Any]()
    for name, value in settings.items():
        configs.assign(words, name, value)
        configs.assign(nested, name, value)
    made = configs.check(words)
    refuse_unused(nested, made)
    method, table = made.method_made(), configs.table_of(made.method)
    for option, value in nested.get(table, {}).items():
        if getattr(method, option) != value:
            raise Error(f"over {table}.{option}: it has no effect on {made.method!r}, which sets it itself")
    return made
