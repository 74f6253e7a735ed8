"""`--help`: groups, defaults, allowed values and the settings without an option."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from pfedsim.cli.app import app
from pfedsim.cli.options import GROUPS
from pfedsim.core.settings import Dropouts
from pfedsim.data.readers import cifar10, digits
from pfedsim.runs.config import TABLES, Config, Score


def entries(*command: str) -> dict[str, tuple[str, str]]:
    """Group and text of every entry in a command's help."""
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100"}).output
    found: dict[str, tuple[str, str]] = {}
    group = name = ""
    for line in shown.splitlines():
        if re.fullmatch(r"[A-Z].*:", line):
            group = line[:-1]
        elif entry := re.match(r"  (\S+)", line):
            name = entry[1]
            found[name] = (group, line[2:].removeprefix(name).strip())
        elif name:
            found[name] = (group, f"{found[name][1]} {line.strip()}")
    return found


def test_every_setting_stands_in_one_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(Config.model_fields) - {*TABLES, "options", "digests"})
    shown = entries("run")
    assert shown["--lr"][0] == "Training"
    assert shown["--alpha"][0] == "Data and partition"
    assert shown["--method"][0] == "Method and model"
    assert shown["--workers"][0] == "Engine"
    assert shown["--out"][0] == "Output"


@pytest.mark.parametrize("setting", ["rounds", "clients", "minimum"])
def test_defaults_that_depend_on_the_data_are_those_of_the_data(setting: str) -> None:
    small, large = (getattr(module.DEFAULTS, setting) for module in (digits, cifar10))
    said = f"default: the data set's, {small} for digits, {large} for cifar10"
    assert said in entries("run")[f"--{setting}"][1]


def test_defaults_and_allowed_values_are_shown() -> None:
    shown = {name: text for name, (_, text) in entries("run").items()}
    assert "[above 0, at most 1; default: 1 for up to 10 clients, 0.5 for up to 29" in shown["--join"]
    assert "[above 0; default: 0.1, 2 for 'quantity']" in shown["--alpha"]
    assert "[local, shared; default: local]" in shown["--buffers"]
    assert "[at least 2; default: 32]" in shown["--batch"]
    assert "default: off" in shown["--shuffle"]


def test_settings_without_an_option_are_listed() -> None:
    shown = entries("run")
    for table, model in (("score", Score), ("dropouts", Dropouts)):
        for key, field in model.model_fields.items():
            group, text = shown[f"{table}.{key}"]
            assert group == "Settings without an option"
            assert text.startswith(field.description or "?")


def test_the_file_and_lists_are_explained() -> None:
    shown = {name: text for name, (_, text) in entries("run").items()}
    assert "settings from a file; options override them" in shown["CONFIG.toml"]
    assert "[a list such as 3,7]" in shown["dropouts.late_clients"]


def test_a_range_of_seeds_is_documented() -> None:
    assert "42,43 or 42-44" in entries("compare")["--seeds"][1]
