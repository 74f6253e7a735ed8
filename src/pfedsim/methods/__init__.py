"""The methods by name. A method is written as `name`, `name:preset`, `file.py:Class` or `module:Class`,
optionally with options: `pfedsim(rho=0.3)`."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from pfedsim.core.method import Method
from pfedsim.errors import Error, nearest
from pfedsim.methods.apfl import APFL
from pfedsim.methods.cwfedavg import CwFedAvg
from pfedsim.methods.ditto import Ditto
from pfedsim.methods.fedala import FedALA
from pfedsim.methods.fedamp import FedAMP
from pfedsim.methods.fedap import FedAP
from pfedsim.methods.fedavg import FedAvg
from pfedsim.methods.fedavgft import FedAvgFT
from pfedsim.methods.fedavgm import FedAvgM
from pfedsim.methods.fedbabu import FedBABU
from pfedsim.methods.fedbn import FedBN
from pfedsim.methods.fedcp import FedCP
from pfedsim.methods.feddbe import FedDBE
from pfedsim.methods.feddyn import FedDyn
from pfedsim.methods.fedfomo import FedFomo
from pfedsim.methods.fedgen import FedGen
from pfedsim.methods.fedpac import FedPAC
from pfedsim.methods.fedper import FedPer
from pfedsim.methods.fedprox import FedProx
from pfedsim.methods.fedrep import FedRep
from pfedsim.methods.fedrod import FedRoD
from pfedsim.methods.gpfl import GPFL
from pfedsim.methods.knnper import KNNPer
from pfedsim.methods.local import LocalOnly
from pfedsim.methods.moon import Moon
from pfedsim.methods.perfedavg import PerFedAvg
from pfedsim.methods.pfedgraph import PFedGraph
from pfedsim.methods.pfedsim import PFedSim
from pfedsim.methods.scaffold import Scaffold
from pfedsim.methods.two_stage import TwoStage
from pfedsim.plugin import load_class, refuse_file

__all__ = [
    "APFL",
    "GPFL",
    "METHODS",
    "METHOD_GROUPS",
    "OTHERS",
    "TWELVE",
    "CwFedAvg",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAP",
    "FedAvg",
    "FedAvgFT",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedCP",
    "FedDBE",
    "FedDyn",
    "FedFomo",
    "FedGen",
    "FedPAC",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedRoD",
    "KNNPer",
    "LocalOnly",
    "Moon",
    "PFedGraph",
    "PFedSim",
    "PerFedAvg",
    "Scaffold",
    "TwoStage",
    "label",
    "literal",
    "make",
    "name_of",
    "parse",
    "settings_of",
]

TWELVE: dict[str, type[Method]] = {  # which the pFedSim paper compares
    "local": LocalOnly,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "feddyn": FedDyn,
    "fedgen": FedGen,
    "fedbn": FedBN,
    "perfedavg": PerFedAvg,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedfomo": FedFomo,
    "fedap": FedAP,
    "pfedsim": PFedSim,
}
OTHERS: dict[str, type[Method]] = {
    "fedavgft": FedAvgFT,
    "fedavgm": FedAvgM,
    "scaffold": Scaffold,
    "ditto": Ditto,
    "apfl": APFL,
    "fedbabu": FedBABU,
    "fedala": FedALA,
    "fedpac": FedPAC,
    "fedamp": FedAMP,
    "pfedgraph": PFedGraph,
    "moon": Moon,
    "fedrod": FedRoD,
    "fedcp": FedCP,
    "gpfl": GPFL,
    "feddbe": FedDBE,
    "cwfedavg": CwFedAvg,
    "knnper": KNNPer,
}
METHODS: dict[str, type[Method]] = {**TWELVE, **OTHERS}
METHOD_GROUPS: dict[str, tuple[str, ...]] = {
    "paper": tuple(TWELVE),
    "all": tuple(METHODS),
}  # as in --methods paper


def parse(spec: str, tables: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
    """The method that `spec` describes. `tables`: options by method name; options in the spec override them."""
    match = re.fullmatch(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", spec)
    if match is None:
        raise Error(
            f"{spec!r} is not a method: write name, name:preset or file.py:Class, optionally with (option=value)"
        )
    kind, preset = _kind(match[1])
    options = {**preset, **(tables or {}).get(name_of(kind), {}), **_options(spec, match[2] or "")}
    return make(kind, options)


def make(kind: type[Method], options: Mapping[str, Any]) -> Method:
    """Make a method of this class. The error for an unknown option suggests the nearest name."""
    known = [option.name for option in fields(kind)]
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "it has no options"
            raise Error(f"{name_of(kind)} has no option {option!r}; {hint}")
    missing = [
        f.name
        for f in fields(kind)
        if f.default is MISSING and f.default_factory is MISSING and f.name not in options
    ]
    if missing:
        raise Error(
            f"{name_of(kind)} needs the option {missing[0]!r}: write {name_of(kind)}({missing[0]}=...)"
        )
    return kind(**options)


def name_of(kind: type[Method]) -> str:
    """The name of a method's class, also of the table of its options."""
    return next((name for name, known in METHODS.items() if known is kind), kind.__name__.lower())


def settings_of(method: Method) -> dict[str, Any]:
    """The settings that describe this method object: its name and a table of its options."""
    kind = type(method)
    spec = name_of(kind) if kind in METHODS.values() else f"{kind.__module__}:{kind.__qualname__}"
    return {"method": spec, name_of(kind): {f.name: getattr(method, f.name) for f in fields(method)}}


def label(method: Method) -> str:
    """The method's title with the options that differ from the defaults, which distinguishes variants."""
    given = {
        f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default
    }
    kind = type(method)
    title = kind.title if "title" in vars(kind) and kind.title else kind.__name__
    for preset, options in kind.presets.items():
        if given and given == {k: v for k, v in options.items() if v != _default(kind, k)}:
            return f"{title}:{preset}"
    inside = ", ".join(f"{k}={v}" for k, v in given.items())
    return title + (f"({inside})" if inside else "")


def _default(kind: type[Method], option: str) -> Any:
    return next(f.default for f in fields(kind) if f.name == option)


def _kind(name: str) -> tuple[type[Method], Mapping[str, Any]]:
    base, _, preset = name.partition(":")
    if base in METHODS:
        kind = METHODS[base]
        if preset and preset not in kind.presets:
            hint = nearest(preset, kind.presets) if kind.presets else "it has none"
            raise Error(f"{base} has no preset {preset!r}; {hint}")
        return kind, kind.presets[preset] if preset else {}
    if ":" not in name:
        refuse_file(name)
        raise Error(f"there is no method {name!r}; {nearest(name, METHODS)} (your own: file.py:Class)")
    kind = load_class(name, "method")
    if not issubclass(kind, Method):
        raise Error(f"{name} is not a pfedsim.Method")
    _refuse_slips(kind)
    return kind, {}


def _refuse_slips(kind: type[Method]) -> None:
    """Raise an error for a misspelt hook or a missing decorator, which would otherwise have no effect."""
    hooks = [name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")]
    for name, value in vars(kind).items():
        inherited = any(hasattr(base, name) for base in kind.__bases__)
        if callable(value) and not name.startswith("_") and not inherited:
            close = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
            if close:
                raise Error(f"{kind.__name__}.{name} is not a hook; did you mean {close[0]!r}?")
    if "__dataclass_params__" not in vars(kind):
        raise Error(
            f"{kind.__name__} is not a frozen dataclass and has no options: write @dataclass(frozen=True) above it"
        )


def _options(spec: str, inside: str) -> dict[str, Any]:
    options = {}
    for part in filter(None, (p.strip() for p in re.split(r",(?![^(]*\))", inside))):
        key, equals, value = part.partition("=")
        if not equals:
            raise Error(f"{spec!r}: {part!r} should have the form option=value")
        options[key.strip()] = literal(value.strip())
    return options


def literal(text: str) -> Any:
    """Parse a number, true, false, or a quoted or bare word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
