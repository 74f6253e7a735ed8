"""Write a run's folder."""

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
    """Writes a run's folder while it runs. Times, paths and host names go only into the files of MAY_DIFFER;
    all others are identical between runs with the same settings.

    `logs` and `files`: the lengths of the logs and the sha256 of the other files at a checkpoint; everything
    written after it is deleted. `flush`: flush files to disk, for a folder that outlives the process."""

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
        """Append a record to metrics, events or timings."""
        self._logs[f"{name}.jsonl"].append(json.dumps(_plain(content)) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write SHA256SUMS, in the format of `sha256sum -c`, then the summary, which marks the run as
        finished."""
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
        """Append the summary of a score to metrics.jsonl and the values of each client to clients.csv."""
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
        """Write the final state, from which the run can be extended, and its record."""
        tensors = to_tensors(state)
        chunks = packed({name: tensors[name] for name in sorted(tensors)})
        self._put(f"{FINAL}/state.safetensors", *chunks)
        self.json(f"{FINAL}/state.json", record)

    def predictions(self, scores: Mapping[str, Scores]) -> None:
        """Write the client, label and predicted class of every test sample, in client order."""
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
        """A writer of the clients' final models; add them in client order. `fills`: the values that replace each
        client's missing cells."""
        about: dict[str, Any] = {
            "model": config.model,
            "head": config.head,
            "shape": list(task.shape),
            "dtype": task.dtype,
            "classes": list(task.classes),
            "mean": task.mean,
            "std": task.std,
            "clients": clients,
            "base": base[0],
        }
        if task.columns is not None:
            about["columns"] = list(task.columns)
        if fills:
            about["fill"] = fills
        return Models(self, layout.named(base[1]), layout, about)


class Models:
    """Writes the clients' final models as named tensors; those equal to the base client's are written once."""

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
        """Write the index. `missing`: clients whose model was unavailable, listed because the base client's
        tensors are not theirs."""
        about = {**self._about, "missing": list(missing)} if missing else self._about
        self._writer.json("models/index.json", about)

    def digest(self) -> str:
        """The sha256 of all clients' models."""
        return self._digest.hexdigest()


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: t.contiguous() for name, t in tensors.items()})


def _confusion(counts: np.ndarray) -> str:
    """`true>predicted:count` for every pair that occurs."""
    return " ".join(f"{i}>{j}:{counts[i, j]}" for i, j in zip(*counts.nonzero(), strict=True))


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinity become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
