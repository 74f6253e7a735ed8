"""Standard output as commands need it: what it cannot encode is escaped, and a write that fails ends the command with
one sentence."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Any, TextIO

from pfedsim import escape
from pfedsim.errors import Error

_before: list[TextIO] = []  # what standard output was: it would close the file if nothing kept it


class Lost(BaseException):
    """Standard output cannot be written. Not an OSError, which click and rich would handle in their own ways."""

    def __init__(self, error: OSError, then: str = ""):
        super().__init__(error, then)
        self.error, self.then = error, then

    @property
    def code(self) -> int:
        """The exit code; a shell reports 141 for a program that SIGPIPE ended."""
        return 141 if self.error.errno == errno.EPIPE else 2

    def __str__(self) -> str:
        what = "nobody reads it" if self.error.errno == errno.EPIPE else self.error.strerror
        return f"standard output cannot be written: {what}{self.then}"


class _Stream(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise Lost(error) from None


def open_streams() -> None:
    """Take over the standard streams. A closed one would give its number to the next file that is opened."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (they live as long as the process)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise Error("standard output is closed; send it to a file, or to /dev/null")
    logging.getLogger("PIL").setLevel(
        logging.CRITICAL
    )  # what it says of a damaged picture is in our sentence
    _before.append(sys.stdout)
    raw = _Stream(sys.stdout.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), sys.stdout.encoding, "backslashreplace", line_buffering=sys.stdout.isatty()
    )


def give_up() -> None:
    """Let what is still in the buffers of standard output go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def complain(sentence: object) -> None:
    """Print an error, if there is somebody to read it."""
    try:
        print(f"pfedsim: {escape.visible(sentence, keep=chr(10))}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
