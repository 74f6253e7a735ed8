"""Calls of a method's hooks: who failed, for whom and where, and who changed what it was given."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim.core.method import Method
from pfedsim.core.purity import same_process, unchanged
from pfedsim.errors import Diverged, Error, HookError, Impure, Unreadable

if TYPE_CHECKING:
    from pfedsim.core.job import Job


def at(job: Job | None, round: int | None = None) -> str:
    """For whom and when a hook was called. People count rounds from 1."""
    if job is not None and job.message.task == "score":
        return f" for client {job.client} when it was scored after round {job.round}"
    if job is not None:
        return f" for client {job.client} in round {job.round + 1}"
    return "" if round is None else f" in round {round + 1}"


@contextmanager
def hook(
    method: Method, name: str, job: Job | None = None, round: int | None = None, **given: Any
) -> Iterator[None]:
    """Names method, hook, client, round and line when a hook fails, or when it changes what it is `given`."""
    turn, who = (round or 0) if job is None else job.round, f"{type(method).__name__}.{name}"
    try:
        # of every step is too often: `core.client` looks at the process around all of them
        process = nullcontext() if name in ("gradient", "loss") else same_process(who + at(job, round))
        with process, unchanged(who + at(job, round), turn, **given):
            yield
    except (HookError, Impure, Unreadable):
        raise
    except BaseException as error:
        if _is_a_stop(error):
            raise
        if isinstance(error, Error) and job is None:
            raise
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, FrozenInstanceError):
            what = (
                f"{error}: a method holds no state; return it in ServerState.extra, or keep it at the "
                "client with job.remember(theta, name=tensor)"
            )
        kind = Diverged if isinstance(error, FloatingPointError) else HookError
        raise kind(
            f"{who} failed{at(job, round)}{_line(error)}: {what} (PFEDSIM_DEBUG=1 shows more)"
        ) from error


def _is_a_stop(error: BaseException) -> bool:
    """Whether an error means the whole process, not this hook: Ctrl-C, and what the command line raises for signals
    and a lost output. Others of this kind, such as asyncio's CancelledError, are the hook's own."""
    ours = not isinstance(error, Exception) and type(error).__module__.partition(".")[0] == "pfedsim"
    return ours or isinstance(error, KeyboardInterrupt)


def _line(error: BaseException) -> str:
    """Where in the author's file it failed: the innermost line outside pfedsim and other libraries."""
    ours = (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"], "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    foreign = [f for f in frames if "site-packages" not in f.filename]
    return f" ({foreign[-1].filename.rpartition('/')[2]}, line {foreign[-1].lineno})" if foreign else ""
