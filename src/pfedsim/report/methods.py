"""Describe a method: its options, its paper, what it sends and keeps (measured), and pitfalls in other code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pfedsim.core.method import Method
from pfedsim.dev.anatomy import anatomy
from pfedsim.methods import METHODS, OTHERS, TWELVE, make, name_of

STAGES = {"warm": "warm-up: ", "": ""}


def options(kind: type[Method]) -> list[tuple[str, str, str]]:
    """Name, default and meaning of every option."""
    hints = get_type_hints(kind, include_extras=True)
    return [(f.name, _short(f.default), _meaning(hints[f.name])) for f in fields(kind)]


def describe(kind: type[Method]) -> str:
    """The method as Markdown. Numbers of parameters are measured with LeNet5, 3 x 32 x 32, ten classes."""
    found = anatomy(make(kind, {}))
    lines = [
        f"## {kind.title or kind.__name__}",
        "",
        " ".join((kind.__doc__ or "").split()),
        "",
        f"Paper: {kind.paper or 'not named'}",
    ]
    if rows := options(kind):
        lines += [
            "",
            "| option | default | what it is |",
            "|---|---|---|",
            *(f"| `{n}` | `{d}` | {w} |" for n, d, w in rows),
        ]
    name = name_of(kind)
    if kind.presets:
        lines += [""]
        lines += [
            f"`{name}:{p}` sets {', '.join(f'`{k}={_short(v)}`' for k, v in o.items())}."
            for p, o in kind.presets.items()
        ]
    if kind.search:
        tried = (f"`{k}` = {', '.join(_short(v) for v in values)}" for k, values in kind.search.items())
        rate = "" if kind.rate == "lr" else f" `{kind.rate}`"
        lines += ["", f"Tuning tries the learning rate{rate}, and {' and '.join(tried)}."]
    lines += ["", "| | parameters |", "|---|---|"]
    for wave in found.waves:
        task = "" if wave.task == "train" else f"{wave.task}, "
        what = STAGES.get(wave.stage, wave.stage + ": ") + task
        lines += [
            f"| {what}a client receives | {_counts(wave.down)} |",
            f"| {what}a client sends | {_counts(wave.up)} |",
        ]
    lines += [
        f"| the server keeps | {_counts(found.server)} |",
        f"| a client keeps | {_counts(found.client)} |",
    ]
    if kind.elsewhere:
        lines += ["", f"Other implementations: {kind.elsewhere}"]
    return "\n".join(lines) + "\n"


def page() -> str:
    """All methods as Markdown, for docs/methods.md."""
    head = (
        "# The methods\n\nWritten by `pfedsim methods --markdown`. Numbers of parameters are counted in "
        "messages of a real run "
        "(LeNet5, 3 x 32 x 32, ten classes: 62,050 parameters and 44 norm statistics; twelve clients, "
        "six a round, eight rounds).\n\n"
        f"The pFedSim paper compares {_titles(TWELVE)} (`--methods paper`). Others are {_titles(OTHERS)}; "
        "`--methods all` names both groups.\n\n"
    )
    return head + "\n".join(describe(kind) for kind in METHODS.values())


def _titles(group: Mapping[str, type[Method]]) -> str:
    titles = [kind.title for kind in group.values()]
    return " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))


def _counts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sizes.items()) or "nothing"


def _meaning(hint: Any) -> str:
    words = next((note for note in get_args(hint) if isinstance(note, str)), "")
    inside = get_args(hint)[0] if get_args(hint) else hint
    choices = get_args(inside) if get_origin(inside) is Literal else ()
    return words + (f" ({' or '.join(map(str, choices))})" if choices else "")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
