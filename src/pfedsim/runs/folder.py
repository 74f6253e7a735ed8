"""A run's folder: what is written there, and how it is read back."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.errors import Error
from pfedsim.rows import Pairs
from pfedsim.runs import config as configs
from pfedsim.runs.config import Config

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from pfedsim.data.dataset import DataSet
    from pfedsim.layout import Layout
    from pfedsim.scoring import Scores

BASE = "base.safetensors"
PREDICTIONS = "predictions.safetensors"


def is_run_folder(path: Path) -> bool:
    """Whether a run wrote all that lies here."""
    ours = {
        *("config.toml", "manifest.json", "partition.json", "summary.json", "clients.csv", PREDICTIONS),
        *("metrics.jsonl", "events.jsonl", "timings.jsonl", "models", "similarity", "figures"),
    }
    names = {p.name for p in path.iterdir()}
    return names <= ours and {"clients.csv", "metrics.jsonl", "timings.jsonl"} <= names


class Run:
    """A finished run, read from its folder."""

    def __init__(self, path: str | Path, keep: Any = None):
        self.path = Path(path)
        self._keep = keep  # a temporary folder lives as long as this
        if not (self.path / "summary.json").is_file():
            what = "is not finished" if (self.path / "config.toml").is_file() else "is not a run's folder"
            raise Error(f"{self.path} {what}: there is no summary.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary = dict(_json(self.path / "summary.json"))
        missing = [key for key in ("method", "data", "clients", "rounds", "seed", "served", "finetuned") if key not in summary]
        if missing:
            raise Error(f"{self.path / 'summary.json'} is not whole: it has no {missing[0]!r}")
        return summary

    @cached_property
    def config(self) -> Config:
        return configs.check(configs.load(self.path / "config.toml"))

    @property
    def accuracy(self) -> float:
        """Over all test samples alike, of the models as served after the last round."""
        return float(self.summary["served"]["micro"])

    def metrics(self) -> list[dict[str, Any]]:
        """One record per round, and per score."""
        return lines(self.path / "metrics.jsonl")

    def clients(self) -> list[dict[str, str]]:
        """clients.csv: round, client, model, split, metric, value."""
        try:
            with open(self.path / "clients.csv", newline="") as file:
                return list(csv.DictReader(file))
        except OSError as error:
            raise Error(f"{self.path / 'clients.csv'} cannot be read: {error.strerror}") from error

    def client_values(self, metric: str = "accuracy", model: str = "served", split: str = "test") -> list[float]:
        """This metric of every client at the last scoring, by client."""
        last = str(self.summary["rounds"])
        rows = [r for r in self.clients() if (r["round"], r["model"], r["split"], r["metric"]) == (last, model, split, metric)]
        return [float(r["value"] or "nan") for r in sorted(rows, key=lambda r: int(r["client"]))]

    def hits(self, model: str = "served") -> list[np.ndarray]:
        """For every client, which of its test samples the final model gets right."""
        import numpy as np
        from safetensors.numpy import load_file

        columns = load_file(self.path / PREDICTIONS)
        if model not in columns:
            raise Error(f"{self.path} has no predictions of the {model} models")
        right = columns[model] == columns["label"]
        return [right[columns["client"] == i] for i in range(self.summary["clients"])] if len(right) else [np.zeros(0, bool)]

    def similarity(self, round: int | None = None) -> Pairs | None:
        """The similarities that the server held after this round (default: the last scored); None where a method has none."""
        from safetensors.torch import load_file

        files = sorted((self.path / "similarity").glob("*.safetensors"))
        if round is not None:
            files = [f for f in files if f.stem == f"{round:05d}"]
        return Pairs.of(load_file(files[-1])) if files else None

    def inputs(self, x: Any) -> Tensor:
        """Samples as stored (bytes count as pixels and are brought to 0..1), normalised by the set's mean and std, for `client(i)`."""
        import torch

        from pfedsim.backends.torch import normalised

        index = _json(self.path / "models" / "index.json")
        samples = torch.as_tensor(x)
        if tuple(samples.shape[1:]) != tuple(index["shape"]):
            raise Error(f"samples have shape {tuple(samples.shape[1:])}; this run's have {tuple(index['shape'])}")
        over = (-1, *[1] * (len(index["shape"]) - 1))
        return normalised(samples, *(torch.tensor(index[name]).reshape(over) for name in ("mean", "std")))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.summary['method']}, accuracy {100 * self.accuracy:.2f}%)"

    def client(self, number: int) -> nn.Module:
        """This client's final model as an ordinary module in eval mode; `inputs` makes what it takes from samples as stored."""
        from safetensors.torch import load_file

        from pfedsim import models
        from pfedsim.seeds import torch_seeded

        index = _json(self.path / "models" / "index.json")
        if not 0 <= number < index["clients"]:
            raise Error(f"there is no client {number}: this run has clients 0 to {index['clients'] - 1}")
        tensors = load_file(self.path / "models" / BASE)
        own = self.path / "models" / f"client-{number:05d}.safetensors"
        if own.is_file():
            tensors |= load_file(own)
        with torch_seeded(0, "model"):  # its first values are thrown away; the caller's generator is left alone
            module = models.build(index["model"], tuple(index["shape"]), len(index["classes"]))
        module.load_state_dict(tensors, strict=False)  # the batch counters of norm layers are not kept
        return module.eval()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be read: {error}") from error


def slug(text: str) -> str:
    """A file name that tells what it is."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be read: {error}") from error


class Writer:
    """Writes a run's folder as it goes. Nothing with a time, path or host goes into files that equal runs share."""

    def __init__(self, path: Path):
        self.path = path
        (path / "similarity").mkdir(parents=True, exist_ok=True)
        (path / "models").mkdir(exist_ok=True)
        self._clients = open(path / "clients.csv", "w", newline="")  # noqa: SIM115 - open as long as the run
        self._table = csv.writer(self._clients, lineterminator="\n")
        self._table.writerow(["round", "client", "model", "split", "metric", "value"])
        for name in ("metrics", "events", "timings"):
            (path / f"{name}.jsonl").write_text("")

    def close(self) -> None:
        self._clients.close()

    def json(self, name: str, content: Mapping[str, Any]) -> None:
        (self.path / name).write_text(json.dumps(_plain(content), indent=1) + "\n")

    def line(self, name: str, content: Mapping[str, Any]) -> None:
        """One record more in metrics, events or timings."""
        with open(self.path / f"{name}.jsonl", "a") as file:
            file.write(json.dumps(_plain(content)) + "\n")

    def scores(self, round: int, scores: Scores) -> None:
        """A score's figures into metrics.jsonl, each client's into clients.csv."""
        self.line("metrics", {"round": round, "model": scores.model, "split": scores.split, **scores.summary()})
        for client in scores.clients:
            values = {"samples": client.samples, **client.metrics, "confusion": _confusion(client.confusion)}
            for metric, value in values.items():
                missing = isinstance(value, float) and math.isnan(value)
                self._table.writerow([round, client.client, scores.model, scores.split, metric, "" if missing else value])
        self._clients.flush()

    def similarity(self, round: int, pairs: Pairs) -> None:
        _save(pairs.tensors(), self.path / "similarity" / f"{round:05d}.safetensors")

    def predictions(self, scores: Mapping[str, Scores]) -> None:
        """Every test sample's client, label and predicted class, in the order of clients and of their test parts."""
        import numpy as np
        import torch

        first = next(iter(scores.values()))
        columns = {
            "client": [np.full(c.samples, c.client) for c in first.clients],
            "label": [c.labels for c in first.clients],
            **{name: [c.predicted for c in s.clients] for name, s in scores.items()},
        }
        _save({name: torch.from_numpy(np.concatenate(parts).astype(np.int32)) for name, parts in columns.items()}, self.path / PREDICTIONS)

    def models(self, thetas: Mapping[int, Tensor], base: int, layout: Layout, data: DataSet, config: Config, clients: int) -> str:
        """Every client's final model as named tensors: those equal to the base client's are written once. Returns their sha256."""
        folder = self.path / "models"
        shared = layout.named(thetas[base])
        _save(shared, folder / BASE)
        digest = hashlib.sha256()
        for i, theta in sorted(thetas.items()):
            digest.update(theta.numpy().tobytes())
            own = {name: t for name, t in layout.named(theta).items() if not t.equal(shared[name])}
            if own:
                _save(own, folder / f"client-{i:05d}.safetensors")
        about = {"model": config.model, "head": config.head, "shape": list(data.shape), "classes": list(data.classes)}
        self.json("models/index.json", {**about, "mean": data.mean, "std": data.std, "clients": clients, "base": base})
        return digest.hexdigest()


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors.torch import save

    path.write_bytes(save({name: t.contiguous() for name, t in tensors.items()}))


def _confusion(counts: np.ndarray) -> str:
    """`true>predicted:count` of every pair that occurs."""
    return " ".join(f"{i}>{j}:{counts[i, j]}" for i, j in zip(*counts.nonzero(), strict=True))


def _plain(value: Any) -> Any:
    """As JSON can hold it: NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
