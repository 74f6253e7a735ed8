"""Users' own classes by `module:Class` or `file.py:Class`, and the digests of their code."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
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


def location(spec: str) -> Path | None:
    """The file that `load_class` would run first for this spec, found without running it; None if there is
    none."""
    place = spec.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).expanduser().resolve()
    return _found(place.partition(".")[0], [str(Path.cwd()), *sys.path])


def described(spec: str) -> str:
    """A user's own class and where its code is."""
    where = location(spec)
    return f"{spec} ({where})" if where else spec


def code_of(kind: type[Any]) -> dict[str, Path]:
    """The files of a user's class by module: the one that defines it, and what it imports, directly or not, from
    outside pfedsim, the standard library and site-packages. Empty for our own classes and one typed in a shell.
    Imports are read from the source, so those inside functions count; names that are computed are not seen."""
    module = sys.modules.get(kind.__module__)
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        file = None
    if (
        module is None
        or kind.__module__.partition(".")[0] == "pfedsim"
        or not file
        or not Path(file).is_file()
    ):
        return {}
    return _with_imports(Path(file), module.__package__ or "")


def code_at(spec: str) -> dict[str, Path]:
    """The same as `code_of` for the class that `spec` names, without importing it."""
    place = spec.rpartition(":")[0]
    if place.endswith(".py"):
        return _with_imports(Path(place).expanduser().resolve(), "")
    file = _file_of(place) or _found(place, [str(Path.cwd())])
    if file is None or place.partition(".")[0] == "pfedsim":
        return {}
    return _with_imports(file, place if file.stem == "__init__" else place.rpartition(".")[0])


def _with_imports(file: Path, package: str) -> dict[str, Path]:
    found, waiting = {file.stem: file}, [(file, package)]
    while waiting:
        for name in sorted(set(_imports(*waiting.pop()))):
            path = _file_of(name)
            if path is not None and path not in found.values() and not _installed(path):
                found[name] = path
                waiting.append((path, name if path.stem == "__init__" else name.rpartition(".")[0]))
    return found


def source_digest(code: type[Any] | str) -> str | None:
    """sha256 of the files in `code_of` a class, or in `code_at` a spec, one after another; None if there are none."""
    files = (code_at(code) if isinstance(code, str) else code_of(code)).values()
    digest = hashlib.sha256()
    for path in files:
        if not path.is_file():
            raise Error(f"there is no file {path}")
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else None


def _imports(path: Path, package: str) -> Iterator[str]:
    """The names of all modules that a source file may import, with the packages that contain them."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # a compiled module has no imports to read
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call):
            names = _imported_by_call(node, package)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            names = [f"{base}.{alias.name}" for alias in node.names if alias.name != "*"] or [base]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: k + 1]) for k in range(len(parts)))


def _imported_by_call(node: ast.Call, package: str) -> list[str]:
    """The module of `importlib.import_module("name")` or `__import__("name")`, where the name is written there."""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "name"), None)
    if called not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
        return []
    name = str(first.value)
    return [_absolute(name.lstrip("."), len(name) - len(name.lstrip(".")), package)]


def _absolute(name: str, level: int, package: str) -> str:
    """The full name of a module that is imported from `level` packages above."""
    parts = package.split(".")
    above = parts[: len(parts) - level + 1] if level else []
    return ".".join([*above, *filter(None, [name])])


def _file_of(name: str) -> Path | None:
    """The file of a module by its full name, without importing it; None for built-in modules and for names that
    are no module."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "pfedsim":
        return None
    if (loaded := sys.modules.get(name)) is not None:
        file = getattr(loaded, "__file__", None)
        return Path(file) if file else None
    parent, _, last = name.rpartition(".")
    if not parent:
        return _found(name, sys.path)
    return _found(last, inside) if (inside := _inside(parent)) else None


def _inside(package: str) -> list[str]:
    """The folders of a package, with or without __init__.py; none for a plain module."""
    if (loaded := sys.modules.get(package)) is not None:
        return list(getattr(loaded, "__path__", ()))
    parent, _, last = package.rpartition(".")
    spec = PathFinder.find_spec(last, _inside(parent) if parent else sys.path)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _found(name: str, places: Sequence[str]) -> Path | None:
    spec = PathFinder.find_spec(name, places) if name else None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _installed(path: Path) -> bool:
    """Whether a file belongs to the standard library or was installed into site-packages."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    ours = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(ours) or any(path.is_relative_to(library) for library in libraries)


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
    ours = (
        name.partition(".")[0] == "pfedsim"
    )  # found without the working directory, which may be anybody's
    if not ours and str(Path.cwd()) not in sys.path:
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
