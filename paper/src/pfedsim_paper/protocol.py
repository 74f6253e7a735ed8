"""The paper's protocol, data set by data set: everything that decides a run is stated here, nothing is left
to a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pfedsim.data import data_dir, own
from pfedsim.errors import Error, nearest
from pfedsim.experiments import Cell
from pfedsim.methods import TWELVE
from pfedsim_paper.forms import StudyCell

COMMON: dict[str, Any] = {  # section 5.1, and reference behaviour where the paper is silent
    "epochs": 5,
    "batch": 32,
    "lr": 0.01,
    "momentum": 0.0,
    "decay": 0.0,
    "buffers": "local",
    "shuffle": False,
    "test": 0.5,
    "partition_seed": 42,
}
PAPER: dict[str, Any] = {
    **COMMON,
    "model": "lenet5",
    "clients": 100,
    "partition": "dirichlet",
    "minimum": 40,
    "rounds": 200,
    "join": 0.1,
    "score": {"every": 20, "finetune": 5},
}
PRETRAINED = {"model": "mobilenetv2", "pretrained": "mobilenet-v2", "size": 64}
NATURAL = {
    **COMMON,
    "partition": "given",
    "minimum": 2,
    "rounds": 50,
    "join": 1.0,
    "score": {"every": 5, "finetune": 5},
}
SETS: dict[str, dict[str, Any]] = {  # what runs on an ordinary machine
    "cifar10": PAPER,
    "cinic10": PAPER,
    "emnist": PAPER,
    "tiny-imagenet": {
        **PAPER,
        **PRETRAINED,
        "clients": 50,
        "join": 0.2,
        "rounds": 20,
        "score": {"every": 5, "finetune": 1},
    },
    "mnist": PAPER,
    "fashion-mnist": PAPER,
    "digits": {
        **PAPER,
        "clients": 20,
        "minimum": 10,
        "rounds": 20,
        "join": 0.5,
        "score": {"every": 2, "finetune": 5},
    },
    "domainnet": {
        **PAPER,
        **PRETRAINED,
        "partition": "domain",
        "clients": 120,
        "minimum": 10,
        "rounds": 20,
        "score": {"every": 5, "finetune": 1},
    },
    "pacs": {
        **PAPER,
        **PRETRAINED,
        "partition": "domain",
        "clients": 20,
        "minimum": 10,
        "rounds": 20,
        "join": 0.5,
        "score": {"every": 5, "finetune": 5},
    },
    "digit-domains": {**PAPER, "partition": "domain", "minimum": 10},
    "heart": {**NATURAL, "model": "mlp", "clients": 4},
    "watch": {**NATURAL, "model": "cnn1d", "clients": 10},
}
WHOLE: dict[str, dict[str, Any]] = {  # the paper's scale, where the above is smaller
    "tiny-imagenet": {**PAPER, **PRETRAINED},
    "domainnet": {**PAPER, **PRETRAINED, "partition": "domain", "clients": 120, "minimum": 10},
}
CLIENTS_EACH = 20  # of a domain, appendix B.3
TEN_CLASSES = ("cifar10", "cinic10", "mnist", "fashion-mnist", "digits")
OF_THE_PAPER = ("cifar10", "cinic10", "tiny-imagenet", "emnist")
ALPHAS = (0.1, 0.5)
SEEDS = (42, 43, 44, 45, 46)


@dataclass(frozen=True)
class Choice:
    """Which part of a study is wanted; where it names nothing, the study's own default."""

    full: bool = False
    methods: Sequence[str] = ()
    data: Sequence[str] = ()
    alphas: Sequence[float] = ()
    seeds: Sequence[int] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """over the protocol's own"""

    def of(
        self,
        methods: Sequence[str] = tuple(TWELVE),
        data: Sequence[str] = ("cifar10",),
        alphas: Sequence[float] = ALPHAS,
        seeds: Sequence[int] = (42,),
        full_data: Sequence[str] = (),
    ) -> Choice:
        """The same with nothing left open; the paper's whole scale is `full_data` and five seeds."""
        if self.full:
            data, seeds = full_data or data, SEEDS
        return replace(
            self,
            methods=self.methods or methods,
            data=self.data or data,
            alphas=self.alphas or alphas,
            seeds=self.seeds or seeds,
        )


def cell(
    data: str, method: str, alpha: float | None, seed: int, settings: Mapping[str, Any], **more: Any
) -> Cell:
    """One run of the protocol."""
    return StudyCell(words(data, method, alpha, seed, settings, **more))


def words(
    data: str,
    method: str,
    alpha: float | None,
    seed: int,
    settings: Mapping[str, Any],
    full: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A run's words; `more`, then `settings`, over the protocol's."""
    chosen = {**base(data, full), "data": data, "method": method, "seed": seed, **more}
    for key, value in settings.items():
        chosen[key] = (
            {**chosen[key], **value}
            if isinstance(value, dict) and isinstance(chosen.get(key), dict)
            else value
        )
    return chosen if alpha is None else {**chosen, "alpha": alpha}


def base(data: str, full: bool = False) -> Mapping[str, Any]:
    """The protocol's words for a set; a domain/class folder of the user's own has DomainNet's, with as many
    clients a domain."""
    if data in SETS:
        return WHOLE.get(data, SETS[data]) if full else SETS[data]
    added = own.added(data_dir())
    if data not in added:
        raise Error(
            f"no study knows a data set {data!r}; {nearest(data, [*SETS, *added])} (your own: a "
            "domain/class folder, `data add`)"
        )
    return {**base("domainnet", full), "clients": CLIENTS_EACH * len(own.load(added[data]).domains(data))}


def as_large_as_printed(cell: Cell) -> bool:
    """Whether a run has the clients and rounds that the paper's has."""
    whole = base(str(cell.words["data"]), full=True)
    return all(cell.words[k] == whole[k] for k in ("clients", "join", "rounds"))


def alphas(data: str, choice: Choice) -> Sequence[float | None]:
    """The partitions of a set: only labels are dealt by a Dirichlet distribution, clients or domains of
    their own are as they are."""
    return choice.alphas if base(data)["partition"] == "dirichlet" else (None,)


def grid(choice: Choice, **more: Any) -> list[Cell]:
    """Methods x data sets x alphas x seeds, a seed of all methods before the next."""
    return [
        cell(data, method, alpha, seed, choice.settings, full=choice.full, **more)
        for data in choice.data
        for seed in choice.seeds
        for alpha in alphas(data, choice)
        for method in choice.methods
    ]


def switched(cell: Cell) -> str:
    """Where a run leaves the protocol, in the words that `--set` takes."""

    def flat(words: Mapping[str, Any]) -> dict[str, Any]:
        return {
            f"{k}.{n}" if n else k: x
            for k, v in words.items()
            for n, x in (v.items() if isinstance(v, dict) else [("", v)])
        }

    in_its_name, usual = (
        ("data", "method", "seed", "alpha"),
        flat(base(str(cell.words["data"]), full=as_large_as_printed(cell))),
    )
    return " ".join(
        f"{k}={v}" for k, v in flat(cell.words).items() if k not in in_its_name and v != usual.get(k)
    )


def base_name(method: str) -> str:
    """A method's name without its form and options."""
    return method.partition("(")[0].partition(":")[0]
