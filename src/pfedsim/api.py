"""The library in two verbs: `federate` deals data to clients, `train` runs a method on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.core.method import Method
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.tables import given as tables
from pfedsim.errors import Error
from pfedsim.methods import METHODS, parse, settings_of
from pfedsim.runs import config as configs
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import OnRound, Watch
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate as deal
from pfedsim.runs.unused import refuse_unused

if TYPE_CHECKING:
    from pfedsim.dev.conformance import Result
    from pfedsim.experiments.compare import Comparison
    from pfedsim.experiments.sweep import Sweep


def federate(data: Any = "digits", **settings: Any) -> Federation:
    """The clients of a data set, by its name or file, or itself; or of a table: a pandas DataFrame, the files of
    several parties, or a dictionary of DataFrames by party, with label, client, drop, missing, na and types as for
    `pfedsim data add`. `settings` as on the command line: clients, alpha, partition, minimum, test, partition_seed,
    ..."""
    of_table = {name: settings.pop(name) for name in tables.OPTIONS if name in settings}
    if of_table or not isinstance(data, (str, Path, DataSet)):
        data = tables.read(data, **of_table)
    given = _nested(settings)
    for word in configs.Config.model_fields.keys() & given.keys() - set(configs.OF_FEDERATION):
        raise Error(f"{word} is a setting of a run, not of a federation: give it to train or compare")
    config = configs.check({"data": data.name if isinstance(data, DataSet) else str(data), **given})
    refuse_unused(given, config)
    return deal(config, data=data if isinstance(data, DataSet) else None)


def train(
    federation: Federation,
    method: str | Method = "pfedsim",
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    watch: Watch | None = None,
    resume: bool = False,
    allow_drift: bool = False,
    **settings: Any,
) -> Run:
    """Runs `method` on the federation; `settings` as on the command line: rounds, join, epochs, lr, seed,
    ..., and those with a dot as a dictionary: `**{"score.finetune": 0}`. Without `out` the run's folder
    lives as long as the result; with `resume` a run that was stopped in `out` goes on. `allow_drift`: even if code,
    software or hardware differ from before, or on the nodes of a cluster from here.

    `on_round(round, scores, state)` is called after every round, the last one included, with the scores of all
    clients (None where the round was not scored: see `score.every`) and the server's state, to be read.
    `watch(progress)` hears what the command line shows: every round's loss and accuracy, and notes."""
    given, chosen = _nested(settings), _method(method)
    for table in given.keys() & chosen.keys():
        raise Error(f"{table} = {given[table]!r}: set the options of a method object when you make it")
    config = _config(federation, {**given, **chosen})
    refuse_unused(given, config)
    place = None if out is None else Path(out)
    how: dict[str, Any] = {"resume": resume and out is not None, "allow_drift": allow_drift}
    return execute(config, place, federation, watch, on_round=on_round, **how)


def compare(
    federation: Federation,
    methods: Sequence[str | Method] = ("local", "fedavg", "pfedsim"),
    seeds: Sequence[int] = (42,),
    out: str | Path | None = None,
    watch: Watch | None = None,
    rerun: Sequence[str] = (),
    allow_drift: bool = False,
    tune: int = 0,
    **settings: Any,
) -> Comparison:
    """Runs every method with every seed on the federation; `settings` as for `train`. In `out` finished runs
    are reused, except those of the methods in `rerun`, and stopped ones continue; without it the folder lives
    as long as the result. With `engine="ray"` whole runs go onto the cluster, one per core; `allow_drift`: also
    onto nodes with other software or hardware. With `tune=9` the settings of every method are first chosen by nine
    trials each, on validation parts."""
    from pfedsim.experiments.compare import compare as run_all

    if isinstance(methods, (str, Method)) or not methods:
        raise Error(f"compare takes a list of methods, such as ['fedavg', 'pfedsim'], not {methods!r}")
    if not isinstance(seeds, Sequence) or not all(isinstance(seed, int) for seed in seeds):
        raise Error(f"compare takes a list of seeds, such as [42, 43], not {seeds!r}")
    for word, instead in (("method", "methods"), ("seed", "seeds")):
        if word in settings:
            raise Error(f"compare takes {instead} = [...], not {word} = {settings[word]!r}")
    given, specs = _nested(settings), [_spec(method) for method in methods]
    config = _config(federation, given)
    refuse_unused(given, config, specs)
    place = None if out is None else Path(out)
    return run_all(config, specs, list(seeds), place, watch, federation, rerun, allow_drift, tune)


def sweep(
    federation: Federation,
    method: str | Method = "pfedsim",
    over: Mapping[str, Any] | None = None,
    trials: int | None = None,
    sampler: str = "random",
    prune: float | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
    allow_drift: bool = False,
    **settings: Any,
) -> Sweep:
    """Runs `method` with every combination of `over`, such as `{"lr": [0.01, 0.03], "pfedsim.rho": [0.3, 0.5]}`, or
    with `trials` of them, then also from ranges such as `"0.001..0.1:log"`. Trials are judged on validation parts,
    never on test parts; `sweep(...).best.settings` is what `train` takes. The worse half ends after the share `prune`
    of the rounds (None: a quarter). `sampler`: random, or optuna. Other arguments as for `compare`."""
    from pfedsim.experiments.sweep import sweep as run_all

    if not isinstance(over, Mapping) or not over:
        raise Error(f"sweep takes over = {{'lr': [0.01, 0.03]}}, the settings to vary, not {_short(over)}")
    given, chosen = _nested(settings), _method(method)
    config = _config(federation, {**given, **chosen})
    refuse_unused(given, config)
    place = None if out is None else Path(out)
    how: dict[str, Any] = {"trials": trials, "sampler": sampler, "prune": prune, "watch": watch}
    return run_all(config, over, place, federation, **how, allow_drift=allow_drift)


def check(method: str | Method) -> list[Result]:
    """Holds a method to what every method must do, as `pfedsim check` does: a result for each check, with
    the reason in `why` where it failed."""
    from pfedsim.dev.conformance import check as run_checks

    return run_checks(parse(method) if isinstance(method, str) else _object(method))


def _config(federation: Federation, given: dict[str, Any]) -> configs.Config:
    """The configuration of a run on this federation."""
    if not isinstance(federation, Federation):
        raise Error(f"expected the federation that federate(...) returns, not {_short(federation)}")
    _as_dealt(federation, given)
    model = {"model": _model(given["model"])} if "model" in given else {}
    return configs.check({**federation.asked, **given, **model})


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


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of a dotted name (`score.finetune`) in their tables."""
    tables = {name: dict(v) if isinstance(v, Mapping) else v for name, v in settings.items()}
    values = {name: value for name, value in tables.items() if "." not in name}
    for name in tables.keys() - values.keys():
        configs.assign(values, name, tables[name])
    return values


def _method(method: str | Method) -> dict[str, Any]:
    """The settings that describe this method."""
    if isinstance(method, str):
        return {"method": method}
    kind = type(_object(method))
    if kind not in METHODS.values():
        _importable(kind)
    return settings_of(method)


def _object(method: Any) -> Method:
    """Refuses what is no method object."""
    if isinstance(method, Method):
        return method
    if isinstance(method, type):
        raise Error(
            f"expected a method object or name, not the class {method.__name__}: write {method.__name__}()"
        )
    raise Error(f"expected the name of a method or a pfedsim.Method object, not {_short(method)}")


def _spec(method: str | Method) -> str:
    """A method with its options, as it is written on the command line."""
    if isinstance(method, str):
        return method
    name = _method(method)["method"]
    return f"{name}({', '.join(f'{f.name}={getattr(method, f.name)!r}' for f in fields(method))})"


def _model(model: Any) -> str | None:
    """The name of a network that was given by its name or class."""
    if model is None or isinstance(model, str):
        return model
    if not isinstance(model, type):
        raise Error(
            f"model takes a name such as lenet5 or a class, not {_short(model)}: give the class itself; it is "
            "made with the arguments shape and classes"
        )
    _importable(model)
    return f"{model.__module__}:{model.__qualname__}"


def _importable(kind: type[Any]) -> None:
    """Refuses a class that whoever reads the run's folder could not import."""
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        where = "a script or notebook" if kind.__module__ == "__main__" else "a function"
        raise Error(
            f"{kind.__name__} is defined in {where}, where nobody who reads the run can import it: put it in a "
            f"file, say mine.py, and name it 'mine.py:{kind.__name__}' or import it from there"
        )


def _short(value: Any) -> str:
    """What an object is, without its contents."""
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")
