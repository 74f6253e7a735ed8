"""The paper's studies use pfedsim as anybody else would: through the names that its rooms list in `__all__`."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pfedsim_paper
import pytest

import pfedsim

FILES = sorted(Path(pfedsim_paper.__file__).parent.rglob("*.py"))
ROOMS = {"errors", *(m.name for m in pkgutil.iter_modules(pfedsim.__path__) if m.ispkg)}


def not_public(source: str) -> list[str]:
    """What a file takes from pfedsim beyond its public names: `module.name` of each."""
    tree, modules, found = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [
                (a.name, a.asname or a.name) for a in node.names if a.name.partition(".")[0] == "pfedsim"
            ]
            modules |= {alias: name for name, alias in named if name == "pfedsim"}
            found += [name for name, _ in named if name != "pfedsim"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pfedsim":
            assert node.module
            for a in node.names:
                if node.module == "pfedsim" and a.name in ROOMS:
                    modules[a.asname or a.name] = f"pfedsim.{a.name}"
                elif not is_public(node.module, a.name):
                    found.append(f"{node.module}.{a.name}")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            module = modules[node.value.id]
            if node.attr != "__version__" and not is_public(module, node.attr):
                found.append(f"{module}.{node.attr}")
    return found


def is_public(module: str, name: str) -> bool:
    """Whether pfedsim or one of its rooms lists the name."""
    if module.removeprefix("pfedsim.") not in {"pfedsim", *ROOMS}:
        return False
    return name in importlib.import_module(module).__all__


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_studies_use_public_names_alone(path: Path) -> None:
    assert not_public(path.read_text()) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from pfedsim.runs.setup import prepare", ["pfedsim.runs.setup.prepare"]),
        ("from pfedsim.runs import setup", ["pfedsim.runs.setup"]),
        ("import pfedsim.runs.setup", ["pfedsim.runs.setup"]),
        ("from pfedsim import data as d\nd.catalogue.KNOWN", ["pfedsim.data.catalogue"]),
        ("import pfedsim\npfedsim._HOMES", ["pfedsim._HOMES"]),
        ("from pfedsim import data as d\nd.read('digits')", []),
        ("from pfedsim.runs import prepare", []),
        ("from pfedsim_paper.grid import runs", []),
    ],
)
def test_what_is_not_public_is_noticed(line: str, found: list[str]) -> None:
    assert not_public(line) == found
