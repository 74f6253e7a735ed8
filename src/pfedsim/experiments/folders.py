"""A comparison's folder: one folder for every run, named by method and seed, and the tables and pictures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pfedsim.errors import Error
from pfedsim.experiments.cell import Cell
from pfedsim.methods import label
from pfedsim.runs.config import Config
from pfedsim.runs.durable import locked
from pfedsim.runs.reader import Run, is_run_folder, load_config, slug

if TYPE_CHECKING:
    from pfedsim.data.federation import Federation
    from pfedsim.runs.execution import Watch

BESIDE = ("table.md", "table.tex", "table.csv", "gains.csv", "figures", "report.html")
"""the other files and folders in a comparison's folder"""


def is_comparison(place: Path) -> bool:
    """Whether a folder contains only runs and other files written by `compare`, or is empty."""
    if not place.is_dir():
        return False
    names = list(place.iterdir())
    others = [p for p in names if p.name not in BESIDE]
    return all(p.is_dir() and is_run_folder(p) for p in others) and (bool(others) or not names)


def runs_in(place: Path) -> list[Path]:
    """The folders of the runs in a comparison's folder; empty for any other folder."""
    if not is_comparison(place) or is_run_folder(place):
        return []
    return sorted(p for p in place.iterdir() if p.name not in BESIDE)


class Folders:
    """The store of a comparison: finds and runs its cells."""

    def __init__(self, folder: Path, federation: Federation):
        self.folder, self.federation = folder, federation
        self._resolved: dict[str, Config] = {}  # by method: a seed changes nothing else

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{slug(label(cell.config.method_made()))}-seed{cell.config.seed}"

    def resolved(self, cell: Cell) -> Config:
        """The cell's configuration with all defaults filled in. Raises an error if its method cannot run."""
        from pfedsim.runs.setup import prepare

        config = cell.config
        if config.method not in self._resolved:
            session = prepare(config, self.federation)
            session.begin()
            self._resolved[config.method] = session.config
        return self._resolved[config.method].model_copy(update={"seed": config.seed})

    def find(self, cell: Cell) -> Run | None:
        """The cell's run, or None if it is not finished. Raises an error if the folder holds another run."""
        folder, wanted = self.path(cell), self.resolved(cell)
        if not (folder / "config.toml").is_file():
            return None if not folder.exists() or is_run_folder(folder) else Run(folder)
        before = load_config(folder)
        if before.digest() != wanted.digest():
            raise Error(_another(folder, before, wanted, cell.config.method))
        return Run(folder) if (folder / "summary.json").is_file() else None

    def execute(self, cell: Cell, watch: Watch | None) -> None:
        """Run the cell, or resume it if it was stopped."""
        from pfedsim.runs.execute import execute

        folder = self.path(cell)
        execute(cell.config, folder, self.federation, watch, resume=folder.exists())

    def remove(self, cell: Cell) -> None:
        """Delete the cell's run, unless another process uses it."""
        folder = self.path(cell)
        if folder.is_dir() and is_run_folder(folder):
            with locked(folder):
                shutil.rmtree(folder)


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
