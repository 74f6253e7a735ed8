"""A run's folder: what is written there, and how it is read back."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.core.rows import Pairs
from pfedsim.errors import Error
from pfedsim.runs import config as configs
from pfedsim.runs import durable
from pfedsim.runs.config import Config
from pfedsim.runs.durable import Log

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from torch import Tensor

    from pfedsim.core.layout import Layout
    from pfedsim.core.scoring import Scores
    from pfedsim.data.dataset import DataSet
    from pfedsim.export.client_model import ClientModel

BASE = "base.safetensors"
PREDICTIONS = "predictions.safetensors"
SUMS = "SHA256SUMS"
MAY_DIFFER = ("manifest.json", "timings.jsonl")  # between equal runs
LOGS = ("metrics.jsonl", "events.jsonl", "clients.csv", "timings.jsonl")


def is_run_folder(path: Path) -> bool:
    """Whether a run wrote all that lies here."""
    ours = {
        *("config.toml", "manifest.json", "partition.json", "summary.json", PREDICTIONS, SUMS, *LOGS),
        *("models", "similarity", "figures", "report.html", "checkpoint"),
    }
    names = {p.name.removesuffix(durable.TEMPORARY) for p in path.iterdir()}
    return names <= ours and "timings.jsonl" in names


def has_begun(run: Path) -> bool:
    """Whether a run got as far as writing here. Its configuration comes first, so that one without was lost
    later."""
    return any((run / name).exists() for name in ("config.toml", "manifest.json", "summary.json", SUMS))


def stated(run: Path) -> Config:
    """The configuration in this folder."""
    if not (run / "config.toml").is_file():
        what = (
            "was stopped before it began; start it again with --fresh"
            if (run / "timings.jsonl").is_file()
            else "is not a run's folder"
        )
        if has_begun(run):
            what = (
                "has lost its configuration; put the file back (an equal run has "
                "the same), for nothing can go on without it"
            )
        raise Error(f"{run} {what}: there is no config.toml")
    return configs.check(configs.load(run / "config.toml"))


def sums_of(path: Path) -> dict[str, str]:
    """SHA256SUMS: the sha256 of each file."""
    try:
        return {
            name: digest for digest, name in (line.split("  ", 1) for line in path.read_text().splitlines())
        }
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Error(f"{path} is damaged: it is not a list of sha256") from error


class Run:
    """A finished run, read from its folder; what is read is held to the sha256 that the run stated of
    it."""

    def __init__(self, path: str | Path, keep: Any = None):
        self.path = Path(path)
        self._keep = keep  # a temporary folder lives as long as this
        if not (self.path / "summary.json").is_file():
            begun = (self.path / "config.toml").is_file()
            what = (
                f"is not finished (pfedsim resume {self.path} goes on)"
                if begun
                else "is not a run's folder"
            )
            raise Error(f"{self.path} {what}: there is no summary.json")

    @cached_property
    def _sums(self) -> dict[str, str]:
        return sums_of(self.path / SUMS) if (self.path / SUMS).is_file() else {}

    def _whole(self, name: str) -> Path:
        path = self.path / name
        if name in self._sums:
            durable.verify(path, self._sums[name])
        return path

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary = _json(self._whole("summary.json"))
        missing = [
            key
            for key in ("method", "data", "clients", "rounds", "seed", "served", "finetuned")
            if key not in summary
        ]
        if missing:
            raise Error(f"{self.path / 'summary.json'} is not whole: it has no {missing[0]!r}")
        return summary

    @cached_property
    def config(self) -> Config:
        return configs.check(configs.load(self._whole("config.toml")))

    @property
    def accuracy(self) -> float:
        """Over all test samples alike, of the models as served after the last round."""
        return float(self.summary["served"]["micro"])

    def metrics(self) -> list[dict[str, Any]]:
        """One record per round, and per score."""
        return lines(self._whole("metrics.jsonl"))

    def clients(self) -> list[dict[str, str]]:
        """clients.csv: round, client, model, split, metric, value."""
        try:
            with open(self._whole("clients.csv"), newline="") as file:
                return list(csv.DictReader(file))
        except OSError as error:
            raise Error(f"{self.path / 'clients.csv'} cannot be read: {error.strerror}") from error
        except (ValueError, csv.Error) as error:
            raise Error(f"{self.path / 'clients.csv'} is damaged: {error}") from error

    def client_values(
        self, metric: str = "accuracy", model: str = "served", split: str = "test"
    ) -> list[float]:
        """This metric of every client at the last scoring, by client."""
        last = str(self.summary["rounds"])
        try:
            rows = [
                r
                for r in self.clients()
                if (r["round"], r["model"], r["split"], r["metric"]) == (last, model, split, metric)
            ]
            return [float(r["value"] or "nan") for r in sorted(rows, key=lambda r: int(r["client"]))]
        except (KeyError, ValueError, TypeError) as error:
            raise Error(f"{self.path / 'clients.csv'} is damaged: {error}") from error

    def hits(self, model: str = "served") -> list[np.ndarray]:
        """For every client, which of its test samples the final model gets right."""
        import numpy as np

        columns = {
            name: t.numpy() for name, t in tensors(self._whole(PREDICTIONS), "client", "label").items()
        }
        if model not in columns:
            raise Error(f"{self.path} has no predictions of the {model} models")
        right = columns[model] == columns["label"]
        return (
            [right[columns["client"] == i] for i in range(self.summary["clients"])]
            if len(right)
            else [np.zeros(0, bool)]
        )

    def similarity(self, round: int | None = None) -> Pairs | None:
        """The similarities that the server held after this round (default: the last scored); None where a
        method has none."""
        files = sorted((self.path / "similarity").glob("*.safetensors"))
        if round is not None:
            files = [f for f in files if f.stem == f"{round:05d}"]
        return (
            Pairs.of(tensors(self._whole(f"similarity/{files[-1].name}"), "i", "j", "value"))
            if files
            else None
        )

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Versions, machine, time: what may differ between equal runs."""
        return _json(self.path / "manifest.json")

    @cached_property
    def index(self) -> dict[str, Any]:
        """What the models are of: network, head, sample shape and type, classes, mean and std."""
        path = self._whole("models/index.json")
        index = _json(path)
        missing = [
            key
            for key in ("model", "shape", "dtype", "classes", "mean", "std", "clients")
            if key not in index
        ]
        if missing:
            raise Error(f"{path} is not whole: it has no {missing[0]!r}")
        return index

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.summary['method']}, accuracy {100 * self.accuracy:.2f}%)"

    def _repr_html_(self) -> str:
        """How notebooks show it: the settings and the accuracies of the models as served and after local
        epochs."""
        summary = self.summary
        rows = {"data": summary["data"], "clients": summary["clients"]}
        rows |= {"rounds": summary["rounds"], "seed": summary["seed"]}
        for name, scores in (("served", summary["served"]), ("fine-tuned", summary["finetuned"])):
            if scores:
                rows[f"accuracy, {name}"] = (
                    f"{100 * scores['micro']:.2f}% of all test samples, {100 * scores['mean']:.2f}% mean of clients"
                )
        rows["folder"] = self.path
        cells = "".join(f"<tr><th>{k}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items())
        return f"<table><caption>{escape(summary['method'])}</caption>{cells}</table>"

    def client(self, number: int) -> ClientModel:
        """This client's final model: `predict(x)` and `probabilities(x)` take samples as stored; the
        ordinary module is `module`."""
        from pfedsim.export.client_model import ClientModel, rebuild

        index = self.index
        if not 0 <= number < index["clients"]:
            raise Error(f"there is no client {number}: this run has clients 0 to {index['clients'] - 1}")
        if number in index.get("missing", []):
            raise Error(
                f"client {number}'s model could not be had when the run ended; {self.path / 'events.jsonl'} "
                "says why"
            )
        found = tensors(self._whole(f"models/{BASE}"))
        own = self.path / "models" / f"client-{number:05d}.safetensors"
        if own.is_file():
            found |= tensors(self._whole(f"models/{own.name}"))
        try:
            module = rebuild(index["model"], index["shape"], len(index["classes"]), found)
        except Error as error:
            raise Error(
                f"{self.path / 'models'}: {error}; pfedsim doctor {self.path} says what is damaged"
            ) from error
        fill = index.get("fill", {}).get(str(number))
        constants = index["classes"], index["shape"], index["dtype"], index["mean"], index["std"]
        return ClientModel(module, *constants, fill, index.get("columns"))

    def to_pandas(self) -> pandas.DataFrame:
        """clients.csv as a DataFrame, a row per figure of a client; confusion matrices, which are no
        numbers, are left out."""
        try:
            import pandas
        except ImportError:
            raise Error("to_pandas needs pandas: pip install pandas") from None
        rows = [
            {**r, "value": float(r["value"] or "nan")} for r in self.clients() if r["metric"] != "confusion"
        ]
        return pandas.DataFrame(rows).astype({"round": int, "client": int})


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise Error(f"{path} is damaged: it is no table of names and values")
    return content


def tensors(path: Path, *needed: str) -> dict[str, Tensor]:
    """The named tensors in a file; one that is damaged, or lacks what is needed, is refused by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise Error(f"{path} cannot be read: {error}") from error
    missing = [name for name in needed if name not in found]
    if missing:
        raise Error(f"{path} is damaged: it has no tensor {missing[0]!r}")
    return found


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
        for folder in (path / "similarity", path / "models"):
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
        data: DataSet,
        config: Config,
        clients: int,
        fills: Mapping[str, list[float]] | None = None,
    ) -> Models:
        """Where every client's final model goes, in the order of clients. `fills`: what stands for each
        client's missing cells."""
        about: dict[str, Any] = {
            "model": config.model,
            "head": config.head,
            "shape": list(data.shape),
            "dtype": str(data.x.dtype),
        }
        about |= {
            "classes": list(data.classes),
            "mean": data.mean,
            "std": data.std,
            "clients": clients,
            "base": base[0],
        }
        about |= {} if data.columns is None else {"columns": list(data.columns)}
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
