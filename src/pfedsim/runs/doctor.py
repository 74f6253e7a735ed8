"""Check a run's folder: the sha256 of every file, the checkpoints of a stopped run, and stray files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pfedsim.data import partition as partitions
from pfedsim.durable import Busy, digest_of, final_name, locked
from pfedsim.errors import Error
from pfedsim.runs.checkpoint import latest
from pfedsim.runs.names import CHECKPOINT, FINAL, SUMS, TIMINGS
from pfedsim.runs.reader import Run, load_config


@dataclass
class Findings:
    """The result of a check: how many files were verified, what is wrong, and the run's state in a sentence."""

    state: str = ""
    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def holds(self, check: Callable[[], object]) -> bool:
        """Whether the check passes; if not, its message is added to `wrong`."""
        try:
            check()
            return True
        except Error as error:
            self.wrong += [str(error)] if str(error) not in self.wrong else []
            return False


def examine(run: Path) -> Findings:
    """Check everything that the folder alone can show."""
    found = Findings()
    if not (run / TIMINGS).is_file():
        load_config(run)
        found.wrong.append(f"{run / 'timings.jsonl'} is missing; no result depends on it")
    try:
        with locked(run):
            described = found.holds(lambda: _described(run))
            if (run / "summary.json").is_file():
                _finished(run, found)
            else:
                found.checked += 2 * described
                _stopped(run, found)
    except Busy:
        found.state = f"{run} is running; it can be checked once it has stopped"
    return found


def _described(run: Path) -> None:
    """Check configuration and partition, and that they belong together."""
    digests = load_config(run).digests
    partition = partitions.load(run / "partition.json", digests.data or "", sys.maxsize)
    if partition.digest != digests.partition:
        raise Error(f"{run / 'partition.json'} is not the partition named in config.toml")


def _finished(run: Path, found: Findings) -> None:
    finished = Run(run)
    sums: dict[str, str] = {}
    if found.holds(lambda: sums.update(finished.files)):
        found.checked += 1
    for name in sums:
        found.checked += found.holds(lambda name=name: finished.verified(name))  # type: ignore[misc]
    if found.holds(lambda: finished.manifest):
        found.checked += 1 + found.holds(lambda: finished.verified(TIMINGS))
    for path in _stray_files(run, sums) if sums else ():
        found.wrong.append(
            f"{path} does not belong to this run"
            + ("; pfedsim resume removes it" if CHECKPOINT in path.parts else "")
        )
    if sums and found.holds(lambda: finished.summary):
        summary = finished.summary
        found.state = f"{run} is finished: {summary['method']}, {summary['rounds']} rounds"
        if drift := summary.get("drift"):
            found.state += f"; resumed with other code, software or hardware ({'; '.join(drift)})"
        if finished.incidents:
            found.state += f"; incidents: {finished.incidents}"


def _stopped(run: Path, found: Findings) -> None:
    if not (run / "config.toml").is_file():
        return
    if (run / SUMS).is_file() and not (run / CHECKPOINT).is_dir():
        found.wrong.append(f"{run / 'summary.json'} is missing, although the run was finished")
    good, wrong = latest(run, digest_of(run / "config.toml")[0])
    found.wrong += wrong
    if good is None:
        found.state = f"{run} is not finished and has no intact checkpoint: pfedsim resume restarts it"
    else:
        found.checked += 1 + sum(len(good.record[part]) for part in ("logs", "files", "state"))
        found.state = (
            f"{run} is not finished: pfedsim resume continues after round {good.state.server.round}"
        )


def _stray_files(run: Path, sums: dict[str, str]) -> Iterator[Path]:
    """Files that do not belong to the run, and temporary files left by an interrupted write."""
    for folder in ("models", "similarity", FINAL, CHECKPOINT):
        yield from (p for p in sorted((run / folder).glob("*")) if str(p.relative_to(run)) not in sums)
    yield from (p for p in sorted(run.iterdir()) if final_name(p.name) != p.name)
