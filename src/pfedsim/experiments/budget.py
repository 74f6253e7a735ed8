"""Tune one method: every trial is a short run that is scored on validation parts alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.experiments.cell import Cell
from pfedsim.methods import parse
from pfedsim.runs import config as configs
from pfedsim.runs import names
from pfedsim.runs.config import table_of

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation
    from pfedsim.runs.execution import Progress

LEARNING_RATES = (0.003, 0.01, 0.03, 0.1)


def space(method: str) -> dict[str, list[Any]]:
    """What is tried: the learning rate for every method, and what the method itself names."""
    made, table = parse(method), table_of(method)
    return {"lr": [*LEARNING_RATES], **{f"{table}.{k}": list(v) for k, v in made.search.items()}}


def trials(space: Mapping[str, Sequence[Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """`count` points of the grid, or all if there are fewer."""
    grid = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    order = np.random.RandomState(seed).permutation(len(grid))
    return [grid[k] for k in sorted(order[:count])]


def tuned(
    cell: Cell, folder: Path, federation: Federation, watch: Callable[[Progress], None]
) -> dict[str, Any]:
    """Run the trials of a tuning cell in folders inside `folder`, or continue them; what was tried and chosen."""
    from pfedsim.runs.execute import execute

    extra, found = dict(cell.extra), []
    for k, settings in enumerate(trials(extra["space"], extra["trials"], int(cell.words["seed"]))):
        words = {key: dict(v) if isinstance(v, dict) else v for key, v in cell.words.items()}
        for key, value in settings.items():
            configs.assign(words, key, value)
        config = configs.check(words).model_copy(update={"workers": 1, "state": False})
        place = folder / f"trial-{k}"
        run = execute(config, place, federation, watch, resume=place.exists())
        score = run.scored("validation")[run.round]["micro"]
        found.append({"settings": settings, "accuracy": round(score, 5)})
    best = max(found, key=lambda trial: trial["accuracy"])
    for k in range(len(found)):
        names.remove(folder / f"trial-{k}")
    return {"trials": found, "chosen": best["settings"], "accuracy": best["accuracy"]}
