"""Who may import whom (docs/design.md), what must answer without torch, and what src never does. Read from
the source itself."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pfedsim
from pfedsim.methods import METHODS

ROOT = Path(pfedsim.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LEAVES = {"errors", "plugin", "lazy", "seal", "durable", "memory", "arrays", "escape"}
FOUNDATION = {
    *LEAVES,
    "core.seeds",
    "core.settings",
    "core.layout",
    "core.rows",
    "core.robust",
    "core.optimisers",
}
LINE = {*FOUNDATION, "core.method", "core.wire"}
CORE = {
    *LINE,
    *(
        f"core.{name}"
        for name in ("purity", "hooks", "job", "engine", "client", "guard", "server", "scoring", "tasks")
    ),
}
EDGES = (
    "cli",
    "report",
    "api",
    "runs",
    "experiments",
    "export",
    "sites",
    "track",
)  # what is built on the core
ALLOWED = {  # room -> which of our rooms it may import
    "errors": set(),
    "plugin": {"errors"},
    "seal": {"errors"},
    "lazy": set(),
    "durable": {"errors"},
    "memory": {"errors"},
    "arrays": {"errors", "memory"},
    "escape": set(),
    **dict.fromkeys(FOUNDATION - LEAVES, FOUNDATION),
    "core.rows": {*FOUNDATION, "backends"},  # its sums run in native code where there is any
    "core.method": FOUNDATION,
    "core.wire": {"core.method", "backends"},  # its norms run in native code where there is any
    "core.augment": {"errors", "core.settings"},
    "core.job": {*LINE, "core.augment"},
    "core.purity": {"errors", "core.rows"},
    "core.engine": {"errors", "core.job", "core.method"},
    "core.hooks": {"errors", "core.method", "core.purity"},
    "core.client": {*LINE, "core.job", "core.purity", "core.hooks"},
    "core.guard": {"core.job", "core.method", "core.rows", "core.wire"},
    "core.server": CORE - {"core.server", "core.scoring", "core.tasks"},
    "core.scoring": CORE - {"core.scoring", "core.tasks"},
    "core.tasks": {
        "errors",
        "core.job",
        "core.method",
        "core.engine",
        "core.client",
        "core.scoring",
        "core.wire",
    },
    "core": {"lazy"},
    "methods": {*FOUNDATION, "core.method", "methods"},
    "data": {*LEAVES, "data"},
    "models": {*LEAVES, "models", "core.layout"},
    "backends": {"errors", "lazy", "core.layout", "backends"},
    "engines": {*CORE, "engines"},
    "dev": {*CORE, "dev", "methods", "models", "backends", "data", "runs"},
}
ROOMS = (
    "backends",
    "cli",
    "core",
    "data",
    "experiments",
    "methods",
    "models",
    "report",
    "runs",
)  # with public names
FOREIGN = {
    "matplotlib",
    "rich",
    "typer",
    "ray",
    "mlflow",
    "wandb",
    "tensorboard",
    "click",
    "fastapi",
    "flwr",
    "nvflare",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Full names of all that a file imports when it runs: TYPE_CHECKING blocks are left out, imports in
    functions are not."""

    class Finder(ast.NodeVisitor):
        found: set[str]

        def visit_If(self, node: ast.If) -> None:
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                self.generic_visit(node)

        def visit_Import(self, node: ast.Import) -> None:
            self.found |= {alias.name for alias in node.names}

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            assert node.level == 0, f"{path}: relative import"
            self.found |= {f"{node.module}.{alias.name}" for alias in node.names}

    finder = Finder()
    finder.found = set()
    finder.visit(ast.parse(path.read_text()))
    return finder.found


def room(name: str) -> str | None:
    """`data` for pfedsim.data.partition.load, `core.rows` for pfedsim.core.rows.Rows, None for what is not ours."""
    package, _, rest = name.partition(".")
    parts = rest.split(".")
    return None if package != "pfedsim" else ".".join(parts[:2]) if parts[0] == "core" else parts[0]


RULED = [p for p in FILES if (top := module_of(p).partition(".")[0]) and top not in (*EDGES, "__main__")]


@pytest.mark.parametrize("path", RULED, ids=module_of)
def test_the_core_keeps_the_dependency_rule(path: Path) -> None:
    here = room(f"pfedsim.{module_of(path)}")
    assert here in ALLOWED, f"{here} is new: say here what it may import"
    rooms = {r for name in imports(path) if (r := room(name))}
    assert rooms <= ALLOWED[here], f"{here} may not import {sorted(rooms - ALLOWED[here])}"


@pytest.mark.parametrize("path", RULED, ids=module_of)
def test_the_core_imports_no_engine_tracker_plotting_or_deployment_library(path: Path) -> None:
    theirs = {"engines.actors": {"ray"}}.get(module_of(path), set())  # each in one file only
    assert not {name.partition(".")[0] for name in imports(path)} & (FOREIGN - theirs)


def test_only_its_own_files_import_the_engine_between_sites() -> None:
    theirs = {f"sites.{name}" for name in ("hub", "executor", "kits", "admin", "checks")}
    known = {module_of(p) for p in FILES if any(name.startswith("nvflare") for name in imports(p))}
    assert known <= theirs


def test_nothing_knows_the_command_line() -> None:
    for path in FILES:
        if not module_of(path).startswith("cli") and path.stem != "__main__":
            assert "cli" not in {room(name) for name in imports(path)}, path


@pytest.mark.parametrize(
    "name",
    [
        "pfedsim",
        "pfedsim.methods",
        "pfedsim.runs.config",
        "pfedsim.core.method",
        *(f"pfedsim.{r}" for r in ROOMS),
    ],
)
def test_what_answers_without_torch(name: str) -> None:
    code = f"import sys, {name}; print(sorted(m for m in ('torch', 'sklearn', 'matplotlib') if m in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_wrong_setting_is_refused_without_torch() -> None:
    code = """
import sys
from pfedsim import Error
from pfedsim.runs.config import check
for words in ({"lerning_rate": 1}, {"alpha": -1}, {"rounds": 0}, {"method": "nosuch"}, {"model": "nosuch"},
              {"partition": "nosuch"}, {"pfedsim": {"rho": 2}}):
    try:
        check(words)
    except Error as error:
        assert "\\n" not in str(error)
    else:
        raise AssertionError(words)
from pfedsim.data import check_name
try:
    check_name("nosuch")
except Error as error:
    assert "there is no data set" in str(error)
else:
    raise AssertionError("nosuch")
check({"method": "pfedsim:reference(rho=0.3)"})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["pfedsim", *(f"pfedsim.{room}" for room in ROOMS)])
def test_all_public_names_exist(name: str) -> None:
    room = importlib.import_module(name)
    for public in room.__all__:
        assert getattr(room, public) is not None
    with pytest.raises(AttributeError, match="nosuch"):
        _ = room.nosuch


@pytest.mark.parametrize("room", ROOMS)
def test_a_public_name_is_not_hidden_by_a_module(room: str) -> None:
    """`from pfedsim.runs import execute` would be the module once that is imported, and the name before."""
    package = importlib.import_module(f"pfedsim.{room}")
    modules = {m.name for m in pkgutil.iter_modules(package.__path__)}
    clashes = modules & set(package.__all__)
    assert all(isinstance(getattr(package, name), ModuleType) for name in clashes)


def test_the_interface_and_the_client_loop_stay_small_and_name_no_method() -> None:
    text = (ROOT / "core" / "method.py").read_text() + (ROOT / "core" / "client.py").read_text()
    assert len(text.splitlines()) <= 370
    names = {kind.title for kind in METHODS.values()} | {kind.__name__ for kind in METHODS.values()}
    names |= {
        "FedAvg",
        "FedProx",
        "FedDyn",
        "FedGen",
        "FedBN",
        "Per-FedAvg",
        "PerFedAvg",
        "FedPer",
        "FedRep",
        "FedFomo",
        "FedAP",
    }
    assert not [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]


UNPICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
EXECUTES = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}
LOADS = {
    "torch.load",
    "torch.jit.load",
    "torch.hub.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "numpy.lib.format.read_array",
}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_nothing_executable_is_ever_loaded(path: Path) -> None:
    """No pickle of data. Workers get their jobs over a pipe by multiprocessing's own transport, which is no
    file and which nobody else can write to, or between the processes of a Ray cluster, whose ports its owner
    fences: that, in these engines alone, is the exception."""
    tree = ast.parse(path.read_text())
    imported = imports(path)
    assert not {name.partition(".")[0] for name in imported} & UNPICKLES
    assert not imported & LOADS
    assert module_of(path) in ("engines.pool", "engines.ray") or not [
        name for name in imported if "Pickler" in name
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in LOADS | EXECUTES
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in EXECUTES, called
            for word in node.keywords:
                if word.arg == "allow_pickle":
                    assert isinstance(word.value, ast.Constant)
                    assert word.value.value is False


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "eval('1')",
        "exec('1')",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
        "import yaml\nload = yaml.load",
        "from multiprocessing.reduction import ForkingPickler",
    ],
)
def test_what_executes_would_be_seen(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "sneaky.py").write_text(line + "\n")
    with pytest.raises(AssertionError):
        test_nothing_executable_is_ever_loaded(tmp_path / "sneaky.py")
