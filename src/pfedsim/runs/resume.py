"""From where a run that was stopped goes on: the newest checkpoint that is whole, and only as the same
run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.checkpoint import FOLDER, Found, latest, read
from pfedsim.runs.config import Config
from pfedsim.runs.durable import digest_of, verify
from pfedsim.runs.reader import stated
from pfedsim.runs.setup import Session, federate, prepare


@dataclass(frozen=True, eq=False)
class Stopped:
    """A stopped run in memory again. `found` None: nothing whole was saved, so that it begins at its
    beginning."""

    session: Session
    found: Found | None = None
    notes: list[str] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)


def stopped(
    config: Config | None, run: Path, federation: Federation | None, allow_drift: bool, **place: Any
) -> Stopped:
    """What the folder holds, refused where `config` (None: the folder's own) asks for another run or where
    this is another place. `place`: workers, data_dir and track, which may differ."""
    own = stated(run)
    digest = digest_of(run / "config.toml")[0]
    found, notes = latest(run, digest)
    before = found.record if found else manifest.stored(run)
    if not found:
        _trusted(run, digest, before)
        notes += ["nothing that was saved is whole: the run begins again"] if notes else []
    config = config or own.model_copy(update=before.get("place", {}))
    config = config.model_copy(update={key: value for key, value in place.items() if value is not None})
    dealt = _partition(run, before, notes)
    if federation is None:
        federation = federate(config.model_copy(update={"digests": own.digests}), dealt)
    session = prepare(config, federation)
    _same(run, own, session.config)
    differs = manifest.drift(before.get("made_with", {}), manifest.made_with(session)) if before else []
    if differs and found and not allow_drift:
        raise Error(
            f"{run} was made with other software or hardware ({'; '.join(differs)}): its bits may "
            f"change; `pfedsim resume {run} --allow-drift` continues"
        )
    known = list(before.get("drift", []))
    return Stopped(session, found, notes, known + differs if found else [])


def _trusted(run: Path, digest: str, before: Mapping[str, Any]) -> None:
    """Refuses a configuration that is not the one the run was started with."""
    known = {before.get("files", {}).get("config.toml", digest)} if before else set()
    for path in (run / FOLDER).glob("*.json"):
        try:
            known.add(read(path)["files"]["config.toml"])
        except (Error, KeyError):
            continue
    if known and digest not in known:
        raise Error(f"{run / 'config.toml'} is damaged: it is not the one that this run was started with")


def _partition(run: Path, before: Mapping[str, Any], notes: list[str]) -> Path | None:
    """The folder's partition, where it is whole."""
    path, digest = run / "partition.json", before.get("files", {}).get("partition.json")
    if digest is None:
        return None
    try:
        verify(path, digest)
        return path
    except Error as error:
        notes.append(f"{error}; it is written again")
        return None


def _same(run: Path, own: Config, asked: Config) -> None:
    """Refuses another configuration, by the first setting that differs."""
    a, b = (
        {
            **c.plain(),
            "data": Path(c.data).name,
            "partition": Path(c.partition or "").name,
            "pretrained": Path(c.pretrained or "").name,
        }
        for c in (own, asked)
    )
    old, new = dict(manifest.flat(a)), dict(manifest.flat(b))
    differ = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if differ in (["digests.method"], ["digests.model"]):
        what = differ[0].removeprefix("digests.")
        raise Error(f"the code of the {what} has changed since {run} began; choose another folder")
    for name in differ:
        raise Error(
            f"{run} is another run: its {name} is {old.get(name)}, {new.get(name)} was asked for; "
            "choose another folder, or delete this one"
        )
