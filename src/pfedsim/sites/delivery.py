"""A client's final model at its site, as an export: a folder that `pfedsim predict` takes."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from pfedsim import __version__, durable, models, seal
from pfedsim.core.scoring import ClientScore
from pfedsim.export.card import card
from pfedsim.export.config import TENSORS, ExportConfig, Input
from pfedsim.methods import name_of
from pfedsim.runs.checkpoint import packed
from pfedsim.runs.setup import Plan

if TYPE_CHECKING:
    from torch import Tensor

FILES = (TENSORS, "config.json", "README.md")


def write(
    place: Path, planned: Plan, client: int, model: Tensor, score: ClientScore, fill: Tensor | None
) -> None:
    """Writes the folder completely, in the place of an earlier one. A method whose predictions need more than the
    network leaves no model."""
    if planned.method.beside:
        return
    config, task = planned.config, planned.task
    assert config.model is not None
    tensors = b"".join(packed(planned.fed.layout.named(model)))
    asked = inspect.signature(models.class_of(config.model).__init__).parameters
    arguments = {"shape": list(task.shape), "classes": len(task.classes)}
    kind, settings = planned.method, planned.fed.settings
    figures = {name: None if x != x else x for name, x in score.metrics.items()}
    about = ExportConfig(
        network=config.model,
        changed_by=_with_options(planned) if kind.reshapes() else None,
        arguments={name: value for name, value in arguments.items() if name in asked},
        head=config.head,
        classes=list(task.classes),
        input=Input(
            shape=list(task.shape),
            dtype=task.dtype,
            mean=list(task.mean),
            std=list(task.std),
            fill=None if fill is None else fill.flatten().tolist(),
            columns=None if task.columns is None else list(task.columns),
        ),
        test={"served": {"samples": score.samples, **figures}},
        run={
            "client": client,
            "method": name_of(type(kind)),
            "data": task.name,
            "clients": planned.fed.clients,
            "rounds": config.rounds,
            "seed": settings.seed,
            "pfedsim": __version__,
            "config_digest": config.digest(),
            "data_digest": config.digests.data,
            "partition_digest": config.digests.partition,
        },
        checked={},
        files={TENSORS: hashlib.sha256(tensors).hexdigest()},
    )
    unset = {"changed_by"} if about.changed_by is None else set[str]()
    text = seal.sealed(about.model_dump(exclude=unset)).encode()
    durable.make_folder(place.parent)
    if place.exists():
        durable.remove(place, lambda name: name in FILES)
    with durable.building(place) as aside:
        for name, content in zip(FILES, (tensors, text, card(about).encode()), strict=True):
            (aside / name).write_bytes(content)


def _with_options(planned: Plan) -> str:
    """The method that changes the network, with its options."""
    name = name_of(type(planned.method))
    options = planned.config.options.get(name, {})
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"
