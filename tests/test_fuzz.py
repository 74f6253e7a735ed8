"""A short form of benchmarks/fuzz.py: no file and no configuration ends in a traceback."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


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
