"""A finished run goes on: its final state and the logs up to its last round begin a run of more rounds."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from pfedsim import seal
from pfedsim.data.federation import Federation
from pfedsim.durable import building, digest_of, write
from pfedsim.errors import Error, Notice
from pfedsim.methods import METHODS
from pfedsim.methods.two_stage import TwoStage
from pfedsim.runs import manifest
from pfedsim.runs.checkpoint import sealed
from pfedsim.runs.config import Config, check
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import OnRound, check_on_round
from pfedsim.runs.names import CHECKPOINT, FINAL, MANIFEST, TIMINGS
from pfedsim.runs.reader import Run


def extend(
    run: Run,
    rounds: int,
    out: Path | None = None,
    federation: Federation | None = None,
    on_round: OnRound | None = None,
    allow_drift: bool = False,
    **place: Any,
) -> Run:
    """From Python: the longer run, finished. Without `out` its folder lives as long as the result. `place`: engine,
    address and workers."""
    check_on_round(on_round)
    config, notice = extended(run, rounds, place, allow_drift)
    keep = None
    if out is None:
        keep = tempfile.TemporaryDirectory(prefix="pfedsim-")
        out = Path(keep.name) / "run"
    if notice:
        warnings.warn(notice, Notice, stacklevel=3)
    begin(run, config, out)
    execute(None, out, federation, on_round=on_round, resume=True, allow_drift=allow_drift, **place)
    return Run(out, keep, federation, trust=True)


def extended(
    run: Run, rounds: int, place: Mapping[str, Any] | None = None, allow_drift: bool = False
) -> tuple[Config, str]:
    """The configuration of the longer run, and what a user should know of it, or nothing. `place`: workers,
    data_dir, track and state, which may differ."""
    had = run.summary["rounds"]
    if not run.has_state:
        raise Error(f"{run.path} kept no final state (it ran with --no-state), so it cannot be extended")
    method = run.config.method_made()
    free = type(method) in METHODS.values() and not isinstance(method, TwoStage)
    planned = None if free else run.config.planned or had
    asked = {name: value for name, value in (place or {}).items() if value is not None}
    known = {**manifest.place_in(run.manifest), **asked}
    config = check(
        {**run.config.plain(), "rounds": rounds, **({"planned": planned} if planned else {}), **known}
    )
    if config.rounds is None or config.rounds <= had:
        raise Error(f"{run.path} has {had} rounds already: ask for more than that, not for {rounds}")
    _refuse_drift(run, config, allow_drift)
    if planned is None:
        return config, ""
    return config, (
        f"the method keeps to its plan for {planned} rounds: a two-stage method's switch stays where it was, "
        f"so this is not the run of {rounds} rounds from the start"
    )


def _refuse_drift(run: Run, config: Config, allowed: bool) -> None:
    """Refuse other code, software or hardware than the run's before anything is written."""
    if allowed:
        return
    if differs := manifest.drift(run.manifest.get("made_with", {}), manifest.made_with(config)):
        raise Error(
            f"{run.path} ran with other code, software or hardware ({'; '.join(differs)}), so the longer run may "
            "differ; --allow-drift (allow_drift=True) extends it anyway"
        )


def refuse_overlap(run: Run, out: Path) -> None:
    """Refuse a folder that is, contains or lies inside the finished run, which must not change."""
    source, place = run.path.resolve(), out.resolve()
    if source == place or source in place.parents or place in source.parents:
        raise Error(f"{out} overlaps {run.path}, the run to extend; choose another folder")


def begin(run: Run, config: Config, out: Path) -> None:
    """Create the longer run in `out` as if it had been stopped after the finished one's last round; resuming it
    does the rest. The folder appears complete or not at all."""
    refuse_overlap(run, out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Error(f"{out} exists and is not empty; choose another folder")
    record = run.final_record()
    with building(out) as aside:
        for name in [*record["logs"], *record["files"], TIMINGS]:
            (aside / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(run.verified(name), aside / name)
        write(aside / "config.toml", tomli_w.dumps(config.plain()).encode())
        files = {**record["files"], "config.toml": digest_of(aside / "config.toml")[0]}
        about = {**run.manifest, "files": files, "place": manifest.place(config)}
        write(aside / MANIFEST, seal.sealed(about).encode())
        (aside / CHECKPOINT).mkdir()
        number = f"{record['round']:05d}"
        state = aside / CHECKPOINT / f"state-{number}.safetensors"
        shutil.copyfile(run.verified(f"{FINAL}/state.safetensors"), state)
        entry = {
            "file": state.name,
            "bytes": state.stat().st_size,
            "sha256": digest_of(state)[0],
            "gone": [],
        }
        logs = {**record["logs"], TIMINGS: _mark(aside / TIMINGS)}
        content = {**about, **record, "files": files, "logs": logs, "state": [entry]}
        write(aside / CHECKPOINT / f"{number}.json", sealed(content))


def _mark(path: Path) -> dict[str, int | str]:
    digest, length = digest_of(path)
    return {"bytes": length, "sha256": digest}
