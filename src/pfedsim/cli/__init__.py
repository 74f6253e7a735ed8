"""The command line: thin skins that parse, call and print."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """`pfedsim`: an error of the user's is one sentence and exit code 2; PFEDSIM_DEBUG=1 shows the traceback instead."""
    from pfedsim.errors import Error

    try:
        from pfedsim.cli.app import app

        app()
    except Error as error:
        if os.environ.get("PFEDSIM_DEBUG"):
            raise
        print(f"pfedsim: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("pfedsim: stopped; the run's folder is unfinished", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if os.environ.get("PFEDSIM_DEBUG") or error.filename is None:
            raise
        print(f"pfedsim: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
