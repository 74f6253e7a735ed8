"""What a run writes into its folder, as it goes."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.core.rows import Pairs
from pfedsim.runs import durable
from pfedsim.runs.checkpoint import packed
from pfedsim.runs.config import Config
from pfedsim.runs.durable import Log
from pfedsim.runs.reader import BASE, FINAL, LOGS, MAY_DIFFER, PREDICTIONS, SUMS
from pfedsim.runs.state import to_tensors

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from pfedsim.core.layout import Layout
    from pfedsim.core.scoring import Scores
    from pfedsim.core.server import State
    from pfedsim.data.task import Task


class Writer:
    """Writes a run's folder as it goes. Nothing with a time, path or host goes into files that equal runs
    share.

    `logs` and `files`: how far the growing files count, and the whole files to keep with their sha256, as a
    checkpoint had them; what was written after it goes. `flush`: to disk, where the folder is to outlive
    the process."""

    def __init__(
        self,
        path: Path,
        logs: Mapping[str, Mapping[str, Any]] | None = None,
        files: Mapping[str, str] | None = None,
        flush: bool = True,
    ):
        self.path, self.files, self._flush = path, dict(files or {}), flush
        for left_over in path.rglob("*" + durable.TEMPORARY):
            left_over.unlink()
        for folder in (path / "similarity", path / "models", path / FINAL):
            folder.mkdir(exist_ok=True)
            for file in folder.iterdir():
                if str(file.relative_to(path)) not in self.files:
                    file.unlink()
        self.logs = [Log(path / name, (logs or {}).get(name, {}).get("bytes", 0)) for name in LOGS]
        self._logs = {log.name: log for log in self.logs}
        if not self._logs["clients.csv"].size:
            self._rows([["round", "client", "model", "split", "metric", "value"]])

    def close(self) -> None:
        for log in self.logs:
            log.close()

    def text(self, name: str, content: str) -> None:
        self._put(name, content.encode())

    def json(self, name: str, content: Mapping[str, Any]) -> None:
        self.text(name, json.dumps(_plain(content), indent=1) + "\n")

    def line(self, name: str, content: Mapping[str, Any]) -> None:
        """One record more in metrics, events or timings."""
        self._logs[f"{name}.jsonl"].append(json.dumps(_plain(content)) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary comes last: a folder that has one is finished. Before it the sha256 of all that equal
        runs share, in the form that sha256sum -c reads."""
        text = json.dumps(_plain(summary), indent=1) + "\n"
        sums = {**self.files, **{log.name: str(log.mark()["sha256"]) for log in self.logs}}
        sums["summary.json"] = hashlib.sha256(text.encode()).hexdigest()
        lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items()) if name not in MAY_DIFFER]
        self.text(SUMS, "".join(lines))
        if self._flush:
            durable.flush_folder(self.path / "models")
        self.text("summary.json", text)

    def _put(self, name: str, *chunks: durable.Bytes) -> None:
        self.files[name] = durable.write(
            self.path / name, *chunks, flush=self._flush, settle=not name.startswith("models/")
        )

    def _rows(self, rows: Iterable[Sequence[Any]]) -> None:
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._logs["clients.csv"].append(text.getvalue())

    def scores(self, round: int, scores: Scores) -> None:
        """A score's figures into metrics.jsonl, each client's into clients.csv."""
        self.line(
            "metrics", {"round": round, "model": scores.model, "split": scores.split, **scores.summary()}
        )
        for client in scores.clients:
            values = {
                "samples": client.samples,
                **client.metrics,
                "confusion": _confusion(client.confusion),
            }
            cells = {
                metric: "" if isinstance(value, float) and math.isnan(value) else value
                for metric, value in values.items()
            }
            self._rows(
                [round, client.client, scores.model, scores.split, metric, cell]
                for metric, cell in cells.items()
            )

    def similarity(self, round: int, pairs: Pairs) -> None:
        self._put(f"similarity/{round:05d}.safetensors", _packed(pairs.tensors()))

    def state(self, state: State, record: Mapping[str, Any]) -> None:
        """The final state, from which the run can go on, and what stands beside it."""
        tensors = to_tensors(state)
        chunks = packed({name: tensors[name] for name in sorted(tensors)})
        self._put(f"{FINAL}/state.safetensors", *chunks)
        self.json(f"{FINAL}/state.json", record)

    def predictions(self, scores: Mapping[str, Scores]) -> None:
        """Every test sample's client, label and predicted class, in the order of clients and of their test
        parts."""
        import numpy as np
        import torch

        first = next(iter(scores.values()))
        columns = {
            "client": [np.full(c.samples, c.client) for c in first.clients],
            "label": [c.labels for c in first.clients],
            **{name: [c.predicted for c in s.clients] for name, s in scores.items()},
        }
        self._put(
            PREDICTIONS,
            _packed({n: torch.from_numpy(np.concatenate(p).astype(np.int32)) for n, p in columns.items()}),
        )

    def models(
        self,
        base: tuple[int, Tensor],
        layout: Layout,
        task: Task,
        config: Config,
        clients: int,
        fills: Mapping[str, list[float]] | None = None,
    ) -> Models:
        """Where every client's final model goes, in the order of clients. `fills`: what stands for each
        client's missing cells."""
        about: dict[str, Any] = {
            "model": config.model,
            "head": config.head,
            "shape": list(task.shape),
            "dtype": task.dtype,
        }
        about |= {
            "classes": list(task.classes),
            "mean": task.mean,
            "std": task.std,
            "clients": clients,
            "base": base[0],
        }
        about |= {} if task.columns is None else {"columns": list(task.columns)}
        return Models(self, layout.named(base[1]), layout, {**about, **({"fill": fills} if fills else {})})


class Models:
    """Every client's final model as named tensors: those equal to the base client's are written once."""

    def __init__(self, writer: Writer, shared: dict[str, Tensor], layout: Layout, about: dict[str, Any]):
        self._writer, self._shared, self._layout, self._about = writer, shared, layout, about
        self._digest = hashlib.sha256()
        writer._put(f"models/{BASE}", _packed(shared))

    def add(self, client: int, theta: Tensor) -> None:
        self._digest.update(theta.numpy().tobytes())
        own = {name: t for name, t in self._layout.named(theta).items() if not t.equal(self._shared[name])}
        if own:
            self._writer._put(f"models/client-{client:05d}.safetensors", _packed(own))

    def finish(self, missing: Sequence[int]) -> None:
        """`missing`: clients whose model could not be had; nobody must take the base client's for
        theirs."""
        self._writer.json(
            "models/index.json", {**self._about, **({"missing": list(missing)} if missing else {})}
        )

    def digest(self) -> str:
        """sha256 over all clients' models."""
        return self._digest.hexdigest()


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: t.contiguous() for name, t in tensors.items()})


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
