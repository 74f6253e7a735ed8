"""Compare several methods on one federation over several seeds. Finished runs are reused, stopped ones resumed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.data.federation import Federation
from pfedsim.errors import Error, nearest
from pfedsim.experiments.cell import Cell
from pfedsim.experiments.folders import CHOSEN, TUNING, Folders, but_for_place
from pfedsim.experiments.runner import run as run_side_by_side
from pfedsim.experiments.store import Store
from pfedsim.experiments.tune import Tuned, Tuning, tuned
from pfedsim.methods import METHODS, label, parse
from pfedsim.runs.config import OF_THE_PLACE, Config
from pfedsim.runs.execution import Watch
from pfedsim.runs.reader import Run, slug
from pfedsim.runs.setup import federate

if TYPE_CHECKING:
    from pfedsim.experiments.runner import Work
    from pfedsim.report.statistics import Difference

ALONE = "Local-Only"
COMMON = "FedAvg"


@dataclass(frozen=True)
class Comparison:
    """Runs by method label and seed, all on the same federation. Every file is read once."""

    runs: dict[str, dict[int, Run]]
    seeds: tuple[int, ...]
    keep: Any = field(default=None, repr=False, compare=False)
    """keeps a temporary folder alive"""
    tuning: Tuning | None = None
    """how the methods were tuned; None: all have the settings as given"""
    _differences: dict[tuple[str, str, str], Difference] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def methods(self) -> list[str]:
        return list(self.runs)

    def figures(self, method: str, *path: str) -> np.ndarray:
        """One value of the summary (such as `"served", "micro"`) for every seed; NaN if it is missing."""
        values = []
        for seed in self.seeds:
            value: Any = self.runs[method][seed].summary
            for key in path:
                value = (value or {}).get(key)
            values.append(np.nan if value is None else value)
        return np.array(values, dtype=float)

    @cached_property
    def accuracies(self) -> dict[str, np.ndarray]:
        """Each method's accuracies as served, as arrays (seed, client)."""
        return {
            method: np.array([by_seed[seed].client_values() for seed in self.seeds])
            for method, by_seed in self.runs.items()
        }

    def client_gains(self, method: str, reference: str = ALONE) -> np.ndarray:
        """The method's accuracies minus those of the reference method, as served, as an array (seed, client)."""
        gains: np.ndarray = self.accuracies[method] - self.accuracies[reference]
        return gains

    @cached_property
    def _hits(self) -> dict[tuple[str, str], list[list[np.ndarray]]]:
        scored = {"served", *(["finetuned"] if self.epochs else [])}
        return {
            (method, model): [by_seed[seed].hits(model) for seed in self.seeds]
            for method, by_seed in self.runs.items()
            for model in scored
        }

    @property
    def epochs(self) -> int:
        """Local epochs before the second score; 0 if a run has no second score."""
        after = [run.summary["finetuned"] for by in self.runs.values() for run in by.values()]
        return min((int(score["epochs"]) if score else 0 for score in after), default=0)

    def difference(self, method: str, reference: str, model: str = "served") -> Difference:
        """The method's accuracy minus the reference's, with its interval. Swapping the methods gives the exact
        negative."""
        from pfedsim.report.statistics import paired_difference

        first, second = sorted((method, reference))
        if (first, second, model) not in self._differences:
            self._differences[first, second, model] = paired_difference(
                self._hits[first, model], self._hits[second, model]
            )
        found = self._differences[first, second, model]
        return found if first == method else found.negative()

    def table(self) -> list[dict[str, Any]]:
        """One row per method with the numbers of every column, in % or points, as for
        `pandas.DataFrame(c.table())`."""
        from pfedsim.report.comparison import rows

        return rows(self)

    def __str__(self) -> str:
        from pfedsim.report.comparison import text

        return text(self)

    def _repr_html_(self) -> str:
        from pfedsim.report.comparison import notebook

        return notebook(self)


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    watch: Watch | None = None,
    federation: Federation | None = None,
    rerun: Sequence[str] = (),
    allow_drift: bool = False,
    tune: int = 0,
) -> Comparison:
    """Run every method with every seed in `out`, on `federation` (default: that of the configuration). Local-Only
    is always included. `rerun`: methods whose earlier runs are deleted first; `allow_drift`: nodes of a cluster
    may differ from this machine; `tune`: choose every method's settings by so many trials on validation parts."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise Error(f"seeds {', '.join(map(str, seeds)) or 'missing'}: give different integers from 0")
    specs = with_local_only(config, methods)
    again = {specs[_named(name, specs)] for name in rerun}
    keep = tempfile.TemporaryDirectory(prefix="pfedsim-") if out is None else None
    folder, federation = Path(keep.name) if keep else Path(str(out)), federation or federate(config)
    chosen = _tuned(config, specs, tune, folder, federation, seeds, watch, allow_drift) if tune else {}
    place = {name: getattr(config, name) for name in OF_THE_PLACE if name in config.model_fields_set}
    cells = {
        (specs[spec], seed): Cell({**chosen[spec].cell(seed).words, **place})
        if tune
        else Cell.of(config.model_copy(update={"method": spec, "seed": seed}))
        for spec in specs
        for seed in seeds
    }
    titles = {but_for_place(cell): name for (name, _), cell in cells.items()} if tune else {}
    store = Folders(folder, federation, titles)
    for cell in cells.values():  # check everything before anything is deleted or run
        store.resolved(cell)
    for (name, _), cell in cells.items():
        if name in again:
            store.remove(cell)
    found = {key: store.find(cell) for key, cell in cells.items()}
    missing = [cells[key] for key, run in found.items() if run is None]
    if config.engine == "ray":
        _run_on_cluster(missing, store, config, watch, allow_drift)
    else:
        _run_missing(missing, store, config, watch)
    runs: dict[str, dict[int, Run]] = {}
    for (name, seed), cell in cells.items():
        runs.setdefault(name, {})[seed] = found[name, seed] or Run(store.path(cell), trust=True)
    return Comparison(runs, tuple(seeds), keep, Tuning.read(folder) if tune else None)


def _tuned(
    config: Config,
    specs: Mapping[str, str],
    trials: int,
    folder: Path,
    federation: Federation,
    seeds: Sequence[int],
    watch: Watch | None,
    allow_drift: bool,
) -> dict[str, Tuned]:
    """The methods with the settings chosen for them, which the folder keeps."""
    store = Store(folder / TUNING)
    found = tuned(config, list(specs), trials, store, federation, seeds, watch, allow_drift=allow_drift)
    Tuning.of(found).write(folder)
    return found


def with_local_only(config: Config, methods: Sequence[str]) -> dict[str, str]:
    """Each method's label. Local-Only is added as the first if it is not among them."""
    specs = list(methods)
    if ALONE not in [label(parse(spec, config.options)) for spec in specs]:
        specs.insert(0, "local")
    named = [label(parse(spec, config.options)) for spec in specs]
    twice = [spec for spec, name in zip(specs, named, strict=True) if named.count(name) > 1]
    if twice:
        name = label(parse(twice[0], config.options))
        raise Error(
            f"{' and '.join(twice)} have the same name in the table, {name}; give each once, or one of them "
            "another `title`"
        )
    return dict(zip(specs, named, strict=True))


def _named(name: str, specs: dict[str, str]) -> str:
    """The method named in `--rerun`, by its spec or its label."""
    for spec, title in specs.items():
        if name.lower() in (spec.lower(), title.lower()):
            return spec
    raise Error(f"--rerun {name}: it is not one of the compared methods; {nearest(name, specs)}")


def _run_missing(cells: Sequence[Cell], store: Folders, config: Config, watch: Watch | None) -> None:
    """Run as many cells in parallel as there are cores; spare cores are shared among them."""
    tell = watch or (lambda _: None)
    cores = config.workers or len(os.sched_getaffinity(0))
    jobs = min(cores, len(cells)) if config.device == "cpu" else 1
    if jobs <= 1:
        for cell in cells:
            store.execute(cell, watch)
        return
    shared = [Cell({**cell.words, "workers": cores // jobs}) for cell in cells]
    progress = run_side_by_side(shared, store.execute, jobs, lambda _, done: tell(done))
    with closing(progress) as ended:
        for _, failure in ended:
            if failure is not None:
                raise failure


def _run_on_cluster(
    cells: Sequence[Cell], store: Folders, config: Config, watch: Watch | None, allow_drift: bool
) -> None:
    """Run the cells on a Ray cluster, one per core."""
    from pfedsim.experiments.cluster import ALONE as ONE_CORE
    from pfedsim.experiments.cluster import run_on_cluster

    tell = watch or (lambda _: None)
    alone = [Cell({**cell.words, **ONE_CORE}) for cell in cells]
    progress = run_on_cluster(
        alone,
        partial(_work_in, store.folder.resolve()),
        lambda _, done: tell(done),
        store.federation,
        address=config.address,
        jobs=config.workers,
        allow_drift=allow_drift,
    )
    with closing(progress) as ended:
        for cell, failure in ended:
            if failure is not None:
                raise failure
            if not (store.path(cell) / "summary.json").is_file():
                raise Error(
                    f"{store.path(cell)} was written on another machine and is not here: choose a folder on a "
                    "path that all nodes share"
                )


def _work_in(folder: Path, federation: Federation | None) -> Work:
    """What a node does with the cells of the comparison in this folder."""
    assert federation is not None
    return Folders(folder, federation).execute


def load(folder: Path) -> Comparison:
    """Load the comparison in a folder written by `compare`, with the seeds that all methods have."""
    finished = [Run(p) for p in sorted(folder.iterdir()) if (p / "summary.json").is_file()]
    tuning = Tuning.read(folder) if (folder / CHOSEN).is_file() else None
    titles = {slug(title): title for title in tuning.methods} if tuning else {}
    by_method: dict[str, dict[int, Run]] = {}
    for run in sorted(finished, key=_order):
        seed = run.summary["seed"]
        title = titles.get(run.path.name.removesuffix(f"-seed{seed}"), run.summary["method"])
        by_method.setdefault(title, {})[seed] = run
    seeds = sorted(set.intersection(*map(set, by_method.values()))) if by_method else []
    if ALONE not in by_method or not seeds:
        raise Error(f"{folder} is not finished: no seed of {ALONE} and of all other methods is complete")
    runs = {m: {s: by[s] for s in seeds} for m, by in by_method.items()}
    return Comparison(runs, tuple(seeds), tuning=tuning)


def _order(run: Run) -> tuple[int, str]:
    """Sort key: methods as `pfedsim methods` lists them, then the user's own."""
    names = list(METHODS)
    method = run.config.method.partition(":")[0]
    return (names.index(method) if method in names else len(names), run.summary["method"])
