"""One bad client ends nothing: every kind of benchmarks/replies.py, at the client and straight at the server."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replies.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_replies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REPLIES = _loaded()
CASES = [(kind, way) for kind in REPLIES.KINDS for way in REPLIES.ways(kind) if way != "worker"]


@pytest.fixture(scope="module")
def harness():
    return REPLIES.Harness()


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_one_bad_client_ends_nothing(harness, kind: str, way: str) -> None:
    what, _ = harness.outcome(kind, way)
    assert what == ("accepted" if kind in REPLIES.ACCEPTED else "left out")


@pytest.mark.parametrize(
    "kind", ["reply is None", "model of bfloat16", "memory is a function", "begin exits"]
)
def test_a_worker_process_contains_it_as_well(harness, kind: str) -> None:
    assert harness.outcome(kind, "worker") == harness.outcome(kind, "client")
