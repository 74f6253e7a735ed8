"""Resume a stopped run from its newest intact checkpoint, with unchanged settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedsim.core.method import ServerState
from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.checkpoint import FOLDER, Found, latest, read
from pfedsim.runs.config import Config
from pfedsim.runs.durable import digest_of, verify
from pfedsim.runs.reader import load_config
from pfedsim.runs.setup import Session, federate, prepare


@dataclass(frozen=True, eq=False)
class Stopped:
    """A stopped run, loaded again. `found` is None if there is no intact checkpoint: the run then restarts."""

    session: Session
    found: Found | None = None
    notes: list[str] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)

    def begin(self) -> ServerState:
        """The server to continue from."""
        if self.found is None:
            return self.session.begin()
        return self.session.side.restore(self.found.state)


def stopped(
    config: Config | None, run: Path, federation: Federation | None, allow_drift: bool, **place: Any
) -> Stopped:
    """Load the stopped run in this folder. Raises an error if `config` (None: the folder's own) describes another
    run, or if software or hardware differ. `place`: workers, data_dir and track, which may differ."""
    own = load_config(run)
    digest = digest_of(run / "config.toml")[0]
    found, notes = latest(run, digest)
    before = found.record if found else manifest.stored(run)
    if not found:
        _trusted(run, digest, before)
        notes += ["there is no intact checkpoint: the run restarts"] if notes else []
    config = config or own.model_copy(update=before.get("place", {}))
    config = config.model_copy(update={key: value for key, value in place.items() if value is not None})
    partition = _partition(run, before, notes)
    if federation is None:
        federation = federate(config.model_copy(update={"digests": own.digests}), partition)
    session = prepare(config, federation)
    _same(run, own, session.config)
    differs = (
        manifest.drift(before.get("made_with", {}), manifest.made_with(session.config)) if before else []
    )
    if differs and found and not allow_drift:
        raise Error(
            f"{run} was started with other software or hardware ({'; '.join(differs)}), so its results "
            f"may differ in the last bits; `pfedsim resume {run} --allow-drift` continues anyway"
        )
    known = list(before.get("drift", []))
    return Stopped(session, found, notes, known + differs if found else [])


def _trusted(run: Path, digest: str, before: Mapping[str, Any]) -> None:
    """Raise an error unless the folder's configuration is the one that the run was started with."""
    known = {before.get("files", {}).get("config.toml", digest)} if before else set()
    for path in (run / FOLDER).glob("*.json"):
        try:
            known.add(read(path)["files"]["config.toml"])
        except (Error, KeyError):
            continue
    if known and digest not in known:
        raise Error(f"{run / 'config.toml'} is damaged: it is not the one this run was started with")


def _partition(run: Path, before: Mapping[str, Any], notes: list[str]) -> Path | None:
    """The folder's partition file, if it is intact."""
    path, digest = run / "partition.json", before.get("files", {}).get("partition.json")
    if digest is None:
        return None
    try:
        verify(path, digest)
        return path
    except Error as error:
        notes.append(f"{error}; it will be written again")
        return None


def _same(run: Path, own: Config, asked: Config) -> None:
    """Raise an error that names the first setting in which the configurations differ."""
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
            f"{run} holds a different run: {name} = {old.get(name)}, not {new.get(name)}; "
            "choose another folder, or delete this one"
        )
