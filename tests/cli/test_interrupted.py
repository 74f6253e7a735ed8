"""Commands killed with SIGKILL at named points: the same command goes on, and nothing is left behind."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pfedsim import durable
from pfedsim.cli import data as data_commands
from pfedsim.cli import models
from pfedsim.data.cache import cache_dir
from pfedsim.data.fetch import get, sources
from pfedsim.errors import Error
from pfedsim.runs.execute import execute
from pfedsim.runs.reader import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import kills
import powerloss


def killed(call: Callable[[], object], *point: Any) -> None:
    """Call it in a process that kills itself at this point (see `kills.die_at`); it must get there."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            kills.die_at(*point)()
            quietly(call)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), f"{point} was not reached"


def quietly(call: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        call()
    return said.getvalue()


def in_progress(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if durable.final_name(p.name) != p.name]


# export --all


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    asked = powerloss.config(method="fedavg", rounds=1)
    return execute(asked, tmp_path_factory.mktemp("run") / "run", powerloss.federation())


@pytest.mark.parametrize(
    "point",
    [
        ("fsync", "client-00001", "before", 1),
        ("rename", "client-00001", "before", 1),
        ("rename", "client-00001", "after", 1),
        ("rename", "client-00002", "after", 1),
    ],
)
def test_export_all_goes_on(run: Run, tmp_path: Path, point: tuple[Any, ...]) -> None:
    models.export(run.path, tmp_path / "whole", everyone=True)
    killed(lambda: models.export(run.path, tmp_path / "out", everyone=True), *point)
    first = (tmp_path / "out" / "client-00000" / "config.json").stat()
    said = quietly(lambda: models.export(run.path, tmp_path / "out", everyone=True))
    assert said.count("client-0000") == 3
    assert powerloss.contents(tmp_path / "out") == powerloss.contents(tmp_path / "whole")
    assert (
        tmp_path / "out" / "client-00000" / "config.json"
    ).stat().st_ino == first.st_ino  # not written again
    assert in_progress(tmp_path) == []


def test_export_all_takes_nothing_else_for_an_export(run: Run, tmp_path: Path) -> None:
    """A damaged one, one of another run, and one with other files."""
    models.export(run.path, tmp_path / "out", everyone=True)
    config = tmp_path / "out" / "client-00001" / "config.json"
    right = config.read_bytes()
    for change in (
        lambda content: {**content, "run": {**content["run"], "models_digest": "other"}},
        lambda content: {**content, "files": {**content["files"], "model.onnx": "0" * 64}},
    ):
        config.write_text(json.dumps(change(json.loads(right))))
        with pytest.raises(Error, match="client-00001 already exists"):
            models.export(run.path, tmp_path / "out", everyone=True)
    config.write_bytes(right)
    (tmp_path / "out" / "client-00001" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(Error, match="client-00001 already exists"):
        models.export(run.path, tmp_path / "out", everyone=True)


def test_export_leaves_what_stands_beside_it_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis.tex").write_text("mine")
    models.export(run.path, tmp_path / "out", client=0)
    assert (tmp_path / "out.part" / "thesis.tex").read_text() == "mine"
    (tmp_path / "docs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "docs")
    with pytest.raises(Error, match="link is a symbolic link"):
        models.export(run.path, tmp_path / "link", client=0)
    assert list((tmp_path / "docs").iterdir()) == []


# data add


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pictures, and a cache of their own."""
    monkeypatch.setenv("PFEDSIM_CACHE", str(tmp_path / "cache"))
    for k, word in enumerate(("cat", "dog")):
        (tmp_path / "photos" / word).mkdir(parents=True)
        Image.new("RGB", (8, 8), (90 * k, 9, 9)).save(tmp_path / "photos" / word / "1.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    "point",
    [
        ("rename", "all.npy", "before", 1),
        ("rename", "cache/pets-", "before", 2),
        ("fsync", "pets.toml", "before", 1),
        ("replace", "pets.toml", "before", 1),
        ("replace", "pets.toml", "after", 1),
    ],
)
def test_data_add_goes_on_and_the_cache_keeps_no_orphan(
    tmp_path: Path, photos: Path, point: tuple[Any, ...]
) -> None:
    def add() -> None:
        data_commands.add("pets", [photos], tmp_path / "sets")

    killed(add, *point)
    assert "of 3 x 8 x 8" in quietly(add)
    assert [p.name for p in (tmp_path / "sets").iterdir()] == ["pets.toml"]
    assert len(list(cache_dir().iterdir())) == 1
    assert in_progress(tmp_path) == []


def test_orphans_of_other_data_are_collected_too_but_nothing_in_use(tmp_path: Path, photos: Path) -> None:
    Path(tmp_path / "cache" / "birds-0123456789abcdef.0a1b2c3d.pfedsim").mkdir(parents=True)
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    with durable.building(tmp_path / "cache" / "fish") as fish:
        quietly(lambda: data_commands.add("pets", [photos], tmp_path / "sets"))
        assert in_progress(tmp_path / "cache") == [fish.name]
    assert (tmp_path / "cache" / "notes.txt").read_text() == "mine"


def test_a_cache_entry_that_is_a_link_is_not_deleted(tmp_path: Path, photos: Path) -> None:
    quietly(lambda: data_commands.add("pets", [photos], tmp_path / "sets"))
    (entry,) = cache_dir().iterdir()
    entry.rename(tmp_path / "mine")
    (tmp_path / "mine" / "about.json").write_text("mine")
    entry.symlink_to(tmp_path / "mine")
    with pytest.raises(Error, match="is a symbolic link"):
        data_commands.add("pets", [photos], tmp_path / "sets")
    assert (tmp_path / "mine" / "about.json").read_text() == "mine"
    assert in_progress(tmp_path) == []


# data get


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """CINIC-10 in two archives, downloaded in blocks from a table; every url that was asked for."""
    pixel = io.BytesIO()
    Image.new("RGB", (32, 32)).save(pixel, "PNG")
    archives = {}
    for parts in (("train",), ("test", "valid")):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for part in parts:
                member = tarfile.TarInfo(f"{part}/airplane/1.png")
                member.size = len(pixel.getvalue())
                tar.addfile(member, io.BytesIO(pixel.getvalue()))
        archives[f"https://publisher/{parts[0]}.tar"] = packed.getvalue()
    files = tuple(sources.File((u,), hashlib.sha256(a).hexdigest()) for u, a in archives.items())
    monkeypatch.setitem(sources.SOURCES, "cinic10", sources.Source(files))

    def more(self: get.Resuming, url: str) -> None:
        have = self._part.stat().st_size if self._part.is_file() else 0
        with open(self._part, "ab", buffering=0) as file:
            for at in range(have, len(archives[url]), 4096):
                file.write(archives[url][at : at + 4096])
                self._tell(f"downloading {url}", at, len(archives[url]))

    monkeypatch.setattr(get.Resuming, "_more", more)
    return archives


@pytest.mark.parametrize(
    "point",
    [
        ("replace", "train.tar.new", "before", 1),
        ("replace", "train.tar.new", "after", 1),
        ("replace", "/.unfinished", "before", 1),
        ("replace", "unpacking/train", "before", 1),
        ("replace", "unpacking/train", "after", 1),
        ("replace", "/.unfinished", "after", 2),
        ("unlink", "train.tar", "before", 1),
        ("replace", "unpacking/test", "after", 1),
        ("unlink", "/.unfinished", "before", 1),
        ("unlink", "/.unfinished", "after", 1),
    ],
)
def test_data_get_goes_on(tmp_path: Path, published: dict[str, bytes], point: tuple[Any, ...]) -> None:
    get.get("cinic10", tmp_path / "whole")
    asked: list[str] = []
    killed(lambda: get.get("cinic10", tmp_path / "sets"), *point)
    complete = get.is_here("cinic10", tmp_path / "sets")
    get.get("cinic10", tmp_path / "sets", tell=lambda what, done, total: asked.append(what))
    assert powerloss.contents(tmp_path / "sets") == powerloss.contents(tmp_path / "whole")
    assert {p.name for p in (tmp_path / "sets" / "cinic10").iterdir()} == {"train", "test", "valid"}
    assert (complete is not None) == (point[:3] == ("unlink", "/.unfinished", "after"))
    if "test" in point[1]:
        assert asked == []  # both archives were there


@pytest.mark.parametrize("damage", [False, True])
def test_data_get_goes_on_in_the_middle_of_a_download_and_starts_over_if_that_is_damaged(
    tmp_path: Path, published: dict[str, bytes], damage: bool
) -> None:
    def dies(what: str, done: int, total: int) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        get.get("cinic10", tmp_path, tell=dies)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    part = tmp_path / "cinic10" / get.WORKSHOP / "train.tar.part"
    assert part.stat().st_size == 8192
    if damage:
        part.write_bytes(bytes(8192))
    told: list[tuple[str, int]] = []
    get.get("cinic10", tmp_path, tell=lambda what, done, total: told.append((what, done)))
    assert told[0] == ("downloading https://publisher/train.tar", 8192)
    assert (("downloading https://publisher/train.tar", 0) in told) == damage
    assert get.is_here("cinic10", tmp_path) is not None


def test_data_get_leaves_files_of_yours_alone(tmp_path: Path, published: dict[str, bytes]) -> None:
    place = tmp_path / "sets" / "cinic10"
    place.mkdir(parents=True)
    mine = ("train.tar.part", "train.tar.new", "notes.txt", ".unpacking")
    for name in mine:
        (place / name).write_text("mine")
    get.get("cinic10", tmp_path / "sets")
    assert [(place / name).read_text() for name in mine] == ["mine"] * 4


@pytest.mark.parametrize("name", ["cinic10", "cinic10/.pfedsim-get", "cinic10/train"])
def test_data_get_follows_no_link(tmp_path: Path, published: dict[str, bytes], name: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.tex").write_text("mine")
    link = tmp_path / "sets" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "docs")
    with pytest.raises(Error, match="is a symbolic link"):
        get.get("cinic10", tmp_path / "sets")
    assert powerloss.contents(tmp_path / "docs") == {"thesis.tex": b"mine"}


def test_two_downloads_of_one_data_set_do_not_mix(tmp_path: Path, published: dict[str, bytes]) -> None:
    def second(what: str, done: int, total: int) -> None:
        with pytest.raises(Error, match="is in use"):
            get.get("cinic10", tmp_path)

    get.get("cinic10", tmp_path, tell=second)
    assert get.is_here("cinic10", tmp_path) is not None
