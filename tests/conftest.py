"""One thread, as in a run, and property tests that draw the same examples every time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from pfedsim.federation import Federation
from pfedsim.runs.config import check
from pfedsim.runs.session import federate

torch.set_num_threads(1)
settings.register_profile("same", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("same")


@pytest.fixture(scope="session")
def digits() -> Federation:
    """Six clients with uneven shares of the digits."""
    return federate(check({"clients": 6, "alpha": 0.5, "minimum": 40}))
