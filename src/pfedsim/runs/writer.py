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

from pfedsim import durable, seal
from pfedsim.core.rows import Pairs
from pfedsim.durable import Log
from pfedsim.runs import names
from pfedsim.runs.checkpoint import packed
from pfedsim.runs.config import Config
from pfedsim.runs.names import BASE, FINAL, LOGS, MANIFEST, MAY_DIFFER, PREDICTIONS, SUMS, TIMINGS
from pfedsim.runs.reader import sums_text
from pfedsim.runs.state import to_tensors

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from pfedsim.core.layout import Layout
    from pfedsim.core.method import Method
    from pfedsim.core.scoring import Scores
    from pfedsim.core.server import State
    from pfedsim.data.task import Task

OUTPUT = ("similarity", "models", FINAL)


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
        names.refuse_links(path)
        for folder in OUTPUT:
            (path / folder).mkdir(exist_ok=True)
        self._discard()
        self.logs = [Log(path / name, (logs or {}).get(name, {}).get("bytes", 0)) for name in LOGS]
        self._logs = {log.name: log for log in self.logs}
        if not self._logs["clients.csv"].size:
            self._rows([["round", "client", "model", "split", "metric", "value"]])

    def _discard(self) -> None:
        """Delete what was written after the checkpoint, and files in progress."""
        for file in (*self.path.glob("*"), *self.path.glob("*/*")):
            name = str(file.relative_to(self.path))
            later = name.startswith(tuple(f"{folder}/" for folder in OUTPUT)) and name not in self.files
            if names.is_ours(name) and (later or durable.final_name(name) != name):
                file.unlink()

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

    def finish(self, summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """Write the manifest with the sha256 of the timings, SHA256SUMS with that of all other files, then the
        summary, which marks the run as finished."""
        text = json.dumps(_plain(summary), indent=1) + "\n"
        sums = {**self.files, **{log.name: str(log.mark()["sha256"]) for log in self.logs}}
        sums["summary.json"] = hashlib.sha256(text.encode()).hexdigest()
        listed = {name: digest for name, digest in sums.items() if name not in MAY_DIFFER}
        if self._flush:  # a summary on disk means that everything else is on disk too
            for log in self.logs:
                log.flush()
            durable.flush_folder(self.path / "models")
        self.text(MANIFEST, seal.sealed({**manifest, TIMINGS: sums[TIMINGS]}))
        self.text(SUMS, sums_text(listed))
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
        method: Method,
        fills: Mapping[str, list[float]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Models:
        """A writer of the clients' final models; add them in client order. `fills`: the values that replace each
        client's missing cells; `more`: further entries of the index. The index says what a reader must know of the
        method without importing it."""
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
        if method.reshapes():
            about["changed_by"] = config.method
        if method.beside:
            about["beside"] = method.beside
        return Models(self, base[1], layout, about | dict(more or {}))


class Models:
    """Writes the clients' final models as named tensors; those equal to the base client's are written once."""

    def __init__(self, writer: Writer, base: Tensor, layout: Layout, about: dict[str, Any]):
        self._writer, self._base, self._layout, self._about = writer, base, layout, about
        self._shared = layout.named(base)
        self._base_digest = _digest(base)
        self._digest = hashlib.sha256()
        writer._put(f"models/{BASE}", _packed(self._shared))

    def add(self, client: int, theta: Tensor) -> None:
        if theta.data_ptr() == self._base.data_ptr():  # the same model, not one that is equal
            self._digest.update(self._base_digest)
            return
        self._digest.update(_digest(theta))
        own = {name: t for name, t in self._layout.named(theta).items() if not t.equal(self._shared[name])}
        if own:
            self._writer._put(f"models/client-{client:05d}.safetensors", _packed(own))

    def finish(self, missing: Sequence[int]) -> None:
        """Write the index. `missing`: clients whose model was unavailable, listed because the base client's
        tensors are not theirs."""
        about = {**self._about, "missing": list(missing)} if missing else self._about
        self._writer.json("models/index.json", about)

    def digest(self) -> str:
        """The sha256 of the sha256 of every client's model."""
        return self._digest.hexdigest()


def _digest(theta: Tensor) -> bytes:
    return hashlib.sha256(theta.contiguous().numpy().data).digest()


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
