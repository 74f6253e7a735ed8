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

from pfedsim import __version__
from pfedsim.data.federation import Federation
from pfedsim.data.partition import names_in
from pfedsim.errors import Error
from pfedsim.export.card import card
from pfedsim.export.client_model import ClientModel
from pfedsim.export.config import NETWORK, ONNX, PT2, TENSORS, ExportConfig, Input
from pfedsim.export.programs import write_onnx, write_pt2
from pfedsim.export.read import load
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate

SAMPLES = "samples.npz"


def load_federation(run: Run, data_dir: str | None = None) -> Federation:
    """The run's federation, with its data read again from the run's data folder or from `data_dir`."""
    place = {
        "data_dir": data_dir or run.manifest.get("place", {}).get("data_dir"),
        "partition": str(run.path / "partition.json"),
    }
    return federate(run.config.model_copy(update=place))


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
    run's `federation`."""
    model = run.client(client)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Error(f"{out} already exists; choose a new folder for the export")
    target = out.resolve()
    if target == Path.cwd():
        raise Error(f"{out} is the working directory; choose a new folder for the export")
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        x = _write(run, client, model, part, federation, onnx, pt2, samples)
        if not load(part, trust=True).scores(x).equal(model.scores(x)):
            raise Error(
                f"client {client}'s model gives different scores when loaded from its export; it is not exported"
            )
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out


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
        network = f"{NETWORK}:{_copy_source(model, folder / NETWORK)}"
    differences: dict[str, Any] = {}
    if federation is not None:
        positions = federation.partition.clients[client].test
        x, y = (torch.from_numpy(array[positions]) for array in (federation.data.x, federation.data.y))
        if not len(x):
            raise Error(f"client {client} has no test samples to check its export with")
        differences = {"samples": len(x)}
        differences |= {ONNX: write_onnx(model, x, folder / ONNX)} if onnx else {}
        differences |= {PT2: write_pt2(model, x, folder / PT2)} if pt2 else {}
    asked = inspect.signature(type(model.module).__init__).parameters
    arguments = {"shape": list(model.shape), "classes": len(model.classes)}
    config = ExportConfig(
        network=network,
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
        ),
        test=_scores(run, client),
        run=_origin(run, client),
        checked=differences,
        files={p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())},
    )
    if samples and federation is not None:  # not listed in `files`: they may be removed before sharing
        np.savez_compressed(folder / SAMPLES, x=x.numpy(), y=y.numpy(), classes=np.array(model.classes))
    (folder / "config.json").write_text(config.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(config), encoding="utf-8")
    return x


def _listed(values: Tensor | None) -> list[float] | None:
    return None if values is None else values.flatten().tolist()


def _tensors(model: ClientModel) -> dict[str, Tensor]:
    return {name: t.contiguous() for name, t in model.module.state_dict().items() if t.is_floating_point()}


def _copy_source(model: ClientModel, path: Path) -> str:
    """Copy the file that defines a user's own network; return the name of its class."""
    kind = type(model.module)
    try:
        source = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        source = None
    if source is None or not Path(source).is_file() or "." in kind.__qualname__:
        raise Error(
            f"{kind.__qualname__} is not defined at the top level of a Python file, so its export could not be "
            "loaded elsewhere"
        )
    shutil.copyfile(source, path)
    return kind.__qualname__


def _scores(run: Run, client: int) -> dict[str, Any]:
    """The run's final scores of this client."""
    rows = [
        r
        for r in run.clients()
        if (r["round"], r["client"], r["split"]) == (str(run.summary["rounds"]), str(client), "test")
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
    names = names_in(run.path / "partition.json")
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
