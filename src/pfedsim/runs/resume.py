"""Resume a stopped run from its newest intact checkpoint, with unchanged settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pfedsim.core.method import ServerState
from pfedsim.data.federation import Federation
from pfedsim.durable import digest_of, flush_folder, verify
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.checkpoint import Found, latest, read
from pfedsim.runs.config import Config
from pfedsim.runs.names import CHECKPOINT, SUMS
from pfedsim.runs.reader import load_config, sums_of
from pfedsim.runs.setup import Distant, Session, federate, prepare


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
    config: Config | None,
    run: Path,
    federation: Federation | Distant | None,
    allow_drift: bool,
    **place: Any,
) -> Stopped:
    """Load the stopped run in this folder. Raises an error if `config` (None: the folder's own) describes another
    run, or if code, software or hardware differ. `place`: settings that may differ, such as engine,
    workers, data_dir and track."""
    own = load_config(run)
    digest = digest_of(run / "config.toml")[0]
    found, notes = latest(run, digest)
    before = found.record if found else manifest.stored(run)
    if not found:
        _trusted(run, digest, before)
        notes += ["there is no intact checkpoint: the run restarts"] if notes else []
    config = config or own.model_copy(update=manifest.place_in(before))
    config = config.model_copy(update={key: value for key, value in place.items() if value is not None})
    partition = _partition(run, before, notes)
    if federation is None:
        federation = federate(config.model_copy(update={"digests": own.digests}), partition)
    session = prepare(_with_code(config, None, None), federation, allow_drift=allow_drift)
    if found:  # drift says below which code has changed
        same = _with_code(session.config, own.digests.method, own.digests.model)
        session = replace(session, config=same)
    _same(run, own, session.config)
    differs = (
        manifest.drift(before.get("made_with", {}), manifest.made_with(session.config)) if before else []
    )
    if differs and found and not allow_drift:
        raise Error(
            f"{run} was started with other code, software or hardware ({'; '.join(differs)}), so it would not be "
            f"the same run; `pfedsim resume {run} --allow-drift` continues anyway"
        )
    known = list(before.get("drift", []))
    return Stopped(session, found, notes, known + differs if found else [])


def _with_code(config: Config, method: str | None, model: str | None) -> Config:
    """The configuration with these digests of the user's code; None: whatever it is."""
    digests = config.digests.model_copy(update={"method": method, "model": model})
    return config.model_copy(update={"digests": digests})


def damage(run: Path) -> str | None:
    """What is wrong with the files of a finished run: "" if nothing is, None if the run is not finished. Raises an
    error if no checkpoint is left to repair them."""
    if not (run / "summary.json").is_file():
        return None
    try:
        for name, digest in sums_of(run / SUMS).items():
            verify(run / name, digest)
        return ""
    except Error as error:
        flaw = str(error)
    if latest(run, digest_of(run / "config.toml")[0])[0] is None:
        raise Error(f"{flaw}, and no checkpoint is left to repair it; delete {run} and run it again")
    return flaw


def reopen(run: Path, flaw: str | None) -> str:
    """Make a damaged finished run a stopped one, which continues from its checkpoint; return a note that says so."""
    if not flaw:
        return ""
    for name in ("summary.json", SUMS):
        (run / name).unlink(missing_ok=True)
    flush_folder(run)
    return f"{flaw}; the run continues from its last checkpoint to repair it"


def _trusted(run: Path, digest: str, before: Mapping[str, Any]) -> None:
    """Raise an error unless the folder's configuration is the one that the run was started with."""
    known = {before.get("files", {}).get("config.toml", digest)} if before else set()
    for path in (run / CHECKPOINT).glob("*.json"):
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
