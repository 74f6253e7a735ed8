"""What a worker can be asked to do, by name: an engine ships the name, never a function."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pfedsim.core.client import run_client
from pfedsim.core.engine import Absent, Done, failed
from pfedsim.core.job import Work, Worker
from pfedsim.core.method import Memory, Reply
from pfedsim.core.scoring import ClientScore, score_client
from pfedsim.core.wire import is_finite
from pfedsim.errors import Error, HookError, Unreadable

if TYPE_CHECKING:
    from torch import Tensor

TRAIN, SCORE = "train", "score"


def perform(worker: Worker, task: str, work: Work, memory: Memory) -> tuple[Done | Absent, Memory | None]:
    """The result, and with "train" what the client remembers; Absent where the client's data cannot be read or its
    work fails. What is wrong with the run itself is raised."""
    wall, used = time.perf_counter(), time.process_time()
    result: Reply | ClientScore
    remembered: Memory | None = None
    flaw = ""
    try:
        if task == TRAIN:
            result, remembered = run_client(worker, work, memory)
            flaw = _flaw(remembered)
        elif task == SCORE:
            result = score_client(worker, work, memory)
        else:
            raise Error(f"a worker knows no task {task!r}: it trains and scores")
    except Unreadable as error:
        return Absent(work.client, str(error)), None
    except HookError as error:
        return failed(work.client, str(error), error), None
    except Error:
        raise
    except Exception as error:
        return failed(work.client, f"its work failed: {type(error).__name__}: {error}", error), None
    took = time.perf_counter() - wall, time.process_time() - used
    return Done(work.client, result, *took, flaw), remembered


def _flaw(memory: Memory) -> str:
    """What is wrong with a memory; the loop never sees it, so it is checked where the client is."""
    for name, tensor in _tensors(memory):
        if not is_finite(tensor):
            return f"what the client keeps is not finite ({name})"
    return ""


def _tensors(memory: Memory) -> Iterator[tuple[str, Tensor]]:
    if memory.kept is not None:
        yield "its kept entries", memory.kept
    yield from memory.extra.items()
