"""benchmarks/mutants.py on a project of two files."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "mutants.py"
MUTANTS = """
[[group]]
file = "src/sums.py"
tests = ["tests/test_sums.py"]
[[group.mutant]]
name = "subtracts"
old = "a + b"
new = "a - b"
[[group.mutant]]
name = "loses-the-sign"
old = "return a"
new = "return abs(a)"
[[group.mutant]]
name = "swaps"
old = "a + b"
new = "b + a"
because = "sums commute"
"""


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a small project in place of this one."""
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)
    spec.loader.exec_module(module)
    for name, text in {
        "src/sums.py": "def total(a, b):\n    return a + b\n",
        "tests/test_sums.py": "from sums import total\n\n\ndef test_total():\n    assert total(1, 2) == 3\n",
        "paper/README": "",
        "docs/README": "",
        "pyproject.toml": "",
        "benchmarks/mutants.toml": MUTANTS,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def called(harness: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--jobs", "1", *words])
    with pytest.raises(SystemExit) as ended:
        harness.main()
    return ended.value.code


def test_bugs_are_put_into_a_copy_and_the_score_is_told(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = harness.ROOT / "src/sums.py"
    before = source.stat().st_mtime_ns
    assert called(harness, monkeypatch) == 1  # one is not caught
    said = capsys.readouterr().out
    assert "| subtracts | src/sums.py | caught by tests/test_sums.py::test_total |" in said
    assert "| loses-the-sign | src/sums.py | NOT CAUGHT |" in said
    assert "| swaps | src/sums.py | changes nothing: sums commute |" in said
    assert "1 of 2 mutants are caught; 1 more changes nothing." in said
    assert source.stat().st_mtime_ns == before
    found = json.loads((harness.ROOT / "benchmarks/mutants.json").read_text())
    assert {name: result["caught_by"] for name, result in found.items()} == {
        "subtracts": "tests/test_sums.py::test_total",
        "loses-the-sign": "",
        "swaps": "",
    }


def test_a_second_call_runs_what_has_changed(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(harness, monkeypatch, "--only", "subtracts") == 0
    monkeypatch.setattr(harness, "failure", lambda *_: "another test")
    assert called(harness, monkeypatch, "--only", "subtracts") == 0
    assert "another test" not in capsys.readouterr().out
    test = harness.ROOT / "tests/test_sums.py"
    test.write_text(test.read_text() + "    assert total(-1, 0) == -1\n")
    monkeypatch.setattr(harness, "failure", lambda place, tests: "" if isinstance(tests, list) else "now")
    assert called(harness, monkeypatch, "--only", "subtracts") == 0
    assert "caught by now" in capsys.readouterr().out


def test_tests_that_cannot_be_imported_have_noticed_nothing(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutants = harness.ROOT / "benchmarks/mutants.toml"
    mutants.write_text(mutants.read_text().replace('new = "a - b"', 'new = "a +"'))
    said = str(called(harness, monkeypatch, "--only", "subtracts"))
    assert said.startswith("pytest cannot run tests/test_sums.py: it ended with 2")


@pytest.mark.parametrize(
    ("words", "change", "says"),
    [
        (
            [],
            ("a + b", "b + a"),
            "mutant subtracts: its old text occurs 0 times in src/sums.py, expected once",
        ),
        ([], ("a + b", "a + b  # a + b"), "mutant subtracts: its old text occurs 2 times in src/sums.py"),
        (["--only", "x"], ("", ""), "no mutant has 'x' in its name"),
        ([], ("a + b", "a + b - 1"), "tests/test_sums.py::test_total fails without any bug: mend it first"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(
    harness: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    change: tuple[str, str],
    says: str,
) -> None:
    source = harness.ROOT / "src/sums.py"
    source.write_text(source.read_text().replace(*change) if change[0] else source.read_text())
    assert str(called(harness, monkeypatch, *words)).startswith(says)


def test_every_bug_fits_the_code() -> None:
    mutants = tomllib.loads(SCRIPT.with_suffix(".toml").read_text())["group"]
    texts = {
        (group["file"], mutant["name"]): (ROOT / group["file"]).read_text().count(mutant["old"])
        for group in mutants
        for mutant in group["mutant"]
    }
    assert {where: count for where, count in texts.items() if count != 1} == {}
    assert all((ROOT / test.partition("::")[0]).exists() for group in mutants for test in group["tests"])
