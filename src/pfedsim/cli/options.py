"""The settings as command-line options: made from the configuration's fields, so that the words are the
same everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedsim.data import check_name
from pfedsim.errors import Error
from pfedsim.methods import literal
from pfedsim.runs import config as configs
from pfedsim.runs.config import Config

NOT_OPTIONS = {"score", "dropouts", "options", "digests"}
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the result's place")]
Json = Annotated[bool, typer.Option("--json", help="print the summary as JSON, and nothing else")]


def with_settings(
    *leave_out: str, file: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command CONFIG.toml, an option for every setting and --set; it receives them checked, as
    `config`. Without `file`, the options alone."""
    names = [name for name in Config.model_fields if name not in NOT_OPTIONS and name not in leave_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())

        def wrapped(**given: Any) -> None:
            config_file, assignments = given.pop("config_file", None), given.pop("assignments", None)
            settings = {name: given.pop(name) for name in names}
            command(config=_gathered(config_file, settings, assignments or []), **given)

        first = inspect.Parameter(
            "config_file",
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", show_default=False)],
        )
        assignments = inspect.Parameter(
            "assignments",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[str] | None,
                typer.Option(
                    "--set",
                    metavar="KEY=VALUE",
                    help="any setting: score.finetune=0, dropouts.never=0.1, pfedsim.rho=0.3, ...",
                ),
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


def _parameter(name: str) -> inspect.Parameter:
    field = Config.model_fields[name]
    flag = "--" + name.replace("_", "-")
    shown = "" if field.default is None or name == "data_dir" else f" [default: {field.default}]"
    text = (field.description or "") + shown
    if field.annotation is bool:
        annotation: Any = Annotated[
            bool | None,
            typer.Option(flag + "/--no-" + name.replace("_", "-"), help=text, show_default=False),
        ]
    else:
        metavar = next(
            (m for kind, m in (("int", "N"), ("float", "X")) if kind in str(field.annotation)), "TEXT"
        )
        annotation = Annotated[
            str | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)
        ]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _gathered(file: Path | None, settings: dict[str, Any], assignments: list[str]) -> Config:
    """The file's settings, the options over them, --set over both."""
    values = configs.load(file) if file else {}
    for name, value in settings.items():
        if value is not None:
            values[name] = value
    assigned(values, assignments)
    config = configs.check(values)
    check_name(config.data, config.data_dir)
    return config


def assigned(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """The values with every KEY=VALUE of --set over them."""
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise Error(f"--set {assignment!r} should read KEY=VALUE")
        configs.assign(values, key.strip(), literal(value.strip()))
    return values


def listed(text: str) -> list[str]:
    """Splits at commas outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def numbers(text: str) -> list[int]:
    """Whole numbers and ranges of them: 42,43 or 42-44."""
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
                f"--seeds {text!r}: seeds are whole numbers separated by commas, or a range such as 42-44"
            )
        found += range(int(first), int(last or first) + 1)
    return found
