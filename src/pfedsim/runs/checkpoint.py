"""A run's checkpoints. Each save writes the changed parts of the state to one file, then a manifest that
commits it. The newest intact checkpoint counts.

    checkpoint/state-00010.safetensors    the full state after round 10
               delta-00011.safetensors    the parts that round 11 changed
               00011.json                 the manifest: these two files, the lengths of the logs, and every sha256

Deltas are applied on reading, so there is nothing to undo after an interrupted save. Once they are larger than
the full state, the full state is written again. The last manifest of the previous full state is kept in case
the new one gets damaged."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedsim import durable, seal
from pfedsim.core.server import State
from pfedsim.durable import Bytes, Log, verify
from pfedsim.errors import Error
from pfedsim.runs.names import CHECKPOINT, TIMINGS, is_ours
from pfedsim.runs.state import from_tensors, parts, tensor_of

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "pfedsim checkpoint 1"
MOST_DELTAS = 50
Record = dict[str, Any]
Marks = Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Found:
    """An intact checkpoint."""

    state: State
    record: Record
    name: str


class Saver:
    """Saves checkpoints in a background thread while the next round runs. If rounds are faster than the disk,
    only the newest state is saved and the run never waits."""

    def __init__(self, run: Path, logs: Sequence[Log], before: Found | None = None):
        self._run, self._logs = run, logs
        self._folder = run / CHECKPOINT
        durable.refuse_link(self._folder)
        self._folder.mkdir(exist_ok=True)
        self._saved: dict[str, Any] = {}
        self._chain: list[Record] = []
        self._manifests = [(before.name, before.record["state"])] if before else []
        self._marks = {before.name: marks_of(before.state)} if before else {}  # by manifest
        self._saving: list[Marks] = []
        self._turn = threading.Condition()
        self._waiting: tuple[State, Record] | None = None
        self._ending = False
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="pfedsim-checkpoint", daemon=True)
        self._thread.start()
        self.saves = 0

    def save(self, state: State, record: Mapping[str, Any]) -> None:
        """Queue the state and its record for saving. Raises the error of an earlier save that failed."""
        with self._turn:
            self._raise()
            self._waiting = state, {**record, "logs": {log.name: log.mark() for log in self._logs}}
            self._turn.notify()

    def marks(self) -> list[Marks]:
        """The memories that others hold for the states that this run may be resumed from: those on disk, the one
        that is being written, and the queued one."""
        with self._turn:
            queued = marks_of(self._waiting[0]) if self._waiting else []
            return [*(mark for marks in self._marks.values() for mark in marks), *self._saving, *queued]

    def close(self) -> None:
        """Wait until the last queued state is on disk."""
        with self._turn:
            self._ending = True
            self._turn.notify()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _work(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._waiting is not None or self._ending)
                if self._waiting is None:
                    return
                (state, record), self._waiting = self._waiting, None
                self._saving = marks_of(state)
            try:
                self._commit(state, record)
            except Exception as error:  # raised in the run's thread by save or close
                with self._turn:
                    self._failed, self._waiting, self._ending = error, None, True

    def _commit(self, state: State, record: Record) -> None:
        now = parts(state)
        number = f"{state.server.round:05d}"
        full = (
            not self._chain
            or len(self._chain) > MOST_DELTAS
            or sum(f["bytes"] for f in self._chain[1:]) > self._chain[0]["bytes"]
        )
        before = {} if full else self._saved
        # torch counts in-place changes of a tensor in _version
        marks = {name: (part, getattr(part, "_version", 0)) for name, part in now.items()}
        changed = {
            name: tensor_of(part)
            for name, (part, version) in marks.items()
            if not _same(before.get(name), part, version)
        }
        chunks = packed(changed)
        name = f"{'state' if full else 'delta'}-{number}.safetensors"
        digest = durable.write(self._folder / name, *chunks)
        entry = {
            "file": name,
            "bytes": sum(len(c) for c in chunks),
            "sha256": digest,
            "gone": sorted(before.keys() - now.keys()),
        }
        self._chain = [entry] if full else [*self._chain, entry]
        for log in self._logs:
            log.flush()
        others = {"elsewhere": dict(state.elsewhere)} if state.elsewhere else {}
        if state.best is not None and state.best.elsewhere:
            others["best_elsewhere"] = dict(state.best.elsewhere)
        content = {"round": state.server.round, **record, **others, "state": self._chain}
        durable.write(self._folder / f"{number}.json", sealed(content))
        self._saved = marks
        self._manifests.insert(0, (f"{number}.json", self._chain))
        self._forget()
        with self._turn:
            self._marks[f"{number}.json"] = marks_of(state)
            kept = {name for name, _ in self._manifests}
            self._marks = {name: marks for name, marks in self._marks.items() if name in kept}
        self.saves += 1

    def _forget(self) -> None:
        """Delete all files except those of this manifest, the one before it, and the newest one that starts from
        another full state."""
        first, *others = self._manifests
        on_another = [m for m in others if m[1][0] != first[1][0]]
        self._manifests = [first, *others[:1], *(m for m in on_another[:1] if m not in others[:1])]
        needed = {name for name, _ in self._manifests} | {
            entry["file"] for _, chain in self._manifests for entry in chain
        }
        for path in self._folder.iterdir():
            if path.name not in needed and is_ours(f"{CHECKPOINT}/{path.name}"):
                path.unlink()


def _same(saved: tuple[Any, int] | None, part: Any, version: int) -> bool:
    return saved is not None and saved[0] is part and saved[1] == version


def latest(run: Path, config: str) -> tuple[Found | None, list[str]]:
    """The newest intact checkpoint of the configuration with this sha256, and what is wrong with newer ones."""
    wrong: list[str] = []
    for path in sorted((run / CHECKPOINT).glob("*.json"), reverse=True):
        try:
            record = read(path)
            if record["files"].get("config.toml") != config:
                raise Error(f"{path} belongs to another run or configuration")
            return Found(_state(run, record), record, path.name), wrong
        except Error as error:
            wrong.append(str(error))
    return None, wrong


def read(path: Path) -> Record:
    """Load a manifest and check its sha256."""
    record = seal.load(path, "a checkpoint's manifest")
    if record.get("format") != FORMAT:
        raise Error(f"{path} is not a checkpoint's manifest ({FORMAT!r} expected)")
    return record


def _state(run: Path, record: Record) -> State:
    """Load the state that a manifest describes, after checking every file that it names."""
    for name, mark in record["logs"].items():
        if name != TIMINGS:  # no result depends on it
            verify(run / name, mark["sha256"], mark["bytes"])
    for name, digest in record["files"].items():
        if name != "partition.json":  # it can be computed again
            verify(run / name, digest)
    for entry in record["state"]:
        verify(run / CHECKPOINT / entry["file"], entry["sha256"])
    state = from_tensors(_tensors(run / CHECKPOINT, record["state"]))
    best = state.best and replace(state.best, elsewhere=_by_client(record.get("best_elsewhere", {})))
    return replace(state, elsewhere=_by_client(record.get("elsewhere", {})), best=best)


def marks_of(state: State) -> list[Marks]:
    """The memories that others hold for this state, and for the best one within it."""
    return [one.elsewhere for one in (state, state.best) if one is not None and one.elsewhere]


def _by_client(marks: Mapping[str, str]) -> Marks:
    """Marks by client, from JSON, whose keys are texts."""
    return {int(client): mark for client, mark in marks.items()}


def _tensors(folder: Path, chain: Sequence[Record]) -> dict[str, Tensor]:
    """The newest tensor of every name. Files are read newest first, so no tensor is loaded twice."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    gone: set[str] = set()
    for entry in reversed(chain):
        with safe_open(folder / entry["file"], "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name not in found and name not in gone:
                    found[name] = file.get_tensor(name)
        gone |= set(entry["gone"])
    return found


def sealed(record: Record) -> bytes:
    """A manifest's bytes, including its own sha256."""
    return seal.sealed({"format": FORMAT, **record}).encode()


def packed(tensors: Mapping[str, Tensor]) -> list[Bytes]:
    """The bytes of a safetensors file, without copying any tensor: a state may fill half the memory."""
    import torch

    kinds = {
        torch.float32: "F32",
        torch.float64: "F64",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
    header: dict[str, Any] = {}
    bodies: list[Bytes] = []
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        if end > at:
            bodies.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *bodies]
