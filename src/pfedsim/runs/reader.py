"""Read a finished run from its folder."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim import durable, escape, seal
from pfedsim.core.rows import Pairs
from pfedsim.data.partition import names_in
from pfedsim.errors import Error, nearest
from pfedsim.plugin import described, load_class, source_digest
from pfedsim.runs import config as configs
from pfedsim.runs import names
from pfedsim.runs.config import Config
from pfedsim.runs.names import BASE, FINAL, MANIFEST, PREDICTIONS, SUMS, TIMINGS

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from torch import Tensor

    from pfedsim.data.federation import Federation
    from pfedsim.export.client_model import ClientModel
    from pfedsim.runs.execution import OnRound

SUMS_OWN = "# sha256 of the lines above: "  # sha256sum ignores lines that start with #
FEW = 10  # runs that a message names


def is_run_folder(path: Path) -> bool:
    """Whether the folder contains only files of a run, or is empty, as a run leaves it that was stopped at once."""
    found = {durable.final_name(p.name) for p in path.iterdir()}
    return all(map(names.is_ours, found)) and (not found or TIMINGS in found)


def has_begun(run: Path) -> bool:
    """Whether a run has written its first files here. It writes config.toml before all others."""
    return any((run / name).exists() for name in ("config.toml", MANIFEST, "summary.json", SUMS))


def not_a_run(path: Path) -> str:
    """Why this path is not the folder of a run; names the runs inside, if there are any."""
    if not path.exists():
        return f"there is no folder {path}"
    inside = sorted({file.parent.name for file in path.glob("*/config.toml")})
    if not inside:
        return f"{path} is not a run's folder: there is no config.toml"
    more = f" and {len(inside) - FEW} more" if len(inside) > FEW else ""
    return f"{path} is not a run's folder; it contains the runs {', '.join(inside[:FEW])}{more}"


def load_config(run: Path) -> Config:
    """Load the configuration of the run in this folder, without importing the code that it names."""
    if not (run / "config.toml").is_file():
        if has_begun(run):
            what = "has lost its configuration; restore the file (a run with the same settings has the same one)"
        elif (run / TIMINGS).is_file():
            what = "was stopped before it began; delete it and start again"
        else:
            raise Error(not_a_run(run))
        raise Error(f"{run} {what}: there is no config.toml")
    return _config(run / "config.toml")


def _config(path: Path) -> Config:
    settings = configs.load(path)
    strange = [name for name in configs.OF_THE_PLACE if name in settings]
    if strange:
        raise Error(
            f"{path} sets {strange[0]}, which no run records there: it was changed; remove that line"
        )
    return configs.read(settings)


def sums_text(sums: Mapping[str, str]) -> str:
    """The contents of SHA256SUMS, in the format of `sha256sum -c`, with the sha256 of the list itself."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    return f"{lines}{SUMS_OWN}{hashlib.sha256(lines.encode()).hexdigest()}\n"


def sums_of(path: Path) -> dict[str, str]:
    """Load SHA256SUMS: the sha256 of each file. Raises an error unless the list is complete."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines[:-1])}
    except OSError as error:
        raise Error(
            f"{path} cannot be read: {error.strerror}; without it no file of the run can be verified"
        ) from error
    except ValueError as error:
        raise Error(f"{path} is damaged: it is not a list of sha256 digests") from error
    if sums_text(sums).splitlines() != lines:
        raise Error(f"{path} is damaged: its list does not match its own sha256")
    return sums


class Run:
    """A finished run, read from its folder. Every file that is read must be listed in SHA256SUMS and match it.
    `trust`: run the code of the run's own network, if it has one, to rebuild the clients' models."""

    def __init__(
        self,
        path: str | Path,
        keep: Any = None,
        federation: Federation | None = None,
        trust: bool = False,
    ):
        self.path, self._trust = Path(path), trust
        self._keep = keep  # keeps a temporary folder alive
        self._federation = federation  # the one it was trained on, if that is in memory
        if not (self.path / "summary.json").is_file():
            if not (self.path / "config.toml").is_file():
                raise Error(not_a_run(self.path))
            what = f"is not finished (resume it with: pfedsim resume {self.path})"
            raise Error(f"{self.path} {what}: there is no summary.json")

    @cached_property
    def _sums(self) -> dict[str, str]:
        return sums_of(self.path / SUMS)

    def verified(self, name: str) -> Path:
        """The path of this file of the run, after checking its sha256."""
        digest = self.manifest.get(TIMINGS) if name == TIMINGS else self._sums.get(name)
        if digest is None:
            where = MANIFEST if name == TIMINGS else SUMS
            raise Error(f"{self.path / name} is not part of this run: {where} does not list it")
        durable.verify(self.path / name, digest)
        return self.path / name

    @property
    def files(self) -> dict[str, str]:
        """The sha256 of every file that equal runs share."""
        return dict(self._sums)

    @cached_property
    def summary(self) -> dict[str, Any]:
        keys = "method", "data", "clients", "rounds", "seed", "served", "finetuned"
        return _json(self.verified("summary.json"), *keys)

    @cached_property
    def config(self) -> Config:
        return _config(self.verified("config.toml"))

    @property
    def round(self) -> int:
        """The round whose models are kept and reported: the last, or the one chosen by validation."""
        return int(self.summary.get("chosen", self.summary).get("round", self.summary["rounds"]))

    def scored(self, split: str = "test") -> dict[int, dict[str, Any]]:
        """The figures of the served models on this split, by round."""
        found = [m for m in self.metrics() if m.get("model") == "served" and m["split"] == split]
        return {m["round"]: m for m in found}

    @property
    def best_on_test(self) -> float:
        """The highest test accuracy of all scored rounds, as PFLlib reports it. It chooses on the test data: for
        comparison with numbers that were made so, and for nothing else."""
        return float(max(m["micro"] for m in self.scored().values()))

    @property
    def accuracy(self) -> float:
        """The accuracy over all test samples of the models served after `round`."""
        return float(self.summary["served"]["micro"])

    def metrics(self) -> list[dict[str, Any]]:
        """metrics.jsonl: one record per round and one per score."""
        return self._metrics

    @cached_property
    def _metrics(self) -> list[dict[str, Any]]:
        return lines(self.verified("metrics.jsonl"))

    def clients(self) -> list[dict[str, str]]:
        """clients.csv: round, client, model, split, metric, value."""
        return self._clients

    @cached_property
    def _clients(self) -> list[dict[str, str]]:
        try:
            with open(self.verified("clients.csv"), newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except OSError as error:
            raise Error(f"{self.path / 'clients.csv'} cannot be read: {error.strerror}") from error
        except (ValueError, csv.Error) as error:
            raise Error(f"{self.path / 'clients.csv'} is damaged: {error}") from error

    def client_values(
        self, metric: str = "accuracy", model: str = "served", split: str = "test"
    ) -> list[float]:
        """This metric of every client after `round`, in client order."""
        last = str(self.round)
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
        """For every client, which of its test samples its final model classifies correctly."""
        import numpy as np

        columns = {
            name: t.numpy() for name, t in tensors(self.verified(PREDICTIONS), "client", "label").items()
        }
        if model not in columns:
            raise Error(f"{self.path} has no predictions of the {model} models")
        right = columns[model] == columns["label"]
        if not len(right):
            return [np.zeros(0, bool)]
        return [right[columns["client"] == i] for i in range(self.summary["clients"])]

    def similarity(self, round: int | None = None) -> Pairs | None:
        """The server's similarities after this round (default: `self.round`); None if the method computes none."""
        files = sorted(name for name in self._sums if name.startswith("similarity/"))
        round = self.round if round is None and "chosen" in self.summary else round
        if round is not None:
            files = [name for name in files if Path(name).stem == f"{round:05d}"]
        if not files:
            return None
        return Pairs.of(tensors(self.verified(files[-1]), "i", "j", "value"))

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl: what happened to replies, clients and workers."""
        return lines(self.verified("events.jsonl"))

    def timings(self) -> list[dict[str, Any]]:
        """timings.jsonl: the seconds of rounds and scores."""
        return lines(self.verified(TIMINGS))

    def client_names(self) -> list[str] | None:
        """The names of the clients in the partition; None if they have no names."""
        return names_in(self.verified("partition.json"))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Versions, machine and time, which may differ between runs with the same settings."""
        content, own = seal.load(self.path / MANIFEST, "a run's manifest"), self._sums.get("config.toml")
        if content.get("files", {}).get("config.toml") != own:
            raise Error(f"{self.path / MANIFEST} belongs to another run")
        return content

    @cached_property
    def index(self) -> dict[str, Any]:
        """About the models: network, head, sample shape and dtype, classes, mean and std."""
        keys = "model", "shape", "dtype", "classes", "mean", "std", "clients"
        return _json(self.verified("models/index.json"), *keys)

    @property
    def incidents(self) -> str:
        """What befell the run that its settings do not ask for, by kind; empty if nothing did."""
        return ", ".join(f"{count} {kind}" for kind, count in self.summary.get("incidents", {}).items())

    @property
    def has_state(self) -> bool:
        """Whether the final state was kept, which `extend` needs."""
        return f"{FINAL}/state.json" in self._sums

    @property
    def state_bytes(self) -> int:
        """The size of the final state on disk."""
        return sum(file.stat().st_size for file in (self.path / FINAL).glob("*"))

    def final_record(self) -> dict[str, Any]:
        """The record beside the final state: its round, and the lengths of logs and files at that time."""
        return _json(self.verified(f"{FINAL}/state.json"), "round", "logs", "files", "counts")

    def extend(
        self,
        rounds: int,
        out: str | Path | None = None,
        on_round: OnRound | None = None,
        allow_drift: bool = False,
        **place: Any,
    ) -> Run:
        """Continue this run from its final state, up to `rounds` in total, in a new folder. Only the new rounds
        are trained; this run does not change. `place`: engine, address and workers."""
        from pfedsim.runs.extend import extend

        folder = None if out is None else Path(out)
        return extend(self, rounds, folder, self._federation, on_round, allow_drift, **place)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.summary['method']}, accuracy {100 * self.accuracy:.2f}%)"

    def _repr_html_(self) -> str:
        """A table for notebooks: the settings, and the accuracies of the served and fine-tuned models."""
        summary = self.summary
        rows = {"data": summary["data"], "clients": summary["clients"]}
        rows |= {"rounds": summary["rounds"], "seed": summary["seed"]}
        for name, scores in (("served", summary["served"]), ("fine-tuned", summary["finetuned"])):
            if scores:
                rows[f"accuracy, {name}"] = (
                    f"{100 * scores['micro']:.2f}% of all test samples, {100 * scores['mean']:.2f}% mean of clients"
                )
        rows["folder"] = self.path
        cells = "".join(f"<tr><th>{k}</th><td>{escape.html(str(v))}</td></tr>" for k, v in rows.items())
        return f"<table><caption>{escape.html(summary['method'])}</caption>{cells}</table>"

    def number_of(self, client: int | str) -> int:
        """The number of a client that is given by its number or its name."""
        count = self.index["clients"]
        if str(client).isdecimal() and int(client) < count:
            return int(client)
        names = (self.client_names() or [])[:count]
        if str(client) in names:
            return names.index(str(client))
        hint = f": this run has clients 0 to {count - 1}"
        raise Error(f"there is no client {client!r}{f'; {nearest(str(client), names)}' if names else hint}")

    def client(self, client: int | str) -> ClientModel:
        """The final model of this client, by its number or name. `predict(x)` and `probabilities(x)` take samples as
        stored; `module` is the plain torch module."""
        from pfedsim.data.tables.recipe import recipe_in
        from pfedsim.export.client_model import ClientModel, rebuild

        index, number = self.index, self.number_of(client)
        if number in index.get("missing", []):
            raise Error(
                f"client {number}'s model was unavailable when the run ended; {self.path / 'events.jsonl'} says why"
            )
        changed_by, digests = index.get("changed_by", ""), self.config.digests
        for code, digest in ((index["model"], digests.model), (changed_by, digests.method)):
            if ":" in code and not self._trust:
                raise Error(
                    f"the models of {self.path} need {described(code)}, which would be run: read it, then "
                    "say that you trust it (--trust, in Python Run(path, trust=True))"
                )
            if ":" in code and _has_changed(code, digest):
                raise Error(f"{code} has changed since {self.path} was run; restore its code")
        found = tensors(self.verified(f"models/{BASE}"))
        own = f"models/client-{number:05d}.safetensors"
        if own in self._sums:
            found |= tensors(self.verified(own))
        try:
            method = self.config.method_made() if changed_by else None
            about = index["shape"], len(index["classes"]), found, method, index["head"]
            module = rebuild(index["model"], *about)
        except Error as error:
            raise Error(
                f"{self.path / 'models'}: {error}; pfedsim doctor {self.path} says what is damaged"
            ) from error
        fill = index.get("fill", {}).get(str(number))
        constants = index["classes"], index["shape"], index["dtype"], index["mean"], index["std"]
        recipe = recipe_in(index, self.path / "models/index.json")
        ranges = index.get("ranges", {}).get(str(number))
        return ClientModel(module, *constants, fill, index.get("columns"), recipe, ranges)

    def to_pandas(self) -> pandas.DataFrame:
        """clients.csv as a DataFrame with one row per value, and the clients' names if they have some; confusion
        matrices are left out."""
        try:
            import pandas
        except ImportError:
            raise Error("to_pandas needs pandas: pip install pandas") from None
        rows = [
            {**r, "value": float(r["value"] or "nan")} for r in self.clients() if r["metric"] != "confusion"
        ]
        found = pandas.DataFrame(rows).astype({"round": int, "client": int})
        if (names := self.client_names()) is not None:
            found.insert(2, "name", [names[k] for k in found["client"]])
        return found


def _has_changed(code: str, digest: str | None) -> bool:
    """Whether trusted code is not what a run used. If it puts folders into `sys.path`, its imports are found only once
    it has run."""
    return source_digest(code) != digest and source_digest(load_class(code, "class")) != digest


def _json(path: Path, *needed: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise Error(f"{path} is damaged: it is not a JSON object")
    missing = [key for key in needed if key not in content]
    if missing:
        raise Error(f"{path} is incomplete: it has no {missing[0]!r}")
    return content


def tensors(path: Path, *needed: str) -> dict[str, Tensor]:
    """Load the named tensors of a file, which must contain those `needed`."""
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
    """The text as a readable file name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"{path} cannot be read: {error}") from error
