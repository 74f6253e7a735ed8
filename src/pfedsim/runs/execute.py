"""Executes a run: prepares it or picks it up where it stopped, and returns it finished."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfedsim.data.federation import Federation
from pfedsim.durable import flush_folder, locked, make_folder
from pfedsim.errors import Error, Notice
from pfedsim.runs.config import Config
from pfedsim.runs.execution import Execution, OnRound, Progress, Watch, check_on_round
from pfedsim.runs.names import refuse_links, remove_checkpoint
from pfedsim.runs.reader import Run, has_begun, is_run_folder, load_config
from pfedsim.runs.resume import Stopped, damage, reopen, stopped
from pfedsim.runs.setup import Distant, one_thread, prepare
from pfedsim.runs.space import room


def execute(
    config: Config | None,
    out: Path | None = None,
    federation: Federation | Distant | None = None,
    watch: Watch | None = None,
    *,
    on_round: OnRound | None = None,
    resume: bool = False,
    allow_drift: bool = False,
    **place: Any,
) -> Run:
    """Runs what the configuration asks for and returns the finished run; `out` None: a folder that lives as
    long as the result, and is not saved. `resume`: a stopped run in `out` goes on, and without a
    configuration it goes on with its own; `place`: see `stopped`."""
    check_on_round(on_round)
    watch, keep = watch or (lambda _: None), None
    if out is None:
        keep = tempfile.TemporaryDirectory(prefix="pfedsim-")
        out = Path(keep.name)
    else:
        _refuse_foreign(out, resume)
        refuse_links(out)
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        if resume and (config is None or has_begun(out)):
            load_config(out)  # before anything is touched
        began = resume and (out / "config.toml").is_file()
        if began:
            stack.enter_context(locked(out))
        flaw = damage(out) if began else None
        finished = flaw == ""
        if not finished or config is not None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", Notice)
                if began:
                    was = stopped(config, out, federation, allow_drift, **place)
                else:
                    assert config is not None
                    was = Stopped(prepare(config, federation, allow_drift=allow_drift))
                server = was.begin()
        if not finished:
            told = stack.enter_context(tracked(was.session.config, out, watch))
        if not began:  # only now: invalid input and a tracker that cannot start create no folder
            stack.enter_context(_taken(out))
        if not finished:
            was.notes.extend([reopen(out, flaw), room(was.session, out)])
            notices = [str(w.message) for w in caught if w.category is Notice]
            execution = Execution(was, out, told, notices, on_round, saves=keep is None)
            with closing(execution):
                execution.run(server)
        remove_checkpoint(out)
    known = None if isinstance(federation, Distant) else federation
    return Run(out, keep, known, trust=not finished)  # its code has just been run


def _refuse_foreign(out: Path, resume: bool) -> None:
    """Refuses a place that holds anything but a run to resume."""
    if out.exists() and not out.is_dir():
        raise Error(f"{out} is a file; choose another folder")
    ours = resume and out.is_dir() and (has_begun(out) or is_run_folder(out))
    if out.exists() and any(out.iterdir()) and not ours:
        raise Error(f"{out} exists and is not empty; choose another folder")


@contextmanager
def _taken(out: Path) -> Iterator[None]:
    """A new folder, locked."""
    make_folder(out)
    with locked(out):
        flush_folder(out)  # a run's folder is recognised by its lock
        if (out / "config.toml").is_file():
            raise Error(f"{out} was taken by another process meanwhile; choose another folder")
        yield


@contextmanager
def tracked(config: Config, out: Path, watch: Watch) -> Iterator[Watch]:
    """A watcher that also tells the tracker, where one is asked for, what the folder says after every
    round."""
    if config.track is None:
        yield watch
        return
    from pfedsim.track.follow import Follower

    last = Progress("", 0, 0, float("nan"), None, None)
    follower = Follower(config.track, config, out, lambda note: watch(replace(last, note=note)))

    def both(now: Progress) -> None:
        nonlocal last
        last = now
        watch(now)
        follower.look()

    try:
        yield both
    except BaseException:
        follower.close(failed=True)
        raise
    follower.close(failed=False)
