"""Trackers, read back by their own readers: settings, every round's figures, the clients' spread, pictures,
models."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pfedsim
from pfedsim import Error, track
from pfedsim.data.federation import Federation
from pfedsim.runs.reader import Run

WORDS = {"rounds": 3, "epochs": 1, "join": 1.0}


def tracked(digits: Federation, out: Path, spec: str) -> Run:
    notes: list[str] = []
    run = pfedsim.train(
        digits, "pfedsim", out, watch=lambda now: notes.append(now.note), track=spec, **WORDS
    )
    assert not any(notes), notes
    return run


def expected(run: Run) -> dict[str, dict[int, float]]:
    """A few series as the run's own files have them."""
    served = {r["round"]: r for r in run.metrics() if r.get("model") == "served"}
    rows = [r for r in run.clients() if (r["model"], r["metric"]) == ("served", "accuracy")]
    medians = {
        k: float(np.median([float(r["value"]) for r in rows if r["round"] == str(k)])) for k in served
    }
    return {
        "round/train_loss": {r["round"]: r["train_loss"] for r in run.metrics() if "train_loss" in r},
        "round/bytes_up": {r["round"]: r["bytes_up"] for r in run.metrics() if "train_loss" in r},
        "served/test/micro": {k: r["micro"] for k, r in served.items()},
        "served/test/clients/median": medians,
        "finetuned/test/mean": {3: run.summary["finetuned"]["mean"]},
    }


def same_files(a: Path, b: Path) -> None:
    names = sorted(p.name for p in a.iterdir())
    assert names == sorted(p.name for p in b.iterdir())
    assert all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


def test_tensorboard(digits: Federation, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked(digits, tmp_path / "run", f"tensorboard:{tmp_path / 'board'}")
    (folder,) = (tmp_path / "board").iterdir()
    assert folder.name == "pfedsim on digits, 6 clients, seed 42"
    events = EventAccumulator(str(folder), dict.fromkeys(("tensors", "images", "scalars", "histograms"), 0))
    events.Reload()
    for name, series in expected(run).items():
        assert {e.step: e.value for e in events.Scalars(name)} == pytest.approx(series, rel=1e-6)
    assert [e.step for e in events.Histograms("served/test/clients")] == [1, 2, 3]
    assert events.Histograms("served/test/clients")[0].histogram_value.num == 6
    assert {"figures/curves", "figures/clients", "figures/similarity"} == set(events.Tags()["images"])
    text = events.Tensors("settings/pfedsim.rho/text_summary")[0].tensor_proto.string_val[0]
    assert json.loads(text) == run.config.method_made().rho  # type: ignore[attr-defined]
    same_files(run.path / "models", folder / "models")
    untracked = pfedsim.train(digits, "pfedsim", tmp_path / "plain", **WORDS)
    assert (untracked.path / "config.toml").read_bytes() == (run.path / "config.toml").read_bytes()
    assert untracked.summary == run.summary


def test_mlflow(digits: Federation, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.MlflowClient(store).create_experiment(
        "pfedsim", artifact_location=(tmp_path / "artefacts").as_uri()
    )
    run = tracked(digits, tmp_path / "run", f"mlflow:{store}")
    client = mlflow.MlflowClient(store)
    (found,) = client.search_runs([client.get_experiment_by_name("pfedsim").experiment_id])
    assert (found.info.run_name, found.info.status) == ("pfedsim on digits, 6 clients, seed 42", "FINISHED")
    assert found.data.params["pfedsim.rho"] == str(run.config.method_made().rho)  # type: ignore[attr-defined]
    assert found.data.params["rounds"] == "3"
    for name, series in expected(run).items():
        assert {m.step: m.value for m in client.get_metric_history(found.info.run_id, name)} == series
    assert {a.path for a in client.list_artifacts(found.info.run_id, "figures")} >= {
        "figures/curves.png",
        "figures/clients.png",
    }
    same_files(
        run.path / "models", Path(client.download_artifacts(found.info.run_id, "models", str(tmp_path)))
    )


def test_wandb(digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tracked(digits, tmp_path / "run", "wandb:ours")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    records = [wandb_internal_pb2.Record.FromString(content) for content in log_records(file.read_bytes())]
    (begun,) = [r.run for r in records if r.WhichOneof("record_type") == "run" and r.run.display_name]
    assert (begun.project, begun.display_name) == ("ours", "pfedsim on digits, 6 clients, seed 42")
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert settings["rounds"] == 3
    series: dict[str, dict[int, Any]] = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            for name, value in values.items():
                series.setdefault(name, {})[values["_step"]] = value
    for name, values in expected(run).items():
        assert series[name] == pytest.approx(values)
    assert series["served/test/clients/histogram/_type"][3] == "histogram"
    assert series["figures/curves/_type"][3] == "image-file"
    (artifact,) = [
        r.request.log_artifact.artifact if r.request.ByteSize() else r.artifact
        for r in records
        if _artifact(r)
    ]
    assert artifact.type == "model"
    assert {e.path for e in artifact.manifest.contents} == {p.name for p in (run.path / "models").iterdir()}
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [0]


def log_records(content: bytes) -> Iterator[bytes]:
    """W&B's offline file is a LevelDB log behind 7 bytes of its own: blocks of 32 KiB with checked pieces
    of records."""
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        piece = content[place + 7 : place + 7 + length]
        assert zlib.crc32(bytes([kind]) + piece) == struct.unpack("<I", content[place : place + 4])[0]
        record += piece
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def _artifact(record: Any) -> bool:
    return record.WhichOneof("record_type") == "artifact" or bool(record.request.log_artifact.artifact.type)


class Broken:
    """A tracker whose server goes away in the second round."""

    closed: bool | None = None

    def __init__(self, place: str, name: str, settings: Mapping[str, Any]) -> None: ...

    def round(
        self, number: int, figures: Mapping[str, float], spreads: Mapping[str, Sequence[float]]
    ) -> None:
        if number == 2:
            raise ConnectionError("nobody answers")

    def artefacts(self, pictures: Sequence[Path], models: Path) -> None:
        raise AssertionError("it was given up")

    def close(self, failed: bool) -> None:
        Broken.closed = failed


def test_a_tracker_that_fails_costs_no_run(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfedsim.track.follow.start", Broken)
    monkeypatch.setattr(track, "check", lambda spec: None)
    notes: list[str] = []
    run = pfedsim.train(
        digits, "fedavg", tmp_path / "run", watch=lambda now: notes.append(now.note), track="x", **WORDS
    )
    assert run.summary["rounds"] == 3
    assert [note for note in notes if note] == ["tracking with x stopped: nobody answers"]
    assert Broken.closed is False


def test_a_run_that_fails_is_marked_so(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfedsim.track.follow.start", Broken)
    monkeypatch.setattr(track, "check", lambda spec: None)

    def interrupted(now: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pfedsim.train(digits, "fedavg", tmp_path / "run", watch=interrupted, track="x", **WORDS)
    assert Broken.closed is True


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("tensorbord:x", "did you mean 'tensorboard'"),
        ("tensorboard", "tensorboard:DIR"),
        ("neptune:x", "known are tensorboard, mlflow, wandb"),
    ],
)
def test_wrong_trackers_are_refused_before_anything_runs(
    digits: Federation, tmp_path: Path, spec: str, says: str
) -> None:
    with pytest.raises(Error, match=says):
        tracked(digits, tmp_path / "run", spec)
    assert not (tmp_path / "run").exists()


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Error, match=r"mlflow is not installed; pip install 'pfedsim\[track\]'"):
        track.check("mlflow:sqlite:///x.db")


def test_a_tracker_that_cannot_begin_leaves_no_folder(digits: Federation, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match="cannot start"):
        tracked(digits, tmp_path / "run", f"tensorboard:{tmp_path / 'file'}")
    assert not (tmp_path / "run").exists()
