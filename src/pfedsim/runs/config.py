"""A run's settings. TOML files, the command line and Python share their names; they are validated here."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfedsim import backends, models, track
from pfedsim.core.method import Method
from pfedsim.core.settings import (
    Attack,
    Augment,
    Defence,
    Dropouts,
    Optimiser,
    Schedule,
    ServerOptimiser,
    Settings,
    Training,
)
from pfedsim.data import partition as partitions
from pfedsim.data.task import Defaults
from pfedsim.errors import Error, must, nearest
from pfedsim.methods import METHODS, name_of, parse
from pfedsim.runs import protocols

PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"  # 1 to 65535
WORDS = {  # names used elsewhere -> ours
    "learning_rate": "lr",
    "batch_size": "batch",
    "num_clients": "clients",
    "global_rounds": "rounds",
    "local_epochs": "epochs",
    "join_ratio": "join",
    "weight_decay": "decay",
    "algorithm": "method",
    "dataset": "data",
    "partition_alpha": "alpha",
}


class Score(BaseModel):
    """When and how clients are scored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int | None = Field(
        None,
        ge=0,
        description="rounds between scores (0: score only at the end; default: a twentieth of the rounds)",
    )
    finetune: int | None = Field(
        None,
        ge=0,
        description="plain local epochs before the second score at the end (0: none; default: epochs)",
    )
    lr: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="learning rate of these epochs (default: lr as the next round would have it)",
    )


FEW_GIVEN = 50  # so many parties or fewer all take part in every round by default
BEST = "best"


class Stop(BaseModel):
    """When a run ends and which round is reported, judged on the validation parts, never on the test parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: Literal["last", "best"] = Field(
        "last",
        description="last, or best: report the models of the scored round with the highest validation accuracy",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="stop after so many scores in a row without a higher validation accuracy (default: never)",
    )


TOO_MANY = 2**31
TABLES: dict[str, type[BaseModel]] = {
    "score": Score,
    "stop": Stop,
    "dropouts": Dropouts,
    "defence": Defence,
    "attack": Attack,
    "augment": Augment,
    "optimiser": Optimiser,
    "schedule": Schedule,
    "server_optimiser": ServerOptimiser,
}
OF_FEDERATION = (
    *("data_dir", "size", "clients", "partition", "alpha", "classes_each", "shards_each", "clients_each"),
    *("minimum", "test", "unseen", "partition_seed"),
)
"""the settings that decide which client holds which samples; all others belong to a run"""


class Digests(BaseModel):
    """sha256 of the data, the partition and the user's own source files that a run used; checked if given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str | None = None
    partition: str | None = None
    method: str | None = None
    model: str | None = None
    pretrained: str | None = None


class Config(Training):
    """All settings of a run. None means the data set's default."""

    method: str = Field(
        "pfedsim", description="name, name:preset or file.py:Class, optionally with (option=value)"
    )
    data: str = Field(
        "digits", description="a data set's name (pfedsim data list), or a .npz, .csv or .parquet file"
    )
    data_dir: str | None = Field(None, description="folder of the data sets", exclude=True)
    size: int | None = Field(None, ge=1, description="rescale images to this many pixels a side")
    model: str | None = Field(
        None,
        description="lenet5, cnn4, mobilenetv2, resnet20, mlp, cnn1d, or your own file.py:Class or module:Class",
    )
    pretrained: str | None = Field(
        None,
        description="weights to start from: mobilenet-v2, or a .safetensors or .npz file of named tensors",
    )
    head: str = Field("classifier", min_length=1, description="name of the network's classifier attribute")
    clients: int | None = Field(None, ge=1, description="number of clients")
    partition: str | None = Field(
        None,
        description="dirichlet, dirichlet-plain, classes, shards, quantity, iid, domain, given, or a partition.json",
    )
    alpha: float | None = Field(
        None,
        gt=0,
        description="concentration of the Dirichlet partitions and of 'quantity': smaller is more skewed",
    )
    classes_each: int = Field(2, ge=1, description="classes per client, for the partition 'classes'")
    shards_each: int | None = Field(None, ge=1, description="shards per client, for the partition 'shards'")
    clients_each: int | None = Field(
        None, ge=1, description="clients per domain, for the partition 'domain'"
    )
    unseen: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of clients that never train and are scored separately at the end",
    )
    minimum: int | None = Field(None, ge=2, description="minimum number of samples per client")
    test: float = Field(0.5, gt=0, lt=1, description="share of each client's samples used for testing")
    partition_seed: int = Field(
        42, ge=0, lt=2**32, description="seed of the partition and the train/test split"
    )
    rounds: int | None = Field(None, ge=1, description="communication rounds")
    planned: int | None = Field(
        None,
        ge=1,
        description="rounds that a method's schedule assumes, such as the switch of a two-stage method; an "
        "extended run keeps its original schedule",
    )
    join: float | None = Field(
        None, gt=0, le=1, description="share of clients that take part in each round"
    )
    device: str = Field(
        "cpu", description="cpu, cuda or cuda:N", pattern=r"^(cpu|cuda(:\d+)?)$", exclude=True
    )
    backend: str = Field(
        "auto", description="auto, torch or native (compiled CPU kernels, for chains of common layers)"
    )
    engine: Literal["serial", "pool", "ray"] | None = Field(
        None,
        description="where clients train: serial (one after another), pool (worker processes) or ray (a Ray "
        "cluster; compare and reproduce put whole runs on it)",
        exclude=True,
    )
    address: str | None = Field(
        None,
        pattern=rf"^(auto|[^\s/]+:{PORT})$",
        description="HOST:PORT of a Ray cluster's head node, or auto for the one that runs on this machine",
        exclude=True,
    )
    workers: int | None = Field(None, ge=1, le=1024, description="worker processes", exclude=True)
    time_limit: float | None = Field(
        None,
        gt=0,
        le=10_000_000,  # the operating system counts in whole numbers
        description="seconds that one client's training or scoring may take; then its worker is replaced and the "
        "client is absent",
        exclude=True,
    )
    track: str | None = Field(
        None, description="tensorboard:DIR, mlflow:URI or wandb:PROJECT", exclude=True
    )
    state: bool = Field(
        True,
        description="keep the final state of the server and the clients, which --extend needs",
        exclude=True,
    )
    score: Score = Score()
    stop: Stop | None = Field(
        None, description="when a run ends and which round is reported, judged by validation"
    )
    dropouts: Dropouts | None = Field(None, description="simulated clients that drop out or reply late")
    attack: Attack | None = Field(None, description="simulated clients that attack")
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="options of methods, by method name"
    )
    digests: Digests = Digests()

    def own_code(self) -> dict[str, str]:
        """The user's own classes that a run imports: `method` and `model` if they are not ours."""
        method = self.method.partition("(")[0].strip()
        asked = {"method": "" if method.partition(":")[0] in METHODS else method, "model": self.model or ""}
        return {what: spec for what, spec in asked.items() if ":" in spec}

    def method_made(self) -> Method:
        """The method with its options."""
        return parse(self.method, self.options)

    def settings(self) -> Settings:
        """The settings that methods see. The configuration must be resolved."""
        values = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings(**{**values, "rounds": self.planned or self.rounds})

    def suited(self, defaults: Defaults) -> Config:
        """The same with what the data set decides: network, partition and rounds."""
        partition = self.partition or defaults.partition
        return self.model_copy(
            update={
                "model": self.model or defaults.model,
                "partition": partition,
                "alpha": self.alpha or defaults.alpha_of(partition),
                "minimum": self.minimum or defaults.minimum,
                "rounds": self.rounds or defaults.rounds,
            }
        )

    def resolved(self, defaults: Defaults, clients: int) -> Config:
        """A copy with every default filled in, from the data set and the number of clients."""
        suited = self.suited(defaults)
        few = FEW_GIVEN if suited.partition == "given" else 10
        small = 1.0 if clients <= few else 0.5 if clients < 30 else 0.1
        assert suited.rounds is not None
        every, finetune = self.score.every, self.score.finetune
        method = self.method_made()
        name, ours = name_of(type(method)), type(method) in METHODS.values()
        options = {f.name: getattr(method, f.name) for f in fields(method)}
        return suited.model_copy(
            update={
                "method": name if ours else self.method.partition("(")[0],
                "options": {name: options} if options else {},
                "clients": clients,
                "join": self.join or (defaults.join if clients == defaults.clients else None) or small,
                "score": Score(
                    every=max(1, suited.rounds // 20) if every is None else every,
                    finetune=self.epochs if finetune is None else finetune,
                    lr=self.score.lr,
                ),
            }
        )

    def plain(self) -> dict[str, Any]:
        """The settings as TOML holds them: without None, each method's options in a table."""
        content: dict[str, Any] = self.model_dump(exclude_none=True)
        tables = content.pop("options")
        digests = content.pop("digests")
        return {**content, **tables, **({"digests": digests} if digests else {})}

    def digest(self) -> str:
        """sha256 of everything that decides the result. The folders of files do not count."""
        content = {
            **self.plain(),
            "data": Path(self.data).name,
            "partition": Path(self.partition or "").name,
        }
        if self.pretrained is not None:
            content["pretrained"] = Path(self.pretrained).name
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


OF_THE_PLACE = tuple(name for name, field in Config.model_fields.items() if field.exclude)
"""the settings that say where and how to run; they decide no result and are not recorded in config.toml"""


def load(path: Path) -> dict[str, Any]:
    """The contents of a TOML file, or of the protocol of that name."""
    if not path.exists() and (known := protocols.find(str(path))) is not None:
        path = known
    elif not path.exists() and not path.suffix and path.parent == Path():
        raise Error(
            f"there is no configuration or protocol {str(path)!r}; {nearest(str(path), protocols.NAMES)}"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"configuration {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Error(f"configuration {path} is not TOML: {error}") from error
    except RecursionError:
        raise Error(
            f"configuration {path} is not TOML that pfedsim reads: it is nested too deeply"
        ) from None


def check(values: Mapping[str, Any]) -> Config:
    """Build a configuration and check what can be checked without data: names, ranges and the method, whose
    code is imported if it is the user's own. The reader checks the data set's name, because a data set given
    from Python may have any name."""
    config = read(values)
    if config.track is not None:
        track.check(config.track)
    config.method_made()
    return config


def read(values: Mapping[str, Any]) -> Config:
    """Build a configuration and check its names and ranges. Imports no code that it names."""
    content = dict(values)
    if "options" in content:
        raise Error(
            "there is no setting 'options'; put a method's options into a table named after it, as in [pfedsim]"
        )
    for name in METHODS.keys() & content.keys():
        if not isinstance(content[name], Mapping):
            raise Error(
                f"{name} = {content[name]!r}: set one of its options, as in {name}.OPTION (pfedsim methods {name} "
                "lists them)"
            )
    given = str(content.get("method", Config.model_fields["method"].default))
    mine = table_of(given)
    content["options"] = {
        name: content.pop(name)
        for name in list(content)
        if isinstance(content[name], dict) and (name in METHODS or name == mine)
    }
    try:
        config = Config(**content)
    except ValidationError as error:
        raise Error(_sentence(error)) from None
    _check_sizes(config)
    _check_stop(config)
    if (
        config.partition is not None
        and config.partition not in partitions.KINDS
        and not config.partition.endswith(".json")
    ):
        raise Error(
            f"there is no partition {config.partition!r}; {nearest(config.partition, partitions.KINDS)} "
            "(or name a .json file)"
        )
    if config.backend not in backends.NAMES:
        raise Error(f"there is no backend {config.backend!r}; {nearest(config.backend, backends.NAMES)}")
    if config.model is not None:
        models.check_name(config.model)
    for name, options in config.options.items():
        # method_made checks the options of the chosen method, which may be a user's class of the same name
        if name in METHODS and name != mine:
            parse(name, {name: options})
    return config


def _check_sizes(config: Config) -> None:
    """Refuse numbers that no counter of torch or NumPy could hold; the seeds have limits of their own."""
    parts = {"": config, **{f"{name}.": getattr(config, name) for name in TABLES}}
    for before, part in parts.items():
        for name, value in part or ():
            if isinstance(value, int) and value >= TOO_MANY and not name.endswith("seed"):
                raise Error(f"{before}{name} = {value}: it should be less than {TOO_MANY:,}")


def _check_stop(config: Config) -> None:
    """Refuse to choose a round, or to stop, without validation parts that are scored during the run."""
    if config.stop is None or config.stop == Stop():
        return
    what = "stop.patience" if config.stop.round != BEST else "stop.round = 'best'"
    if not config.validation:
        raise Error(f"{what} needs a validation part: set validation, such as validation = 0.2")
    if config.score.every == 0:
        raise Error(f"{what} compares the scores of rounds: score.every must be at least 1, not 0")


def table_of(method: str) -> str:
    """The name of the table that holds this method's options."""
    name = method.partition("(")[0].strip()
    return name.partition(":")[0] if name.partition(":")[0] in METHODS else name.rpartition(":")[2].lower()


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        keys = [
            *Config.model_fields,
            *(f"{name}.{k}" for name, table in TABLES.items() for k in table.model_fields),
        ]
        known = [k for k in keys if k not in ("options", "digests", *TABLES)]
        a_table = isinstance(first["input"], Mapping)  # as in score.every and pfedsim.rho
        hint = nearest(place, [*TABLES, *METHODS] if a_table else [*known, *WORDS])
        for elsewhere, ours in WORDS.items():
            hint = hint.replace(f"did you mean {elsewhere!r}?", f"did you mean {ours!r}?")
        if hint.startswith("known are"):
            hint = "pfedsim run --help lists all settings"
        return f"there is no setting {place!r}; {hint}"
    if first["type"] == "missing":
        table, _, key = place.partition(".")
        return (
            f"{table} needs {place}: {TABLES[table].model_fields[key].description}"
            if key
            else f"{place} is needed"
        )
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}"
    wish = ""
    if first["type"] in ("string_pattern_mismatch", "string_too_short"):
        wish = f"must be {Config.model_fields[place].description}"
    elif first["type"] == "tuple_type":
        wish = "must be a list, as in [3, 7]"
    return f"{place} = {must(first, wish)}"


def assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b` in nested tables."""
    *tables, last = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise Error(f"{key!r}: {table!r} is not a table of settings")
    values[last] = value
