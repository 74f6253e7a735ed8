"""Which command runs code that a folder names: the table in SECURITY.md, row by row, on a folder whose files leave a
mark when they are imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small

from pfedsim import models, seal
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import Progress

ROOT = Path(__file__).parents[1]
MARK = 'import os, pathlib\npathlib.Path(os.environ["MARKS"], {name!r}).touch()\n'
METHOD = """
from dataclasses import dataclass
from pfedsim import Method
@dataclass(frozen=True)
class Mine(Method):
    title = "Mine"
"""
NETWORK = """
from torch import nn
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.classifier = nn.Linear(shape[0], classes)
    def forward(self, x):
        return self.classifier(x)
"""
SHADOWS = ("matplotlib", "onnxruntime", "pandas", "pfedsim_paper", "PIL", "scipy", "sklearn", "tensorboard")
DRIVER = """
import json, os, pathlib, sys
from typer.testing import CliRunner
from pfedsim.cli.app import app
marks = pathlib.Path(os.environ["MARKS"])
for command, cwd in json.loads(sys.argv[1]):
    for name in [n for n in sys.modules if n.startswith("pfedsim_user_")]:
        del sys.modules[name]
    os.chdir(cwd)
    done = CliRunner().invoke(app, command)
    found = sorted(p.name for p in marks.iterdir())
    for mark in marks.iterdir():
        mark.unlink()
    print(json.dumps([found, done.exit_code, repr(done.exception), done.output]))
"""


class Stop(BaseException):
    pass


def rows() -> dict[str, set[str]]:
    """The commands in SECURITY.md, and the code that each runs."""
    text = (ROOT / "SECURITY.md").read_text()
    table = re.findall(r"^\| `pfedsim ([^`]+)` \| ([a-z, ]+) \|", text, re.MULTILINE)
    return {command: set(what.split(", ")) - {"nothing"} for command, what in table}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN, a finished run, STOPPED, a stopped one, and OUT, an export, as somebody could send them: their code, and
    modules with the names of libraries, lie beside their files."""
    place = tmp_path_factory.mktemp("foreign")
    home = place / "home"
    for folder in (home, place / "marks"):
        folder.mkdir()
    (home / "method.py").write_text(MARK.format(name="method") + METHOD)
    (home / "network.py").write_text(MARK.format(name="network") + NETWORK)
    data = small.table().data
    np.savez(place / "samples.npz", x=data.x, y=data.y, client=np.arange(len(data.y)) % 3)
    words = {"method": "method.py:Mine", "model": "network.py:Net", "data": str(place / "samples.npz")}
    settings = {**words, "rounds": 3, "epochs": 1, "workers": 1, "score": {"finetune": 0}}

    def stop(done: Progress) -> None:
        if done.round == 2:
            raise Stop

    before = Path.cwd(), os.environ.get("MARKS")
    os.chdir(home)
    os.environ["MARKS"] = str(place / "marks")
    try:
        run = execute(check(settings), place / "RUN")
        with pytest.raises(Stop):
            execute(check(settings), place / "STOPPED", None, stop)
        from pfedsim.export.write import export

        export(run, 0, place / "OUT")
    finally:
        os.chdir(before[0])
    for folder in ("RUN", "STOPPED"):
        for file in home.glob("*.py"):
            shutil.copy(file, place / folder)
        for name in SHADOWS:
            (place / folder / f"{name}.py").write_text(MARK.format(name="a library's name"))
    for mark in (place / "marks").iterdir():
        mark.unlink()
    return place


def answers(place: Path, commands: list[str]) -> dict[str, tuple[set[str], int, str]]:
    """The code that each command ran, its exit code and what it said."""
    asked = []
    for number, command in enumerate(commands):
        folder = "STOPPED" if "STOPPED" in command else "RUN"
        named = {"RUN": ".", "STOPPED": ".", "OUT": "../OUT", "NEW": f"../new-{number}"}
        named["SAMPLES"] = "../samples.npz"
        filled = re.sub(r"\b(RUN|STOPPED|OUT|NEW|SAMPLES)\b", lambda m, n=named: n[m[0]], command)  # type: ignore[misc]
        asked.append((filled.split(), str(place / folder)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MARKS": str(place / "marks"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    found = {}
    for command, line in zip(commands, done.stdout.splitlines(), strict=True):
        ran, code, exception, output = json.loads(line)
        found[command] = set(ran), code, f"{exception} {output}"
    return found


def test_every_command_runs_what_the_table_says_and_nothing_else(folders: Path, tmp_path: Path) -> None:
    table = rows()
    assert len(table) > 12
    found = answers(Path(shutil.copytree(folders, tmp_path / "copy")), list(table))
    assert {command: ran for command, (ran, _, _) in found.items()} == table, found
    refused = [command for command, (_, code, _) in found.items() if code]
    assert refused == [
        "export RUN NEW --client 0",
        "predict OUT SAMPLES",
    ]  # they say that they need --trust
    for command in refused:
        assert "trust" in found[command][2]
    assert f"inside {'.'}" in found["resume STOPPED"][2]
    assert "running the code of network.py:Net" in found["export RUN NEW --client 0 --trust"][2]


def test_a_manifest_does_not_choose_a_tracker(folders: Path, tmp_path: Path) -> None:
    """Nor any other setting: only the folder of the data, the device and whether to keep the state."""
    copy = Path(shutil.copytree(folders / "STOPPED", tmp_path / "STOPPED"))
    (tmp_path / "marks").mkdir()
    place = {"track": f"tensorboard:{tmp_path / 'elsewhere'}", "method": "other.py:Other", "state": False}
    for path in [copy / "manifest.json", *(copy / "checkpoint").glob("*.json")]:
        content = seal.load(path, "a manifest")
        path.write_text(seal.sealed({**content, "place": place}))
    (ran, code, said) = answers(tmp_path, ["resume STOPPED"])["resume STOPPED"]
    assert (code, ran) == (0, {"method", "network"}), said
    assert not (tmp_path / "elsewhere").exists()
    assert not (copy / "final" / "state.json").exists()
    config = copy / "config.toml"
    config.write_text(f'track = "tensorboard:{tmp_path}"\n' + config.read_text())
    (ran, code, said) = answers(tmp_path, ["resume STOPPED"])["resume STOPPED"]
    assert (code, ran) == (1, set())
    assert "sets track, which no run records there" in said


def test_a_network_of_ours_does_not_search_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whatever is imported later could come from a file there."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    models.build("mlp", (6,), 3)
    assert sys.path == before
