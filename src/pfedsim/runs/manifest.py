"""The code, software and hardware that a run used. If they change before it is resumed, it is not the same run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import pfedsim
from pfedsim import seal
from pfedsim.backends import native
from pfedsim.errors import Error
from pfedsim.plugin import code_of, load_class
from pfedsim.runs.config import Config
from pfedsim.runs.names import MANIFEST

ROOMS = ("core", "methods", "models", "backends", "engines", "data", "runs")  # whose code decides results
PLACE = ("data_dir", "device", "state")  # settings that a resumed run takes from its folder


def made_with(config: Config) -> dict[str, Any]:
    """Versions, processor, kernels and code, on which the bits of a result may depend; `config` is resolved."""
    return {
        "versions": {
            "pfedsim": pfedsim.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": _cpu(),
        "device": config.device,
        "backend": config.backend,
        "kernels": native.kernel_set() if config.backend == "native" else None,
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "code": _code(config),
    }


def _code(config: Config) -> dict[str, dict[str, str]]:
    """The first digits of the sha256 of the code that runs: pfedsim's by room, and that of the user's own method
    and network by module."""
    root, model = Path(pfedsim.__file__).parent, str(config.model)
    files = {
        "pfedsim": {
            room: sorted(p for p in (root / room).rglob("*") if p.suffix in (".py", ".so"))
            for room in ROOMS
        }
        | {"top": sorted(root.glob("*.py"))}
    }
    kinds = {"method": type(config.method_made())}
    kinds |= {"model": load_class(model, "model")} if ":" in model else {}
    for what, kind in kinds.items():
        if own := code_of(kind):
            files[what] = {name: [path] for name, path in own.items()}
    return {what: {name: _digest(paths) for name, paths in by.items()} for what, by in files.items()}


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def place(config: Config) -> dict[str, Any]:
    """The settings of this machine, which a resumed run takes over and which do not change the result."""
    return {name: getattr(config, name) for name in PLACE}


def drift(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, as `name: before -> now`."""
    if not before:
        return ["the earlier software and hardware are unknown"]
    old, new = dict(flat(before)), dict(flat(now))
    return [
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables with its dotted name."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def place_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Where a run was made, from its manifest or checkpoint: the folder of its data, its device, and whether it
    keeps its state. Nothing else in there changes how a run goes on, such as a tracker."""
    found = content.get("place", {})
    try:
        asked = Config(**{name: found[name] for name in PLACE if found.get(name) is not None})
    except (ValueError, AttributeError) as error:
        raise Error(f"the manifest's place is not one that a run writes: {found}") from error
    return {name: getattr(asked, name) for name in PLACE if name in asked.model_fields_set}


def stored(run: Path) -> dict[str, Any]:
    """The manifest in this folder; empty if there is none or it is damaged."""
    try:
        content = seal.load(run / MANIFEST, "a run's manifest")
    except Error:
        return {}
    kinds = {"files": dict, "made_with": dict, "place": dict, "resumed": list, "drift": list}
    if "files" not in content:
        return {}
    valid = all(isinstance(content.get(name, kind()), kind) for name, kind in kinds.items())
    return content if valid and all(isinstance(digest, str) for digest in content["files"].values()) else {}


def _cpu() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
