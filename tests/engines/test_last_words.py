import subprocess
import sys

import pytest

BEGIN = (
    "import os, signal; from pfedsim.engines.last_words import LastWords; words = LastWords('so it ends'); "
)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("os._exit(1)", True),
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("words.withdraw()", False),
        ("pass", False),
        ("os.kill(words._process.pid, signal.SIGKILL); words._process.wait(); words.withdraw()", False),
    ],
)
def test_they_are_said_unless_they_are_withdrawn(then: str, said: bool) -> None:
    out = subprocess.run([sys.executable, "-c", BEGIN + then], capture_output=True, text=True, timeout=60)
    assert out.stderr == ("\nso it ends\n" if said else "")
