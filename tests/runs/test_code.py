"""The code of a run: what belongs to it, and that a changed line is named before a run goes on with it."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from stopping import FEDERATION, go_on, stop_after, whole

import pfedsim
from pfedsim.errors import Error
from pfedsim.plugin import code_of, load_class, source_digest
from pfedsim.runs import manifest
from pfedsim.runs.config import check
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import prepare

METHOD = """
import importlib
import json
import torch
from dataclasses import dataclass
from pfedsim import Method
import kit.tools
from kit import numbers
called = importlib.import_module("called_helper")

@dataclass(frozen=True)
class Mine(Method):
    def phases(self, job):
        import late_helper
        return super().phases(job)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A method in a file, with a package and a module of its author's that it imports."""
    place = tmp_path / "mine"
    (place / "kit").mkdir(parents=True)
    (place / "my_method.py").write_text(METHOD)
    (place / "kit" / "__init__.py").write_text("")
    (place / "kit" / "tools.py").write_text("from . import deep\nfrom .numbers import LR\n")
    (place / "kit" / "numbers.py").write_text("LR = 0.1\n")
    (place / "kit" / "deep.py").write_text("import json\n")
    (place / "late_helper.py").write_text("WEIGHT = 1.0\n")
    (place / "called_helper.py").write_text("__import__('named_helper')\n")
    (place / "named_helper.py").write_text("")
    (place / "not_used.py").write_text("")
    monkeypatch.syspath_prepend(str(place))
    for name in [
        n
        for n in sys.modules
        if n.partition(".")[0] in ("kit", "late_helper", "called_helper", "named_helper", "bare")
    ]:
        monkeypatch.delitem(sys.modules, name)  # another test's
    return place / "my_method.py"


def test_a_package_without_init_counts_before_and_after_it_is_imported(mine: Path) -> None:
    bare = mine.parent / "bare"
    bare.mkdir()
    (bare / "inner.py").write_text("K = 1\n")
    mine.write_text(mine.read_text().replace("import late_helper", "from bare.inner import K"))
    kind = load_class(f"{mine}:Mine", "method")
    before = source_digest(kind)
    assert code_of(kind)["bare.inner"] == bare / "inner.py"
    assert source_digest(f"{mine}:Mine") == before
    importlib.import_module("bare.inner")
    assert source_digest(kind) == before
    (bare / "inner.py").write_text("K = 2\n")
    assert source_digest(kind) != before


def test_the_code_of_a_class_is_its_file_and_what_its_author_wrote_for_it(mine: Path) -> None:
    found = code_of(load_class(f"{mine}:Mine", "method"))
    assert {name: path.name for name, path in found.items()} == {
        "my_method": "my_method.py",
        "kit": "__init__.py",
        "kit.tools": "tools.py",
        "kit.numbers": "numbers.py",
        "kit.deep": "deep.py",
        "late_helper": "late_helper.py",
        "called_helper": "called_helper.py",
        "named_helper": "named_helper.py",
    }
    assert code_of(pfedsim.Method) == {}
    before = source_digest(load_class(f"{mine}:Mine", "method"))
    (mine.parent / "kit" / "deep.py").write_text("import json  # the same\n")
    assert source_digest(load_class(f"{mine}:Mine", "method")) != before


@pytest.mark.parametrize("changed", ["late_helper", "called_helper", "kit.numbers", "my_method"])
def test_a_run_does_not_go_on_with_a_changed_module(mine: Path, tmp_path: Path, changed: str) -> None:
    stop_after(tmp_path / "run", 3, method=f"{mine}:Mine")
    expected = whole(tmp_path / "whole", method=f"{mine}:Mine")
    shutil.copytree(tmp_path / "run", tmp_path / "same")
    assert go_on(tmp_path / "same")[0].summary == expected.summary
    file = mine.parent / f"{changed.replace('.', '/')}.py"
    file.write_text(file.read_text() + "# another line\n")
    with pytest.raises(Error, match=rf"other code.*code\.method\.{changed}: \w+ -> \w+\).*--allow-drift"):
        go_on(tmp_path / "run")
    run, _ = go_on(tmp_path / "run", allow_drift=True)
    assert [mark.partition(":")[0] for mark in run.summary["drift"]] == [f"code.method.{changed}"]
    assert f"code.method.{changed}" in (run.path / "events.jsonl").read_text()
    assert run.config.digests == expected.config.digests  # its configuration is the one that it began with


def test_other_code_is_refused_where_a_configuration_names_its_digest(mine: Path, tmp_path: Path) -> None:
    run = whole(tmp_path / "run", method=f"{mine}:Mine")
    (mine.parent / "late_helper.py").write_text("WEIGHT = 2.0\n")
    with pytest.raises(Error, match=r"digests\.method: the source of this method has changed"):
        prepare(check(run.config.plain()), FEDERATION)


def test_a_run_does_not_go_on_with_changed_code_of_pfedsim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(tmp_path / "run", 3)
    root = Path(pfedsim.__file__).parent
    for room in manifest.ROOMS:
        shutil.copytree(
            root / room, tmp_path / "pfedsim" / room, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(pfedsim, "__file__", str(tmp_path / "pfedsim" / "__init__.py"))
    for file in root.glob("*.py"):
        shutil.copy(file, tmp_path / "pfedsim")
    for name in ("core/rows.py", "arrays.py"):
        file = tmp_path / "pfedsim" / name
        file.write_text(file.read_text() + "# another line\n")
    two = r"code\.pfedsim\.core: \w+ -> \w+; code\.pfedsim\.top: \w+ -> \w+"
    with pytest.raises(Error, match=rf"other code.*\({two}\)"):
        go_on(tmp_path / "run")
    run, _ = go_on(tmp_path / "run", allow_drift=True)
    drift = [mark.partition(":")[0] for mark in run.summary["drift"]]
    assert drift == ["code.pfedsim.core", "code.pfedsim.top"]


NETWORK = """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))
from torch import nn
import scale_of_net

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.classifier = nn.Linear(shape[0], classes)

    def forward(self, x):
        return scale_of_net.SCALE * self.classifier(x)
"""


def test_a_network_that_extends_the_search_path_can_be_rebuilt_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    scale, net = tmp_path / "lib" / "scale_of_net.py", tmp_path / "net.py"
    scale.write_text("SCALE = 1.0\n")
    net.write_text(NETWORK)
    monkeypatch.setattr(sys, "path", before := list(sys.path))
    run = whole(tmp_path / "run", model=f"{net}:Net", rounds=1).path

    def forget() -> None:
        monkeypatch.setattr(sys, "path", list(before))
        sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path / "lib")]
        for name in [n for n in sys.modules if n == "scale_of_net" or n.startswith("pfedsim_user_net")]:
            del sys.modules[name]

    forget()
    assert Run(run, trust=True).client(0).module is not None
    scale.write_text("SCALE = 2.0\n")
    forget()
    with pytest.raises(Error, match=r"net\.py:Net has changed since .* was run"):
        Run(run, trust=True).client(0)
