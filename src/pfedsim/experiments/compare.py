"""Several methods on one federation, over several seeds; finished runs are reused, stopped ones go on."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.methods import label, parse
from pfedsim.runs.config import Config
from pfedsim.runs.execute import Watch, execute
from pfedsim.runs.reader import Run, is_run_folder, slug
from pfedsim.runs.setup import federate, prepare

ALONE = "Local-Only"
COMMON = "FedAvg"


@dataclass(frozen=True)
class Comparison:
    """Runs by method's label and seed, all on the same federation."""

    runs: dict[str, dict[int, Run]]
    seeds: tuple[int, ...]
    keep: Any = field(default=None, repr=False, compare=False)
    """a temporary folder lives as long as this"""

    @property
    def methods(self) -> list[str]:
        return list(self.runs)

    def figures(self, method: str, *path: str) -> np.ndarray:
        """One figure of the summary (`"served", "micro"`) for every seed; NaN where there is none."""
        values = []
        for seed in self.seeds:
            value: Any = self.runs[method][seed].summary
            for key in path:
                value = (value or {}).get(key)
            values.append(np.nan if value is None else value)
        return np.array(values, dtype=float)

    def client_gains(self, method: str, reference: str = ALONE) -> np.ndarray:
        """(seed, client) accuracy above the reference method's, same client, same seed, as served."""
        pairs = [(self.runs[method][s], self.runs[reference][s]) for s in self.seeds]
        return np.array([np.subtract(a.client_values(), b.client_values()) for a, b in pairs])


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    watch: Watch | None = None,
    federation: Federation | None = None,
) -> Comparison:
    """Runs every method with every seed into `out`, on `federation` or the one that the configuration asks
    for; Local-Only is always among them."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise Error(
            f"seeds {', '.join(map(str, seeds)) or 'missing'}: give different whole numbers from 0 on"
        )
    specs = list(methods)
    if not any(label(parse(spec, config.options)) == ALONE for spec in specs):
        specs.insert(0, "local")
    labels = {spec: label(parse(spec, config.options)) for spec in specs}
    named = [labels[spec] for spec in specs]
    twice = [spec for spec in specs if named.count(labels[spec]) > 1]
    if twice:
        raise Error(
            f"{' and '.join(twice)} have the same name in the table, {labels[twice[0]]}; give each once"
        )
    federation = federation or federate(config)
    keep = tempfile.TemporaryDirectory(prefix="pfedsim-") if out is None else None
    place = Path(keep.name) if keep else Path(str(out))
    for spec in specs:  # what is refused is refused before anything runs
        prepare(config.model_copy(update={"method": spec}), federation).begin()
    runs: dict[str, dict[int, Run]] = {}
    for spec in specs:
        for seed in seeds:
            one = config.model_copy(update={"method": spec, "seed": seed})
            folder = place / f"{slug(labels[spec])}-seed{seed}"
            run = _finished(folder, prepare(one, federation).config)
            runs.setdefault(labels[spec], {})[seed] = run or execute(
                one, folder, federation, watch, resume=folder.exists()
            )
    return Comparison(runs, tuple(seeds), keep)


def _finished(folder: Path, config: Config) -> Run | None:
    if not folder.exists() or (is_run_folder(folder) and not (folder / "summary.json").is_file()):
        return None
    run = Run(folder)
    if run.summary["config_digest"] != config.digest():
        raise Error(f"{folder} holds a run with other settings; choose another --out")
    return run
