"""The command line. Commands parse their arguments, call the library and print the result."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.cli.options import Address as Address
    from pfedsim.cli.options import Drift as Drift
    from pfedsim.cli.options import EngineName as EngineName
    from pfedsim.cli.options import assigned as assigned
    from pfedsim.cli.options import check_engine as check_engine
    from pfedsim.cli.options import listed as listed
    from pfedsim.cli.options import numbers as numbers
    from pfedsim.cli.side_by_side import watching_several as watching_several

_later, __getattr__, _ = public(
    __name__,
    {
        "pfedsim.cli.options": "Address Drift EngineName assigned check_engine listed numbers",
        "pfedsim.cli.side_by_side": "watching_several",
    },
)
__all__ = ["MARKED", "Interrupted", "Terminated", "main", "stoppable", *_later]


MARKED = 3  # exit code of a finished run that had incidents
# what torch, and the loader of a library, say when there is no memory
NO_MEMORY = ("can't allocate memory", "failed to map segment", os.strerror(errno.ENOMEM))


class Interrupted(BaseException):
    """Ctrl-C, with a hint on how to continue. A KeyboardInterrupt would be handled by click."""


class Terminated(BaseException):
    """SIGTERM."""


@contextmanager
def stoppable(then: Callable[[], str]) -> Iterator[None]:
    """Add a hint on how to continue to Ctrl-C, SIGTERM and the loss of standard output."""
    from pfedsim.cli.output import Lost

    try:
        yield
    except Lost as lost:
        raise Lost(lost.error, then()) from None
    except KeyboardInterrupt:
        raise Interrupted(then()) from None
    except Terminated:
        raise Terminated(then()) from None


def _terminated(*_: Any) -> None:
    raise Terminated


def main() -> None:
    """The `pfedsim` command. What the user can put right is one sentence and exit code 2 (docs/exit-codes.md);
    PFEDSIM_DEBUG=1 shows the traceback."""
    from pfedsim.cli import output

    signal.signal(signal.SIGTERM, _terminated)
    try:
        output.open_streams()
        from pfedsim.cli.app import app

        try:
            app()
        except (SystemExit, Exception):
            sys.stdout.flush()
            raise
    except (KeyboardInterrupt, Interrupted, Terminated) as stop:
        output.complain(f"stopped{stop.args[0] if stop.args else ''}")
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    except output.Lost as lost:
        output.give_up()
        output.complain(lost)
        sys.exit(lost.code)
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None or os.environ.get("PFEDSIM_DEBUG"):
            raise
        output.complain(sentence)
        sys.exit(2)


def _sentence(error: Exception) -> str | None:
    """An error that the user can put right, in words; None for a bug."""
    from pfedsim.errors import Error

    if isinstance(error, Error):
        return str(error)
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        why = " ".join(str(error).split())[:200]
        return f"out of memory ({why}); close other programs, or use fewer --workers or a smaller --batch"
    if os.strerror(errno.EMFILE) in str(error):  # also the message of an ImportError
        return "too many open files: raise the limit with `ulimit -n 1024`, or use fewer --workers"
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return f"no more processes or threads can be started ({error.strerror}); use fewer --workers"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None
