"""Whether a run's folder is whole: every file against its sha256, what was saved of a stopped run, and
nothing that is not its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pfedsim.data import partition as partitions
from pfedsim.errors import Error
from pfedsim.runs.checkpoint import FOLDER, latest
from pfedsim.runs.durable import TEMPORARY, Busy, digest_of, held, verify
from pfedsim.runs.reader import BASE, FINAL, LOGS, MAY_DIFFER, PREDICTIONS, SUMS, Run, stated, sums_of

EXPECTED = (
    "config.toml",
    "partition.json",
    "summary.json",
    PREDICTIONS,
    "models/index.json",
    f"models/{BASE}",
    *LOGS,
)


@dataclass
class Findings:
    """What an examination found: how many files were held against their sha256, what is wrong, and the
    run's state in a sentence."""

    state: str = ""
    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def holds(self, check: Callable[[], object]) -> bool:
        """Whether the check passes; what it says otherwise is kept."""
        try:
            check()
            return True
        except Error as error:
            self.wrong.append(str(error))
            return False


def examine(run: Path) -> Findings:
    """All that can be told from the folder alone."""
    found = Findings()
    if not (run / "timings.jsonl").is_file():
        stated(run)
        found.wrong.append(f"{run / 'timings.jsonl'} is missing; no result depends on it")
    try:
        with held(run):
            if found.holds(lambda: _described(run)):
                found.checked += 2
            (_finished if (run / "summary.json").is_file() else _stopped)(run, found)
    except Busy:
        found.state = f"{run} is running now; what changes cannot be examined"
    return found


def _described(run: Path) -> None:
    """Configuration and partition, each in itself and against each other."""
    digests = stated(run).digests
    partition = partitions.load(run / "partition.json", digests.data or "", sys.maxsize)
    if partition.digest != digests.partition:
        raise Error(f"{run / 'partition.json'} is not the partition that config.toml speaks of")


def _finished(run: Path, found: Findings) -> None:
    sums: dict[str, str] = {}
    found.holds(lambda: sums.update(sums_of(run / SUMS)))
    for name in (n for n in EXPECTED if n not in sums and n not in MAY_DIFFER):
        found.wrong.append(f"{run / SUMS} does not list {name}: it is damaged")
    for name, digest in sums.items():
        found.checked += found.holds(lambda name=name, digest=digest: verify(run / name, digest))  # type: ignore[misc]
    for path in _strangers(run, sums):
        found.wrong.append(
            f"{path} does not belong to this run"
            + ("; pfedsim resume removes it" if FOLDER in path.parts else "")
        )
    if found.holds(lambda: Run(run).summary):
        found.state = (
            f"{run} is finished: {Run(run).summary['method']}, {Run(run).summary['rounds']} rounds"
        )
        if drift := Run(run).summary.get("drift"):
            found.state += f"; resumed with other software or hardware ({'; '.join(drift)})"


def _stopped(run: Path, found: Findings) -> None:
    if not (run / "config.toml").is_file():
        return
    if (run / SUMS).is_file() and not (run / FOLDER).is_dir():
        found.wrong.append(f"{run / 'summary.json'} is missing: the run was finished")
    good, wrong = latest(run, digest_of(run / "config.toml")[0])
    found.wrong += wrong
    if good is None:
        found.state = f"{run} is not finished and nothing whole is saved: pfedsim resume begins it again"
    else:
        found.checked += (
            len(good.record["logs"]) + len(good.record["files"]) + len(good.record["state"]) + 1
        )
        found.state = f"{run} is not finished: pfedsim resume goes on after round {good.state.server.round}"


def _strangers(run: Path, sums: dict[str, str]) -> Iterator[Path]:
    """Files where only the run's own belong, and what an interrupted write left behind."""
    for folder in ("models", "similarity", FINAL, FOLDER):
        yield from (p for p in sorted((run / folder).glob("*")) if str(p.relative_to(run)) not in sums)
    yield from sorted(run.glob("*" + TEMPORARY))
