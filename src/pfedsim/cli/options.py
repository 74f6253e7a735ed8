"""Command-line options for all settings, generated from the fields of the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperCommand

from pfedsim.cli.progress import say_code
from pfedsim.data import check_name
from pfedsim.errors import Error
from pfedsim.methods import METHOD_GROUPS, literal
from pfedsim.runs import config as configs
from pfedsim.runs.config import TABLES, Config
from pfedsim.runs.names import TIMINGS
from pfedsim.runs.unused import refuse_unused

GROUPS = {
    "Method and model": ("method", "model", "pretrained", "head"),
    "Data and partition": (
        *("data", "data_dir", "size", "clients", "partition", "alpha", "classes_each", "shards_each"),
        *("clients_each", "minimum", "test", "unseen", "partition_seed"),
    ),
    "Training": (
        *("rounds", "planned", "join", "epochs", "local_steps", "batch", "lr", "lr_decay", "momentum"),
        *("decay", "buffers", "shuffle", "validation", "seed"),
    ),
    "Engine": ("backend", "device", "engine", "address", "workers", "time_limit", "guard"),
    "Output": ("track", "state"),
}
MOST_SEEDS = 10_000
# settings allowed with --extend
EXTENDS = ("rounds", "engine", "address", "workers", "time_limit", "data_dir", "track", "state")
PLACE = ("engine", "address", "workers", "time_limit", "data_dir", "track")
Drift = Annotated[
    bool,
    typer.Option(
        "--allow-drift",
        help="continue with other code, software or hardware than before, or on nodes of a cluster that differ, and "
        "record it",
    ),
]
EngineName = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="serial, pool or ray, as in pfedsim run")
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="of a Ray cluster, as in pfedsim run")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only the folder of the result")]
Json = Annotated[bool, typer.Option("--json", help="print only the summary, as JSON")]
OUTPUT, OTHER, SWEEP = "Output", "Settings without an option", "Sweep"
FILE = "settings from a file; options override them; or a protocol by its name: pfllib"
SET = "set any setting; may be given several times"
DEFAULTS = {
    "model": "the data set's, lenet5 for images, mobilenetv2 for large ones, mlp for tables, cnn1d for signals",
    "pretrained": "random weights",
    "data_dir": "$PFEDSIM_DATA, else ./data",
    "size": "as stored",
    "clients": "the data set's, 20 for digits, 100 for cifar10",
    "partition": "the data set's, dirichlet for digits and cifar10, given where the data name their clients",
    "alpha": "0.1, 2 for 'quantity'",
    "shards_each": "2",
    "minimum": "the data set's, 10 for digits, 40 for cifar10",
    "unseen": "none",
    "rounds": "the data set's, 20 for digits, 200 for cifar10",
    "join": "1 for up to 10 clients, 0.5 for up to 29, 0.1 for more; 1 for up to 50 that the data name",
    "planned": "rounds",
    "engine": "pool with several workers, else serial",
    "address": "a Ray of its own on this machine",
    "workers": "all cores",
    "time_limit": "3600 with several workers, none with one",
    "track": "none",
}
"""defaults of the settings whose default is None, in words"""


class Grouped(TyperCommand):
    """A command whose help groups its options by `rich_help_panel`, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        sections |= {group: [] for group in (SWEEP, *GROUPS, OTHER)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                group = "Arguments" if argument else getattr(parameter, "rich_help_panel", None) or OUTPUT
                sections[group].append(record)
        if sections[OTHER]:
            sections[OTHER] += _keys_of_set()
        for group, records in sections.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def with_settings(
    *leave_out: str, file: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add CONFIG.toml, an option for every setting and --set to a command, which receives the checked settings as
    `config`. Without `file`, only the options are added."""
    names = [name for group in GROUPS.values() for name in group if name not in leave_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())

        def wrapped(**given: Any) -> None:
            config_file, assignments = given.pop("config_file", None), given.pop("assignments", None)
            settings = {name: given.pop(name) for name in names}
            methods = specs(given["methods"]) if "methods" in given else []
            if given.get("extend") is not None:
                _only_what_extends(config_file, settings, assignments or [])
            config = _gathered(config_file, settings, assignments or [], methods, given.get("out"))
            command(config=config, **given)

        first = inspect.Parameter(
            "config_file",
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[
                Path | None, typer.Argument(metavar="CONFIG.toml", help=FILE, show_default=False)
            ],
        )
        assignments = inspect.Parameter(
            "assignments",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[str] | None,
                typer.Option("--set", metavar="KEY=VALUE", help=SET, rich_help_panel=OTHER),
            ],
        )
        parameters = [*(p for p in own if p.name != "config"), *map(_parameter, names)]
        if file:
            parameters = [first, *parameters, assignments]
        ordered = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        wrapped.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in ordered}
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        return wrapped

    return decorate


def check_engine(engine: str | None, address: str | None) -> None:
    """Refuse an engine that there is not, an address without the engine that needs it, and Ray if it is missing."""
    given = {name: value for name, value in (("engine", engine), ("address", address)) if value is not None}
    refuse_unused(given, configs.read(given))
    if engine == "ray":
        from pfedsim.engines.actors import require

        require(address)


def _only_what_extends(file: Path | None, settings: dict[str, Any], assignments: list[str]) -> None:
    """Refuse settings that an extended run takes from the original run."""
    given = [name for name, value in settings.items() if value is not None and name not in EXTENDS]
    extra = [str(file)] * (file is not None) + [f"--{n.replace('_', '-')}" for n in given]
    extra += [f"--set {a}" for a in assignments]
    if extra:
        raise Error(f"{extra[0]} cannot be used with --extend: the run keeps its settings")


def _parameter(name: str) -> inspect.Parameter:
    field = Config.model_fields[name]
    flag = "--" + name.replace("_", "-")
    group = next(group for group, names in GROUPS.items() if name in names)
    shown: dict[str, Any] = {"help": _help(name, field), "show_default": False, "rich_help_panel": group}
    if field.annotation is bool:
        annotation: Any = Annotated[
            bool | None, typer.Option(flag + "/--no-" + name.replace("_", "-"), **shown)
        ]
    else:
        metavar = next(
            (m for kind, m in (("int", "N"), ("float", "X")) if kind in str(field.annotation)), "TEXT"
        )
        annotation = Annotated[str | None, typer.Option(flag, metavar=metavar, **shown)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(name: str, field: FieldInfo) -> str:
    """The field's description, the values it allows and its default."""
    default = DEFAULTS.get(name, field.default)
    if isinstance(default, bool):
        default = "on" if default else "off"
    facts = [_allowed(field), "" if default in (None, (), PydanticUndefined) else f"default: {default}"]
    if not any(facts):
        return field.description or ""
    return f"{field.description} [{'; '.join(filter(None, facts))}]"


def _allowed(field: FieldInfo) -> str:
    """The values or the range that a field allows, unless its description names them."""
    if get_origin(field.annotation) is Literal:
        words = ", ".join(map(str, get_args(field.annotation)))
        return "" if words in (field.description or "") else words
    if get_origin(field.annotation) is tuple:
        return "a list such as 3,7"
    signs = (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
    limits = [
        f"{sign} {value}"
        for attribute, sign in signs
        for limit in field.metadata
        if (value := getattr(limit, attribute, None)) is not None
    ]
    return ", ".join(limits)


def _keys_of_set() -> list[tuple[str, str]]:
    """The settings that have no option and need --set."""
    found = [
        (f"{table}.{key}", _help(f"{table}.{key}", field))
        for table, model in TABLES.items()
        for key, field in model.model_fields.items()
    ]
    return [
        *found,
        ("METHOD.OPTION", "an option of the method, as in pfedsim.rho=0.3 (pfedsim methods NAME)"),
    ]


def _gathered(
    file: Path | None,
    settings: dict[str, Any],
    assignments: list[str],
    methods: list[str],
    out: Path | None = None,
) -> Config:
    """Merge the settings: options override the file, --set overrides both. `out`: the folder of the run."""
    options = {name: value for name, value in settings.items() if value is not None}
    values = assigned({**(configs.load(file) if file else {}), **options}, assignments)
    for folder in (out, file and file.parent):
        if folder is not None and (folder / TIMINGS).is_file():  # an earlier run, perhaps somebody else's
            say_code(configs.read(values), folder)
    config = configs.check(values)
    refuse_unused(assigned(dict(options), assignments), config, methods)
    check_name(config.data, config.data_dir)
    return config


def assigned(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The values, updated with every KEY=VALUE of --set."""
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise Error(f"--set {assignment!r} should have the form KEY=VALUE")
        configs.assign(values, key.strip(), literal(value.strip()))
    return values


def specs(text: str) -> list[str]:
    """The methods named in --methods."""
    found = [method for word in listed(text) for method in METHOD_GROUPS.get(word, (word,))]
    if not found:
        raise Error("--methods names no method: give paper, all, or names separated by commas")
    return found


def listed(text: str) -> list[str]:
    """Split the text at commas outside parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def numbers(text: str) -> list[int]:
    """Parse integers and ranges: 42,43 or 42-44."""
    found: list[int] = []
    for part in listed(text):
        first, _, last = part.partition("-")
        if (
            not first.isdecimal()
            or not (last or first).isdecimal()
            or int(last or first) < int(first)
            or part.endswith("-")
        ):
            raise Error(
                f"--seeds {text!r}: seeds are integers separated by commas, or a range such as 42-44"
            )
        if int(last or first) - int(first) >= MOST_SEEDS:
            raise Error(f"--seeds {text!r}: at most {MOST_SEEDS:,} seeds in a range")
        found += range(int(first), int(last or first) + 1)
    return found
