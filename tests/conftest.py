"""One thread, as in a run, and property tests that draw the same examples every time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from pfedsim.data.federation import Federation
from pfedsim.runs.config import check
from pfedsim.runs.setup import federate

torch.set_num_threads(1)
settings.register_profile("same", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache."""
    before = os.environ.get("PFEDSIM_CACHE")
    os.environ["PFEDSIM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["PFEDSIM_CACHE"]
    else:
        os.environ["PFEDSIM_CACHE"] = before


@pytest.fixture(scope="session")
def digits() -> Federation:
    """Six clients with uneven shares of the digits."""
    return federate(check({"clients": 6, "alpha": 0.5, "minimum": 40}))
