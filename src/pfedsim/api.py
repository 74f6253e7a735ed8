"""The library in three verbs: `federate` deals data to clients, `train` runs a method on them, `compare`
several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.core.method import Method
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.methods import settings_of
from pfedsim.runs import config as configs
from pfedsim.runs.execute import Progress, Watch, execute
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate as deal

if TYPE_CHECKING:
    from pfedsim.experiments.compare import Comparison


def federate(data: str | DataSet = "digits", **settings: Any) -> Federation:
    """The clients of a data set, by its name or file, or itself; `settings` as on the command line:
    clients, alpha, partition, minimum, test, partition_seed, ..."""
    if isinstance(data, DataSet):
        return deal(configs.check({"data": data.name, **settings}), data=data)
    return deal(configs.check({"data": data, **settings}))


def train(
    federation: Federation,
    method: str | Method = "pfedsim",
    out: str | Path | None = None,
    watch: Watch | None = None,
    resume: bool = False,
    **settings: Any,
) -> Run:
    """Runs `method` on the federation; `settings` as on the command line: rounds, join, epochs, lr, seed,
    ... Without `out` the run's folder lives as long as the result; with `resume` a run that was stopped in
    `out` goes on."""
    if not isinstance(federation, Federation):
        raise Error(
            f"train needs a federation, as federate({federation!r}) gives, not {type(federation).__name__}"
        )
    _as_dealt(federation, settings)
    words = {**federation.asked, **settings}
    words |= settings_of(method) if isinstance(method, Method) else {"method": method}
    if isinstance(words.get("model"), type):
        words["model"] = f"{words['model'].__module__}:{words['model'].__qualname__}"
    return execute(
        configs.check(words),
        None if out is None else Path(out),
        federation,
        watch,
        resume=resume and out is not None,
    )


def compare(
    federation: Federation,
    methods: Sequence[str] = ("local", "fedavg", "pfedsim"),
    seeds: Sequence[int] = (42,),
    out: str | Path | None = None,
    watch: Callable[[str, Progress], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Runs every method with every seed on the federation, Local-Only always among them; `settings` as for
    `train`. Finished runs in `out` are reused; without `out` the runs live as long as the result. `watch` is
    told the name of a run and its progress."""
    from pfedsim.experiments.compare import compare as run_all

    if not isinstance(federation, Federation):
        raise Error(
            f"compare needs the federation that federate(...) returns, not {type(federation).__name__}"
        )
    _as_dealt(federation, settings)
    config = configs.check({**federation.asked, **settings})
    return run_all(config, methods, seeds, None if out is None else Path(out), watch, federation)


def _as_dealt(federation: Federation, given: Mapping[str, Any]) -> None:
    """Refuses a setting that contradicts how the federation was dealt."""
    for word in federation.asked.keys() & given.keys():
        default = federation.clients if word == "clients" else getattr(federation.data.defaults, word, None)
        dealt = default if federation.asked[word] is None else federation.asked[word]
        if given[word] not in (None, dealt):
            raise Error(
                f"{word} = {given[word]!r}: this federation was dealt with {dealt!r}; another one is "
                f"made by federate({word}=...)"
            )
