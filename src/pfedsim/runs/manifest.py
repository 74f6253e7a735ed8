"""The software and hardware that a run used. If they change before it is resumed, the last bits may differ."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

import pfedsim
from pfedsim.backends import native
from pfedsim.runs.config import Config

NAME = "manifest.json"


def made_with(config: Config) -> dict[str, Any]:
    """Versions, processor and kernels, on which the last bits of a result may depend; `config` is resolved."""
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
    }


def place(config: Config) -> dict[str, Any]:
    """The settings of this machine, which a resumed run takes over and which do not change the result."""
    return {"data_dir": config.data_dir, "device": config.device, "state": config.state}


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


def stored(run: Path) -> dict[str, Any]:
    """The manifest in this folder; empty if there is none or it cannot be read."""
    try:
        content = json.loads((run / NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    kinds = {"files": dict, "made_with": dict, "place": dict, "resumed": list, "drift": list}
    if not isinstance(content, dict) or "files" not in content:
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
