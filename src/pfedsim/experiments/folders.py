"""A comparison's folder: one folder for every run, named by method and seed, and the tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pfedsim import durable
from pfedsim.durable import locked
from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell
from pfedsim.experiments.store import delete_runs, is_of_store
from pfedsim.methods import label
from pfedsim.runs import names
from pfedsim.runs.config import OF_THE_PLACE, Config
from pfedsim.runs.reader import Run, is_run_folder, load_config, slug

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation
    from pfedsim.runs.execution import Watch

TUNING, CHOSEN = (
    "tuning",
    "tuning.json",
)  # the store of the trials by which methods were tuned; what was chosen
BESIDE = ("table.md", "table.tex", "table.csv", "gains.csv", "figures", "report.html", TUNING, CHOSEN)
"""the other files and folders in a comparison's folder"""


def is_comparison(place: Path) -> bool:
    """Whether a folder contains only runs and other files written by `compare`, or is empty."""
    if not place.is_dir():
        return False
    found = list(place.iterdir())
    others = [p for p in found if durable.final_name(p.name) not in BESIDE]
    return all(p.is_dir() and is_run_folder(p) for p in others) and (
        bool(others) or not found or (place / TUNING).is_dir()
    )


def runs_in(place: Path) -> list[Path]:
    """The folders of the runs in a comparison's folder; empty for any other folder."""
    if not is_comparison(place) or is_run_folder(place):
        return []
    return sorted(p for p in place.iterdir() if durable.final_name(p.name) not in BESIDE)


def delete(place: Path) -> None:
    """Delete a run or a comparison. Refuses one that is in use, and one with files that pfedsim did not write."""
    runs = [place] if is_run_folder(place) else runs_in(place)
    names.refuse_others(place, names.is_ours if runs == [place] else _is_ours)
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(locked(run))
        delete_runs(place / TUNING)
        for run in runs:
            names.remove(run)
        if place.is_dir():
            durable.remove(place, _is_beside)


def _is_beside(name: str) -> bool:
    """Whether `compare` writes a file or folder of this name, relative to its own folder, beside the runs."""
    first, _, rest = name.partition("/")
    if first == TUNING:
        return is_of_store(rest)
    return durable.final_name(first) in BESIDE and (not rest or names.is_ours(name))


def _is_ours(name: str) -> bool:
    """Whether a file or folder of this name, relative to a comparison's folder, is beside the runs or in one."""
    rest = name.partition("/")[2]
    return _is_beside(name) or not rest or names.is_ours(rest)


class Folders:
    """The store of a comparison: finds and runs its cells."""

    def __init__(self, folder: Path, federation: Federation, titles: Mapping[str, str] | None = None):
        """`titles`: what methods with tuned options are called, by `but_for_place(cell)`."""
        self.folder, self.federation, self._titles = folder, federation, titles or {}
        self._resolved: dict[str, Config] = {}  # a seed changes nothing else

    def path(self, cell: Cell) -> Path:
        title = self._titles.get(but_for_place(cell)) or label(cell.config.method_made())
        return self.folder / f"{slug(title)}-seed{cell.config.seed}"

    def resolved(self, cell: Cell) -> Config:
        """The cell's configuration with all defaults filled in. Raises an error if its method cannot run."""
        from pfedsim.runs.setup import prepare

        config, key = cell.config, but_for_place(cell)
        if key not in self._resolved:
            session = prepare(config, self.federation)
            session.begin()
            self._resolved[key] = session.config
        return self._resolved[key].model_copy(update={"seed": config.seed})

    def find(self, cell: Cell) -> Run | None:
        """The cell's run, or None if it is not finished. Raises an error if the folder holds another run."""
        folder, wanted = self.path(cell), self.resolved(cell)
        if not (folder / "config.toml").is_file():
            return None if not folder.exists() or is_run_folder(folder) else Run(folder)
        before = load_config(folder)
        if before.digest() != wanted.digest():
            raise Error(_another(folder, before, wanted, cell.config.method))
        finished = (folder / "summary.json").is_file() and not (folder / names.CHECKPOINT).exists()
        return (
            Run(folder, trust=True) if finished else None
        )  # preparing the cell has run its network's code

    def execute(self, cell: Cell, watch: Watch | None) -> None:
        """Run the cell, or resume it if it was stopped."""
        from pfedsim.runs.execute import execute

        folder = self.path(cell)
        execute(cell.config, folder, self.federation, watch, resume=folder.exists())

    def remove(self, cell: Cell) -> None:
        """Delete the cell's run, unless another process uses it."""
        folder = self.path(cell)
        if folder.is_dir() and is_run_folder(folder):
            delete(folder)


def but_for_place(cell: Cell) -> str:
    """What runs of a cell with any seed, anywhere, have in common."""
    return Cell({k: v for k, v in cell.words.items() if k not in (*OF_THE_PLACE, "seed")}).digest


def _another(folder: Path, before: Config, wanted: Config, method: str) -> str:
    """Explain why the run in a folder is not the wanted one."""
    from pfedsim.runs.manifest import flat

    old, new = ({**dict(flat(c.plain())), "data": Path(c.data).name} for c in (before, wanted))
    differ = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if differ == ["digests.method"]:
        return (
            f"the code of {method} has changed since {folder} was run; --rerun {method} (in Python "
            f"rerun=[{method!r}]) runs this method again, another folder keeps both"
        )
    if differ == ["digests.model"]:
        return f"the code of the network has changed since {folder} was run; choose another folder"
    what = f" ({differ[0]} is {old.get(differ[0])}, not {new.get(differ[0])})" if differ else ""
    return f"{folder} holds a run with other settings{what}; choose another folder"
