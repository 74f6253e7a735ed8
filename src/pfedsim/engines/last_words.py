"""A sentence for the user that is said even if this process ends without a chance to say it. Ray ends a driver at
once when the node that it runs on dies, from outside Python."""

from __future__ import annotations

import atexit
import contextlib
import subprocess


class LastWords:
    """Waits in a process of its own, which sees when this one is gone."""

    def __init__(self, words: str):
        waits = ["sh", "-c", 'read -r all_is_well || printf "\\n%s\\n" "$0" >&2', words]
        self._process = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        atexit.register(self.withdraw)  # an end by Python's own rules says what there is to say

    def withdraw(self) -> None:
        """Nothing is to be said: this process goes on, or says it itself."""
        atexit.unregister(self.withdraw)
        with contextlib.suppress(OSError):  # it may have been interrupted together with this process
            self._process.communicate(b"\n")
