"""Export a client's model to a folder: tensors, config, model card and, if asked, programs for other runtimes."""

from __future__ import annotations

import hashlib
import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from pfedsim import __version__, durable, models, seal
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.export.card import card
from pfedsim.export.client_model import ClientModel
from pfedsim.export.config import NETWORK, ONNX, PT2, TENSORS, ExportConfig, Input
from pfedsim.export.programs import write_onnx, write_pt2
from pfedsim.export.read import checked, load, read_config
from pfedsim.methods import METHODS
from pfedsim.plugin import code_of
from pfedsim.runs.manifest import place_in
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate

SAMPLES = "samples.npz"
OF_TABLE = ("recipe", "recipe_digest", "ranges")


def load_federation(run: Run, data_dir: str | None = None) -> Federation:
    """The run's federation, with its data read again from the run's data folder or from `data_dir`."""
    where = {
        "data_dir": data_dir or place_in(run.manifest).get("data_dir"),
        "partition": str(run.verified("partition.json")),
    }
    return federate(run.config.model_copy(update=where))


def export(
    run: Run,
    client: int,
    out: Path,
    *,
    federation: Federation | None = None,
    onnx: bool = False,
    pt2: bool = False,
    samples: bool = False,
) -> Path:
    """Write the folder `out` completely, or not at all. ONNX, torch.export and the client's test samples need the
    run's `federation`. If `out` already holds this export, nothing is done."""
    if beside := run.index.get("beside"):
        raise Error(
            f"client {client}'s model cannot be exported: {beside}, and an export holds the network alone"
        )
    model = run.client(client)
    durable.refuse_link(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        wanted = {TENSORS, *([ONNX] if onnx else []), *([PT2] if pt2 else [])}
        if _is_there(out, _origin(run, client), wanted, samples):
            return out
        raise Error(f"{out} already exists; choose a new folder for the export")
    target = out.resolve()
    if target == Path.cwd():
        raise Error(f"{out} is the working directory; choose a new folder for the export")
    with durable.building(target) as aside:
        x = _write(run, client, model, aside, federation, onnx, pt2, samples)
        if not load(aside, trust=True).scores(x).equal(model.scores(x)):
            raise Error(
                f"client {client}'s model gives different scores when loaded from its export; it is not exported"
            )
    return out


def _is_there(out: Path, origin: dict[str, Any], wanted: set[str], samples: bool) -> bool:
    """Whether the folder holds an intact export of this origin with these files."""
    try:
        config = read_config(out)
        for name, digest in config.files.items():
            checked(out, name, digest)
        if config.samples is not None:
            checked(out, SAMPLES, config.samples)
    except Error:
        return False
    found = set(config.files) - {NETWORK}
    return config.run == origin and found == wanted and (config.samples is not None) == samples


def _write(
    run: Run,
    client: int,
    model: ClientModel,
    folder: Path,
    federation: Federation | None,
    onnx: bool,
    pt2: bool,
    samples: bool,
) -> Tensor:
    """Write all files; return the samples that they were checked with."""
    x = torch.zeros(1, *model.shape, dtype=getattr(torch, model.dtype))
    (folder / TENSORS).write_bytes(save(_tensors(model), {"format": "pt"}))
    network = run.index["model"]
    if ":" in network:
        network = f"{NETWORK}:{_copy_source(models.class_of(network), folder / NETWORK)}"
    differences: dict[str, Any] = {}
    if federation is not None:
        positions = federation.partition.clients[client].test
        x, y = (torch.from_numpy(array[positions]) for array in (federation.data.x, federation.data.y))
        if not len(x):
            raise Error(f"client {client} has no test samples to check its export with")
        differences = {"samples": len(x)}
        differences |= {ONNX: write_onnx(model, x, folder / ONNX)} if onnx else {}
        differences |= {PT2: write_pt2(model, x, folder / PT2)} if pt2 else {}
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    if samples and federation is not None:
        np.savez_compressed(folder / SAMPLES, x=x.numpy(), y=y.numpy(), classes=np.array(model.classes))
    asked = inspect.signature(models.class_of(run.index["model"]).__init__).parameters
    arguments = {"shape": list(model.shape), "classes": len(model.classes)}
    config = ExportConfig(
        network=network,
        changed_by=_changed_by(run),
        arguments={name: value for name, value in arguments.items() if name in asked},
        head=run.index["head"],
        classes=list(model.classes),
        input=Input(
            shape=list(model.shape),
            dtype=model.dtype,
            mean=run.index["mean"],
            std=run.index["std"],
            fill=_listed(model.fill),
            columns=run.index.get("columns"),
            **_of_table(model),
        ),
        test=_scores(run, client),
        run=_origin(run, client),
        checked=differences,
        files=files,
        samples=hashlib.sha256((folder / SAMPLES).read_bytes()).hexdigest() if samples else None,
    )
    content = config.model_dump()
    for part, names in ((content, ["changed_by"]), (content["input"], OF_TABLE)):
        for name in names:
            if part[name] is None:
                del part[name]
    (folder / "config.json").write_text(seal.sealed(content), encoding="utf-8")
    (folder / "README.md").write_text(card(config), encoding="utf-8")
    return x


def _of_table(model: ClientModel) -> dict[str, Any]:
    """How rows of the original table become the model's samples."""
    if model.recipe is None:
        return {}
    return dict(zip(OF_TABLE, (model.recipe.plain(), model.recipe.digest, model.ranges), strict=True))


def _changed_by(run: Run) -> str | None:
    """The method that changes the run's network, with its options."""
    if not (name := run.index.get("changed_by")):
        return None
    if name not in METHODS:
        raise Error(
            f"{name} changes the network, and an export holds no code of a method: build the network that it makes "
            "and train that"
        )
    options = run.config.options.get(name, {})
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _listed(values: Tensor | None) -> list[float] | None:
    return None if values is None else values.flatten().tolist()


def _tensors(model: ClientModel) -> dict[str, Tensor]:
    return {name: t.contiguous() for name, t in model.module.state_dict().items() if t.is_floating_point()}


def _copy_source(kind: type, path: Path) -> str:
    """Copy the file that defines a user's own network; return the name of its class."""
    try:
        source = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        source = None
    if source is None or not Path(source).is_file() or "." in kind.__qualname__:
        raise Error(
            f"{kind.__qualname__} is not defined at the top level of a Python file, so its export could not be "
            "loaded elsewhere"
        )
    if also := [file.name for file in code_of(kind).values() if file != Path(source)]:
        raise Error(
            f"{source} imports {', '.join(also)}, which an export does not hold, so it could not be loaded elsewhere; "
            "put the network's whole code into one file, or install the rest as a package"
        )
    shutil.copyfile(source, path)
    return kind.__qualname__


def _scores(run: Run, client: int) -> dict[str, Any]:
    """The run's final scores of this client."""
    rows = [
        r
        for r in run.clients()
        if (r["round"], r["client"], r["split"]) == (str(run.round), str(client), "test")
    ]
    figures: dict[str, Any] = {}
    for row in rows:
        if row["metric"] != "confusion":
            value = float(row["value"]) if row["value"] else None
            figures.setdefault(row["model"], {})[row["metric"]] = (
                int(value) if row["metric"] == "samples" and value is not None else value
            )
    if "finetuned" in figures:
        figures["finetuned"]["epochs"] = run.summary["finetuned"]["epochs"]
    return figures


def _origin(run: Run, client: int) -> dict[str, Any]:
    summary, digests = run.summary, run.config.digests
    names = run.client_names()
    return {
        "client": client,
        **({} if names is None else {"name": names[client]}),
        **{key: summary[key] for key in ("method", "data", "clients", "rounds", "seed")},
        "pfedsim": __version__,
        "config_digest": summary["config_digest"],
        "models_digest": summary["models_digest"],
        "data_digest": digests.data,
        "partition_digest": digests.partition,
    }
