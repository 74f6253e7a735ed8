"""Short forms of benchmarks/fuzz.py and raw_tables.py: no file and no configuration ends in a traceback, and no message
shows a cell."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    return script("fuzz")


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSIM_MEMORY", "512M")
    monkeypatch.setenv("PFEDSIM_CACHE", str(tmp_path / "cache"))


def test_files(fuzz: ModuleType) -> None:
    pytest.importorskip("pyarrow")
    found = [fuzz.one_file(number, seed=1) for number in range(120)]
    assert not [words for _, outcome, words in found if outcome == "traceback"]
    assert {"read", "refused"} == {outcome for _, outcome, _ in found}
    assert all(words.count("\n") == 0 for _, outcome, words in found if outcome == "refused")


def test_configurations(fuzz: ModuleType, tmp_path: Path) -> None:
    data = fuzz.samples(tmp_path / "samples.npz")
    found = [fuzz.one_configuration(number, 1, data) for number in range(80)]
    assert not [words for _, outcome, words in found if outcome == "traceback"]
    assert {"run", "refused"} == {outcome for _, outcome, _ in found}


def test_a_traceback_is_seen(fuzz: ModuleType) -> None:
    outcome, words = fuzz._outcome(lambda: {}["missing"], "read")
    assert outcome == "traceback"
    assert "KeyError" in words


def test_raw_tables() -> None:
    outcomes = script("raw_tables").measure(25, number=1)["outcomes"]
    assert set(outcomes) == {"made", "refused"}


def test_a_cell_in_a_message_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pfedsim.data.tables import problems

    raw_tables = script("raw_tables")
    good = b"age,label\n" + b"91827,qzx\n918273,qzy\n" * 6
    assert raw_tables.outcome(tmp_path, [good], {}) == ["made"]
    bad = b"age,label\n" + b"91827,qzx\n918273,qzx\n" * 6
    assert raw_tables.outcome(tmp_path, [bad], {}) == ["refused"]
    monkeypatch.setattr(
        problems, "of", lambda files: [f"it holds {files.words('age', files.sheets[0])[0]}"]
    )
    assert raw_tables.outcome(tmp_path, [good], {})[1:] == ["it holds 91827"] * 2
