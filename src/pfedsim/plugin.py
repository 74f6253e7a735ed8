"""Users' own classes by `module:Class` or `file.py:Class`."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pfedsim.errors import Error, nearest


def load_class(spec: str, base: str) -> type[Any]:
    """The class that `spec` names; `base` says in messages what it should be."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise Error(f"{spec!r} names no {base}: write module:Class or file.py:Class")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_path(place, base)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [
            n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__
        ]
        raise Error(
            f"{place} has no class {name!r}; {nearest(name, classes) if classes else 'it defines no class'}"
        )
    return found


def refuse_file(name: str) -> None:
    """Raise an error if `name` is a Python file without a class; name the classes that it defines."""
    if not name.endswith(".py"):
        return
    if not Path(name).is_file():
        raise Error(f"there is no file {name}")
    try:
        classes = [n.name for n in ast.parse(Path(name).read_bytes()).body if isinstance(n, ast.ClassDef)]
    except (SyntaxError, ValueError):
        classes = []
    raise Error(
        f"{name} is a file; name the class: {' or '.join(f'{name}:{c}' for c in classes or ['Class'])}"
    )


def source_digest(kind: type[Any]) -> str | None:
    """sha256 of the file that defines a user's class; None for ours, whose version the manifest has, and
    for one typed in a shell."""
    if kind.__module__.startswith("pfedsim."):
        return None
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None


def _from_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise Error(f"there is no file {path}")
    name = f"pfedsim_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise Error(f"{path.name}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        del sys.modules[name]
        raise Error(f"{path.name} cannot be imported: {_reason(error)}") from error
    return module


def _from_path(name: str, base: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise Error(f"{base} module {name!r} cannot be imported: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What went wrong in a user's module."""
    if "cannot inherit non-frozen dataclass from a frozen one" in str(error):
        return "a method is a frozen dataclass; write @dataclass(frozen=True) above the class"
    return f"{type(error).__name__}: {error}"
