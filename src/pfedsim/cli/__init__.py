"""The command line. Commands parse their arguments, call the library and print the result."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pfedsim.lazy import public

if TYPE_CHECKING:
    from pfedsim.cli.options import assigned as assigned
    from pfedsim.cli.options import listed as listed
    from pfedsim.cli.options import numbers as numbers
    from pfedsim.cli.side_by_side import watching_several as watching_several

_later, __getattr__, _ = public(
    __name__,
    {
        "pfedsim.cli.options": "assigned listed numbers",
        "pfedsim.cli.side_by_side": "watching_several",
    },
)
__all__ = ["Interrupted", "Terminated", "main", "stoppable", *_later]


class Interrupted(BaseException):
    """Ctrl-C, with a hint on how to continue. A KeyboardInterrupt would be handled by click."""


class Terminated(BaseException):
    """SIGTERM."""


@contextmanager
def stoppable(then: Callable[[], str]) -> Iterator[None]:
    """Add a hint on how to continue to Ctrl-C and SIGTERM."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(then()) from None
    except Terminated:
        raise Terminated(then()) from None


def _terminated(*_: Any) -> None:
    raise Terminated


def main() -> None:
    """The `pfedsim` command. A user error prints one sentence and exits with code 2 (docs/exit-codes.md);
    PFEDSIM_DEBUG=1 shows the traceback."""
    from pfedsim.errors import Error

    signal.signal(signal.SIGTERM, _terminated)
    try:
        from pfedsim.cli.app import app

        app()
    except Error as error:
        if os.environ.get("PFEDSIM_DEBUG"):
            raise
        print(f"pfedsim: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, Interrupted, Terminated) as stop:
        print(f"pfedsim: stopped{stop.args[0] if stop.args else ''}", file=sys.stderr)
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    except OSError as error:
        if os.environ.get("PFEDSIM_DEBUG") or error.filename is None:
            raise
        print(f"pfedsim: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
