"""Linear CKA of each layer's outputs between ten networks trained alone (Figure 1; Kornblith et al.
2019)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.experiments import Cell, Record, Store
from pfedsim.report import Document, Figure, Section, Table, entries
from pfedsim.runs import Config
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import dealt, set_name
from pfedsim_paper.lengths import LENGTHS, alone, trained
from pfedsim_paper.protocol import Choice

if TYPE_CHECKING:
    from torch import Tensor

IMAGES = 2000


def plan(choice: Choice) -> list[Cell]:
    choice = choice.of(alphas=(0.1,))
    return [
        StudyCell(
            alone(data, choice, length, alpha, seed, clients=10),
            "cka",
            (("images", IMAGES), ("trained", length)),
        )
        for data in choice.data
        for alpha in choice.alphas
        for seed in choice.seeds
        for length in LENGTHS
    ]


def measure(config: Config, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """CKA per layer and pair of clients, on images that no client trained on."""
    from pfedsim import models as networks
    from pfedsim.runs import federate, made_with, one_thread
    from pfedsim_paper import training

    federation = federate(config)
    session, state = training.last(config, federation)
    held_out = np.sort(np.concatenate([s.test for s in federation.partition.clients]))
    chosen = np.random.default_rng(config.seed).permutation(held_out)[: extra["images"]]
    with one_thread():
        module = networks.build(
            str(session.config.model), federation.data.shape, len(federation.data.classes)
        )
        x = session_inputs(federation.data, np.sort(chosen))
        grams: dict[str, list[np.ndarray]] = {}
        for theta in training.models(session, state):
            for layer, output in outputs(module, session.fed.layout.named(theta), x).items():
                grams.setdefault(layer, []).append(centred_gram(output))
    found = {
        layer: [[round(cka(a, b), 4) for b in several] for a in several] for layer, several in grams.items()
    }
    return {
        "layers": found,
        "images": len(chosen),
        "samples": [len(s.train) for s in federation.partition.clients],
    }, made_with(session.config)


def session_inputs(data: Any, positions: np.ndarray) -> Tensor:
    """Samples as the network takes them."""
    import torch

    from pfedsim.backends import normalised

    over = (-1, *[1] * (len(data.shape) - 1))
    mean, std = (torch.tensor(v).reshape(over) for v in (data.mean, data.std))
    return normalised(torch.from_numpy(data.x[positions]), mean, std)


def outputs(module: Any, tensors: dict[str, Tensor], x: Tensor) -> dict[str, np.ndarray]:
    """What every convolution and linear layer gives for these samples, in eval mode, a row per sample."""
    import torch
    from torch import nn

    module.load_state_dict(tensors, strict=False)
    module.eval()
    found: dict[str, list[Tensor]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _m, _i, out, name=name: found.setdefault(name, []).append(out.flatten(1))
        )
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear))
    ]
    with torch.no_grad():
        for part in torch.split(x, 500):
            module(part)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts).double().numpy() for name, parts in found.items()}


def centred_gram(x: np.ndarray) -> np.ndarray:
    """X X' of the columns' deviations from their means."""
    x = x - x.mean(0)
    gram: np.ndarray = x @ x.T
    return gram


def cka(k: np.ndarray, m: np.ndarray) -> float:
    """<K, L> / (|K| |L|), which is |X'Y|^2 / (|X'X| |Y'Y|)."""
    return float((k * m).sum() / (np.linalg.norm(k) * np.linalg.norm(m)))


def between(record: Record) -> dict[str, float]:
    """Layer -> mean CKA of two different clients' networks."""
    return {layer: _off_diagonal(np.array(matrix)) for layer, matrix in record.found["layers"].items()}


def _off_diagonal(matrix: np.ndarray) -> float:
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())


def report(store: Store, choice: Choice) -> Document:
    sections = []
    for cell in plan(choice):
        record = store.find(cell)
        dealt_ = dealt(cell.words["alpha"])
        heading = (
            f"{set_name(str(cell.words['data']))}, {dealt_}, trained for "
            f"{trained(cell)}, seed {cell.words['seed']}"
        )
        if record is None:
            sections.append(Section(heading, ["Not measured yet."]))
            continue
        means = between(record)
        rows = [entries(k, layer, f"{value:.3f}") for k, (layer, value) in enumerate(means.items())]
        table = Table(
            f"cka-{cell.words['data']}-{cell.words['alpha']:g}-{dict(cell.extra)['trained']}-{cell.words['seed']}",
            f"Mean linear CKA of two clients' networks on {record.found['images']:,} held-out images, at "
            "each layer's output before norm "
            "and ReLU (the paper prints no numbers)",
            ["layer", "name", "mean over pairs"],
            rows,
        )
        maps = {
            f"layer {k}: {layer}": np.array(m)
            for k, (layer, m) in enumerate(record.found["layers"].items())
        }
        sections.append(
            Section(
                heading,
                [
                    table,
                    Figure(
                        f"{table.name}",
                        f"Linear CKA between ten networks, layer by layer ({heading})",
                        _drawn(maps),
                    ),
                ],
            )
        )
    return Document("cka", "Which layer tells clients apart: linear CKA", sections)


def _drawn(maps: dict[str, np.ndarray]) -> Any:
    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import heat_maps

        return heat_maps(maps, path, width, "linear CKA", low=0.0, high=1.0)

    return draw
