"""Partitions of other programs, from plain arrays and JSON; pickles are refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedsim.cli.app import app
from pfedsim.data.dataset import DataSet
from pfedsim.data.imported import read
from pfedsim.data.partition import load
from pfedsim.data.readers import digits
from pfedsim.errors import Error

SAMPLES = 40


@pytest.fixture
def pictures() -> DataSet:
    """Forty pictures; 3 and 17 are the same picture with the same label."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (SAMPLES, 1, 4, 4), dtype=np.uint8), draw.integers(0, 3, SAMPLES)
    x[17], y[17] = x[3], y[3]
    return DataSet("pictures", x, y, tuple("abc"), (0.5,), (0.3,))


def lists(clients: int = 4) -> list[list[int]]:
    order = np.random.default_rng(1).permutation(SAMPLES)
    return [sorted(map(int, part)) for part in np.array_split(order, clients)]


def put(folder: Path, content: Any, name: str = "theirs.json") -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder / name


def as_flower(rows: list[list[int]], y: list[int]) -> dict[str, Any]:
    return {"partitions": {str(k): row for k, row in enumerate(rows)}, "labels": y}


def as_fl_bench(rows: list[list[int]], y: list[int]) -> dict[str, Any]:
    parts = [{"train": row[3:], "val": row[2:3], "test": row[:2]} for row in rows]
    everyone = list(range(len(rows)))
    return {"separation": {"train": everyone, "test": everyone}, "data_indices": parts, "labels": y}


@pytest.mark.parametrize("form", [lambda rows, y: rows, lambda rows, y: dict(enumerate(rows)), as_flower])
def test_positions_by_client_are_divided_as_ours_are(
    form: Callable[..., Any], pictures: DataSet, tmp_path: Path
) -> None:
    path = put(tmp_path, form(lists(), pictures.y.tolist()))
    partition, notes = read(path, pictures, 0.3, 7)
    assert [sorted([*s.train, *s.test]) for s in partition.clients] == lists()
    stream = np.random.RandomState(7)  # as every partition of ours: shuffle, the first 70% train
    for split, row in zip(partition.clients, lists(), strict=True):
        shuffled = np.array(row)
        stream.shuffle(shuffled)
        assert split.train.tolist() == shuffled[:7].tolist()
    assert any("30% " in n or "0.3 of each" in n for n in notes)
    known = "labels of its 40 samples are ours" in " ".join(notes)
    assert known == (form is as_flower)


def test_fl_benchs_parts_are_kept_and_validation_comes_first(pictures: DataSet, tmp_path: Path) -> None:
    partition, notes = read(put(tmp_path, as_fl_bench(lists(), pictures.y.tolist())), pictures, 0.5, 0)
    for split, row in zip(partition.clients, lists(), strict=True):
        assert split.test.tolist() == row[:2]
        assert split.train.tolist() == row[2:]
    share = float(" ".join(notes).split("--validation ")[1].split()[0])
    assert [int(share * len(s.train) + 1e-9) for s in partition.clients] == [1] * 4


def test_arrays_of_positions_and_of_owners(pictures: DataSet, tmp_path: Path) -> None:
    rows = lists()
    owner = np.full(SAMPLES, -1)
    for k, row in enumerate(rows):
        owner[row] = k
    owner[rows[3][0]] = -1
    np.save(tmp_path / "owner.npy", owner)
    np.savez(tmp_path / "owner.npz", client=owner)
    np.savez(tmp_path / "rows.npz", **{str(k): np.array(row) for k, row in enumerate(rows)})
    first, second, third = (
        read(tmp_path / n, pictures, 0.5, 3) for n in ("owner.npy", "owner.npz", "rows.npz")
    )
    assert first[0].digest == second[0].digest
    assert "1 of the 40 samples belong to no client" in " ".join(first[1])
    assert [sorted([*s.train, *s.test]) for s in third[0].clients] == rows


@pytest.mark.parametrize("stored", [lambda x: x, lambda x: x / 255, lambda x: (x / 255 - 0.5) / 0.5])
def test_pfllibs_samples_are_found_by_their_content(
    stored: Callable[[np.ndarray], np.ndarray], pictures: DataSet, tmp_path: Path
) -> None:
    rows, counts = lists(), []
    for k, row in enumerate(rows):
        for part, of in (("train", row[2:]), ("test", row[:2])):
            (tmp_path / part).mkdir(exist_ok=True)
            x = stored(pictures.x[of])
            x = x if x.dtype == np.uint8 else x.astype(np.float32)
            np.savez_compressed(tmp_path / part / f"{k}.npz", x=x, y=pictures.y[of])
        counts.append([[int(c), int(n)] for c, n in enumerate(np.bincount(pictures.y[row])) if n])
    (tmp_path / "config.json").write_text(json.dumps({"Size of samples for labels in clients": counts}))
    partition, _ = read(tmp_path, pictures, 0.5, 0)
    swapped = {3: 17, 17: 3}
    for split, row in zip(partition.clients, rows, strict=True):
        for found, wanted in ((split.train, row[2:]), (split.test, row[:2])):
            assert all(a == b or swapped.get(a) == b for a, b in zip(found.tolist(), wanted, strict=True))
    every = np.concatenate([p for s in partition.clients for p in (s.train, s.test)])
    assert sorted(every.tolist()) == list(range(SAMPLES))
    counts[1][0][1] += 1
    (tmp_path / "config.json").write_text(json.dumps({"Size of samples for labels in clients": counts}))
    with pytest.raises(Error, match="counts other samples of client 1"):
        read(tmp_path, pictures, 0.5, 0)


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def test_no_pickle_is_loaded(pictures: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    for part in ("train", "test"):  # as PFLlib saves them
        np.savez_compressed(tmp_path / part / "0.npz", data=np.array({"x": Bomb(), "y": 1}, dtype=object))
    np.savez(tmp_path / "objects.npz", client=np.array([Bomb()] * SAMPLES, dtype=object))
    np.save(tmp_path / "objects.npy", np.array([Bomb()] * SAMPLES, dtype=object))
    for name in ("partition.pkl", ".", "objects.npz", "objects.npy"):
        with pytest.raises(Error, match=r"docs/migrate.md"):
            read(tmp_path / name, pictures, 0.5, 0)
    assert not (tmp_path / "exploded").exists()


BROKEN: dict[str, tuple[Callable[[list[list[int]], list[int]], Any], str]] = {
    "beyond": (lambda r, y: [[0, 1, 40], *r[1:]], "client 0 has the position 40; the data have 40 samples"),
    "twice": (lambda r, y: [[5, 5, 6]], "client 0 has a sample twice"),
    "text": (lambda r, y: [["1", "2"]], "client 0 should be a list of positions"),
    "huge": (lambda r, y: [[10**30, 1]], "a position that is too large"),
    "empty": (lambda r, y: [], "has no clients"),
    "lone": (lambda r, y: [[1]], "client 0 has no sample in its train part"),
    "gap": (lambda r, y: {"0": r[0], "2": r[1]}, "should be numbered 0, 1, 2"),
    "word": (lambda r, y: "positions", "should hold the clients' positions"),
    "mixed": (lambda r, y: [{"train": [1], "test": [2]}, [3, 4]], "client 1 is a plain list"),
    "other": (lambda r, y: {"partitions": r, "labels": [1 - y[0], *y[1:]]}, "come in another order"),
    "users": (
        lambda r, y: {"data_indices": r, "separation": {"train": [0], "test": [1]}},
        "hold clients back with --unseen",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_a_partition_is_refused(name: str, pictures: DataSet, tmp_path: Path) -> None:
    make, said = BROKEN[name]
    with pytest.raises(Error) as error:
        read(put(tmp_path, make(lists(), pictures.y.tolist())), pictures, 0.5, 0)
    assert said in str(error.value)


def test_samples_of_another_data_set_are_refused(pictures: DataSet, tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        np.savez(tmp_path / part / "0.npz", x=255 - pictures.x[:5], y=pictures.y[:5])
    with pytest.raises(Error, match=r"sample 0 is not in pictures"):
        read(tmp_path, pictures, 0.5, 0)


def test_the_command_writes_a_file_that_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = digits.read()
    rows = [list(map(int, part)) for part in np.array_split(np.arange(1797), 3)]
    put(tmp_path, as_flower(rows, data.y.tolist()))
    done = CliRunner().invoke(app, ["import", "theirs.json", "--data", "digits", "--test", "0.25"])
    assert done.exit_code == 0, done.output
    partition = load(tmp_path / "digits-imported.json", data.digest, 1797)
    assert [len(s.test) for s in partition.clients] == [150, 150, 150]
    assert partition.digest[:12] in done.output
    assert "artificial" not in done.output
    put(
        tmp_path, as_fl_bench(rows, data.y.tolist()), "split.json"
    )  # it states train and test parts, and no seed
    done = CliRunner().invoke(app, ["import", "split.json", "--data", "digits", "--out", "split-ours.json"])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["data", "show", "digits", "--partition", "split-ours.json"])
    assert shown.exit_code == 0, shown.output
    for words, said in (
        (["theirs.json", "--data", "digits"], "exists; choose another --out"),
        (
            ["nothing.json", "--data", "digits", "--out", "a.json"],
            "there is no file or folder nothing.json",
        ),
        (["theirs.json", "--data", "digitz", "--out", "a.json"], "did you mean 'digits'?"),
        (["theirs.json", "--data", "digits", "--out", "a.txt"], "a partition file ends in .json"),
        (["theirs.json", "--data", "digits", "--out", "a.json", "--test", "1"], "between 0 and 1"),
    ):
        again = CliRunner().invoke(app, ["import", *words])
        assert isinstance(again.exception, Error)
        assert said in str(again.exception)
