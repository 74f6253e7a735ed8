"""Load an exported model from its folder, checking every file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of

from pfedsim import seal
from pfedsim.data.tables.recipe import recipe_in
from pfedsim.errors import Error
from pfedsim.export.client_model import ClientModel, rebuild
from pfedsim.export.config import NETWORK, TENSORS, ExportConfig
from pfedsim.methods import METHODS, parse


def load(path: str | Path, trust: bool = False) -> ClientModel:
    """Load the model in this folder. If the author's own network comes with it as a Python file, that file is run
    only with `trust`."""
    folder = Path(path)
    config = read_config(folder)
    content = {name: checked(folder, name, digest) for name, digest in config.files.items()}
    if TENSORS not in content:
        raise Error(f"{folder / 'config.json'} names no {TENSORS}")
    network = config.network
    if config.changed_by is not None and config.changed_by.partition("(")[0] not in METHODS:
        raise Error(f"{folder / 'config.json'} names {config.changed_by!r}, which is no method of pfedsim")
    if network.startswith(NETWORK):
        if NETWORK not in content:
            raise Error(f"{folder / 'config.json'} names no {NETWORK}, but its network is {network}")
        if not trust:
            raise Error(
                f"{folder} contains the code of its network, which would be run: read {folder / NETWORK}, then "
                "say that you trust it (--trust, in Python pfedsim.load(path, trust=True))"
            )
        network = f"{folder / network}"
    try:
        tensors = tensors_of(content[TENSORS])
    except SafetensorError as error:
        raise Error(f"{folder / TENSORS} is not a safetensors file: {error}") from error
    about = config.input
    try:
        method = None if config.changed_by is None else parse(config.changed_by)
        module = rebuild(network, about.shape, len(config.classes), tensors, method, config.head)
        constants = about.shape, about.dtype, about.mean, about.std
        recipe = recipe_in(about.model_dump(), folder / "config.json")
        if recipe is not None and list(recipe.names) != about.columns:
            raise Error("its recipe makes other columns than the model takes")
        return ClientModel(
            module, config.classes, *constants, about.fill, about.columns, recipe, about.ranges
        )
    except Error as error:
        raise Error(f"{folder} cannot be rebuilt: {error}") from error


def read_config(folder: Path) -> ExportConfig:
    """Read and check the folder's config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise Error(
            f"{folder} is not an exported model: it has no config.json (pfedsim export RUN --client N "
            "OUT writes one)"
        )
    try:
        return ExportConfig.model_validate(seal.load(path, "an export's description"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Error(
            f"{path} does not describe a model exported by pfedsim: {place + ': ' if place else ''}{first['msg']}"
        ) from None


def checked(folder: Path, name: str, digest: str) -> bytes:
    """A file's content, after checking its sha256."""
    path = folder / name
    if not path.is_file():
        raise Error(f"{folder} is incomplete: {name} is missing")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        why = "it was truncated, changed, or belongs to another export"
        raise Error(
            f"{path} is not the file named in config.json (sha256 {found[:12]}..., not {digest[:12]}...): {why}"
        )
    return content
