"""Refuse settings that have no effect on the run, because a user who sets them expects one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from pfedsim.core.settings import LABEL_FLIP
from pfedsim.errors import Error
from pfedsim.methods import METHODS, label, parse
from pfedsim.runs.config import Config, table_of

PARTITIONS = {  # setting -> the partitions that use it
    "alpha": ("dirichlet", "dirichlet-plain", "quantity"),
    "classes_each": ("classes",),
    "shards_each": ("shards",),
    "clients_each": ("domain",),
}
NEVER_DEFAULT = ("classes_each", "shards_each")  # their partitions are no data set's default
NO_MEAN = ("local", "fedfomo", "fedamp", "pfedgraph")  # methods that a robust mean cannot change
IN_PARTITION_FILE = (*PARTITIONS, "minimum", "test")


def refuse_unused(given: Mapping[str, Any], config: Config, methods: Sequence[str] = ()) -> None:
    """Raise an error for the first setting of `given` that has no effect on a run of `config`.

    `given`: the options and arguments; settings from a configuration file are not checked, because a file may
    serve several runs. `methods`: the methods of a comparison."""
    asked = {name: value for name, value in given.items() if value is not None}
    if config.partition is not None and config.partition.endswith(".json"):
        settled = IN_PARTITION_FILE if config.unseen else (*IN_PARTITION_FILE, "partition_seed")
        _refuse(
            asked, config, settled, f"the partition {config.partition}, which lists every client's samples"
        )
    for name, kinds in PARTITIONS.items():
        by_default = config.partition is None and name in NEVER_DEFAULT
        if by_default or config.partition not in (None, *kinds):
            partition = (
                "the data set's default partition" if by_default else f"the partition {config.partition!r}"
            )
            _refuse(asked, config, (name,), f"{partition}; it is for {', '.join(kinds)}")
    if config.device != "cpu":
        _refuse(
            asked,
            config,
            ("workers", "time_limit"),
            f"the device {config.device!r}, which uses a single process",
        )
    if config.engine != "ray":
        _refuse(asked, config, ("address",), f"the engine {config.engine or 'pool'!r}; it is for ray")
    if config.engine == "serial":
        _refuse(
            asked, config, ("workers", "time_limit"), "the engine 'serial', which uses a single process"
        )
    run = methods or [config.method]
    used = {table_of(method) for method in run}
    if config.buffers == "local" and "buffers" in asked:
        made = [parse(method, config.options) for method in run]
        if all(method.buffers == "shared" for method in made):
            names = " and ".join(label(method) for method in made)
            raise Error(f"buffers = 'local' has no effect on {names}: norm statistics are averaged")
    _refuse_harmless(asked, config, used)
    _refuse_by_rule(asked, config, used)
    for name, options in asked.items():
        if isinstance(options, Mapping) and name in METHODS and name not in used:
            option, value = next(iter(options.items()), ("", ""))
            which = (
                f"methods {', '.join(run)}: leave it out, or add"
                if methods
                else f"method {run[0]!r}: leave it out, or choose"
            )
            raise Error(f"{name}.{option} = {value!r} has no effect on the {which} the method {name}")


def _refuse_harmless(asked: Mapping[str, Any], config: Config, methods: Set[str]) -> None:
    """Refuse attacks and defences that none of these methods notices."""
    attack = config.attack if "attack" in asked else None
    if attack is not None and attack.kind == LABEL_FLIP and "strength" in asked["attack"]:
        raise Error(f"attack.strength has no effect on the attack {LABEL_FLIP!r}")
    if attack is not None and attack.kind != LABEL_FLIP and methods <= {"local"}:
        raise Error(
            f"attack.kind = {attack.kind!r} has no effect on the method local, which sends no model"
        )
    if config.defence is not None and "defence" in asked and methods <= set(NO_MEAN):
        names = " and ".join(sorted(methods))
        raise Error(
            f"defence.rule = {config.defence.rule!r} has no effect on {names}: no mean of the clients' models is taken"
        )


RULES: dict[str, dict[str, tuple[str, ...]]] = {  # setting of a table -> the rules that use it
    "optimiser": {"betas": ("adam",), "epsilon": ("adam",), "nesterov": ("sgd",)},
    "schedule": {"floor": ("cosine",), "every": ("step",), "factor": ("step",)},
    "server_optimiser": {"momentum": ("momentum",), "betas": ("adam", "yogi"), "tau": ("adam", "yogi")},
}


def _refuse_by_rule(asked: Mapping[str, Any], config: Config, methods: Set[str]) -> None:
    """Refuse what the chosen optimiser or schedule does not use."""
    for table, uses in RULES.items():
        chosen = getattr(config, table)
        for name in asked.get(table, ()) if chosen is not None else ():
            if chosen.rule not in uses.get(name, (chosen.rule,)):
                fit = " and ".join(uses[name])
                raise Error(f"{table}.{name} has no effect on the rule {chosen.rule!r}; it is for {fit}")
    if config.server_optimiser is not None and "server_optimiser" in asked and methods <= set(NO_MEAN):
        names = " and ".join(sorted(methods))
        raise Error(
            f"server_optimiser.rule = {config.server_optimiser.rule!r} has no effect on {names}: there is no common "
            "model"
        )


def refuse_unused_by_default(config: Config, partition: str) -> None:
    """Raise an error if alpha is set and `partition`, the default of the data, does not use it."""
    kinds = PARTITIONS["alpha"]
    if config.partition is None and partition not in kinds and config.alpha is not None:
        default = f"the partition {partition!r}, the default of these data"
        _refuse({"alpha": config.alpha}, config, ("alpha",), f"{default}; it is for {', '.join(kinds)}")


def _refuse(asked: Mapping[str, Any], config: Config, names: tuple[str, ...], beside: str) -> None:
    for name in names:
        if name in asked:
            raise Error(f"{name} = {getattr(config, name)!r} has no effect with {beside}")
