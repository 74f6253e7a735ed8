"""What the pictures of runs show."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from small import table

import pfedsim
from pfedsim.core.rows import Pairs
from pfedsim.report import figures, pictures
from pfedsim.report.tables import run_table
from pfedsim.runs.reader import Run


def done(method: str, **settings: object) -> Run:
    return pfedsim.train(table(), method, model="small:Net", epochs=1, join=1.0, workers=1, **settings)


@pytest.fixture(scope="module")
def warmed() -> Run:
    return done("pfedsim", rounds=7, **{"pfedsim.rho": 0.5})


def test_settings_in_the_working_directory_do_not_count(tmp_path: Path) -> None:
    """`text.usetex` would run LaTeX with a preamble from a folder that may be anybody's."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nbackend: module://evil\n")
    (tmp_path / "evil.py").write_text("print('evil')\n")
    code = (
        "from pfedsim.report import figures; from matplotlib import get_backend, rcParams; "
        "print(rcParams['text.usetex'], get_backend().lower())"
    )
    command = [sys.executable, "-P", "-c", code]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "agg"]


def axes_of(monkeypatch: pytest.MonkeyPatch, **runs: Run) -> Axes:
    kept: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figure.canvas.draw()
        kept.append(figure)
        return path

    monkeypatch.setattr(figures, "saved", keep)
    figures.curves({name: [run] for name, run in runs.items()}, Path("curves.png"))
    (axes,) = kept[0].axes
    return axes


def test_ticks_are_whole_rounds(monkeypatch: pytest.MonkeyPatch, warmed: Run) -> None:
    ticks = [float(tick) for tick in axes_of(monkeypatch, pFedSim=warmed).get_xticks()]
    assert len(ticks) > 2
    assert all(tick.is_integer() for tick in ticks)


def marks(axes: Axes) -> dict[str, float]:
    """The upright lines, by what the legend says of them."""
    found = [line for line in axes.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    return {str(line.get_label()).replace("\n", " "): float(line.get_xdata()[0]) for line in found}  # type: ignore[index, arg-type]


def test_the_end_of_a_warm_up_is_marked(monkeypatch: pytest.MonkeyPatch, warmed: Run) -> None:
    axes = axes_of(monkeypatch, pFedSim=warmed, FedAvg=done("fedavg", rounds=7))
    assert marks(axes) == {"warm-up ends after round 3: pFedSim": 3.0}  # floor(0.5 * 7)


def test_a_run_of_one_stage_has_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    only = done("pfedsim", rounds=3, **{"pfedsim.rho": 0})
    assert not marks(axes_of(monkeypatch, FedAvg=done("fedavg", rounds=3), pFedSim=only))


def test_the_names_of_runs_are_whole_in_a_narrow_terminal(warmed: Run, tmp_path: Path) -> None:
    runs = []
    for seed in (42, 43):
        folder = tmp_path / f"a-rather-long-name-of-a-method-seed{seed}"
        shutil.copytree(warmed.path, folder)
        runs.append(Run(folder))
    console = Console(file=io.StringIO(), width=60)
    console.print(run_table(runs))
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "…" not in printed
    assert [printed.count(f"{seed}") for seed in (42, 43)] == [1, 1]


def test_the_first_and_last_round_are_ticks(monkeypatch: pytest.MonkeyPatch, warmed: Run) -> None:
    axes = axes_of(monkeypatch, pFedSim=warmed)
    rounds = [m["round"] for m in warmed.metrics() if m.get("model") == "served"]
    ticks = list(axes.get_xticks())
    assert (ticks[0], ticks[-1]) == (min(rounds), max(rounds))
    assert axes.get_title(loc="left") == "Accuracy after each round, as served"


def test_a_client_that_never_took_part_has_a_grey_row(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Figure] = []
    monkeypatch.setattr(figures, "saved", lambda figure, path: kept.append(figure) or path)
    pairs = Pairs({0: {2: 0.5}, 2: {0: 0.5, 3: 0.7}})
    figures.similarity(pairs, 5, Path("similarity.png"), "")
    (image,) = kept[0].axes[0].images
    shown = np.ma.filled(image.get_array(), np.nan)
    assert shown.shape == (5, 5)
    assert np.isnan(shown[1]).all()
    assert (shown[2, 0], shown[2, 3]) == (0.5, 0.7)


def test_equal_similarities_are_not_drawn() -> None:
    uniform = done("pfedsim:uniform", rounds=4)
    assert uniform.similarity() is not None
    assert pictures.similarities({"uniform": uniform}) == []
