"""The library in two verbs: `federate` deals data to clients, `train` runs a method on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedsim.core.method import Method
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.methods import settings_of
from pfedsim.runs import config as configs
from pfedsim.runs.execute import Watch, execute
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate as deal


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
    for word in federation.asked.keys() & settings.keys():
        default = federation.clients if word == "clients" else getattr(federation.data.defaults, word, None)
        dealt = default if federation.asked[word] is None else federation.asked[word]
        if settings[word] not in (None, dealt):
            raise Error(
                f"{word} = {settings[word]!r}: this federation was dealt with {dealt!r}; another one is "
                f"made by federate({word}=...)"
            )
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
