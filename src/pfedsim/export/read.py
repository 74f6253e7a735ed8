"""An exported model from its folder; one that is not whole, or not what it says, is refused by name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of

from pfedsim.errors import Error
from pfedsim.export.client_model import ClientModel, rebuild
from pfedsim.export.config import NETWORK, TENSORS, ExportConfig


def load(path: str | Path, trust: bool = False) -> ClientModel:
    """The model in this folder, ready to predict. A network of its author's own comes as a Python file,
    which runs only with `trust`."""
    folder = Path(path)
    config = read_config(folder)
    content = {name: checked(folder, name, digest) for name, digest in config.files.items()}
    if TENSORS not in content:
        raise Error(f"{folder / 'config.json'} names no {TENSORS}")
    network = config.network
    if network.startswith(NETWORK):
        if NETWORK not in content:
            raise Error(f"{folder / 'config.json'} names no {NETWORK}, but its network is {network}")
        if not trust:
            raise Error(
                f"{folder} brings its own network, code that would be run: read {folder / NETWORK}, then "
                "ask again with trust"
            )
        network = f"{folder / network}"
    try:
        tensors = tensors_of(content[TENSORS])
    except SafetensorError as error:
        raise Error(f"{folder / TENSORS} is not a safetensors file: {error}") from error
    about = config.input
    try:
        module = rebuild(network, about.shape, len(config.classes), tensors)
        return ClientModel(
            module,
            config.classes,
            about.shape,
            about.dtype,
            about.mean,
            about.std,
            about.fill,
            about.columns,
        )
    except Error as error:
        raise Error(f"{folder} cannot be rebuilt: {error}") from error


def read_config(folder: Path) -> ExportConfig:
    """The folder's config.json, checked."""
    path = folder / "config.json"
    if not path.is_file():
        raise Error(
            f"{folder} is not an exported model: it has no config.json (pfedsim export RUN --client N "
            "OUT writes one)"
        )
    try:
        return ExportConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Error(
            f"{path} is not of a model exported by pfedsim: {place + ': ' if place else ''}{first['msg']}"
        ) from None


def checked(folder: Path, name: str, digest: str) -> bytes:
    """A file's content, if it is the one that config.json speaks of."""
    path = folder / name
    if not path.is_file():
        raise Error(f"{folder} is not whole: {name} is missing")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        why = "it was cut short, changed, or belongs to another export"
        raise Error(
            f"{path} is not the file that config.json speaks of (sha256 {found[:12]}..., not "
            f"{digest[:12]}...): {why}"
        )
    return content
