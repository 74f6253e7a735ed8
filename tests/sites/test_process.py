"""A site's work in a process of its own: what ends it, and what its parent makes of that."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from pfedsim.data.federation import Federation
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.config import check
from pfedsim.runs.setup import plan
from pfedsim.sites import messages
from pfedsim.sites.files import FederationFile, Ready, SiteFile
from pfedsim.sites.messages import Envelope, Opened, Opening, Refusal
from pfedsim.sites.process import Stopped, WorkProcess

RUN = "0123456789abcdef"

SCRIPTED = """
import json, os, struct, sys, time
from pathlib import Path
HEAD = struct.Struct("<cQ")
folder = Path(sys.argv[1])
source, sink = sys.stdin.buffer, sys.stdout.buffer
def say(kind, content):
    sink.write(HEAD.pack(kind, len(content)) + content)
    sink.flush()
while head := source.read(HEAD.size):
    content = source.read(HEAD.unpack(head)[1])
    (size,) = struct.unpack("<Q", content[:8])
    given_up, order = json.loads(content[8 : 8 + size]), content[8 + size :].decode()
    with open(folder / "asked", "a") as file:
        file.write(json.dumps(given_up) + chr(10))
    if order == "dies at once":
        os._exit(9)
    for client in (1, 2):
        if str(client) in given_up:
            continue
        say(b"@", struct.pack("<q", client))
        if client == 2 and order == "dies":
            os._exit(9)
        if client == 2 and order == "dies once" and not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(9)
        if client == 2 and order == "hangs":
            time.sleep(600)
    say(b"!", order.encode())
"""


@pytest.fixture
def scripted(tmp_path: Path) -> list[str]:
    script = tmp_path / "scripted.py"
    script.write_text(SCRIPTED)
    return [sys.executable, str(script), str(tmp_path)]


def asked(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]


def test_a_process_that_dies_is_started_again(tmp_path: Path, scripted: list[str]) -> None:
    process = WorkProcess(tmp_path, command=scripted)
    assert process.ask(b"dies once") == b"dies once"
    assert asked(tmp_path) == [{}, {}]
    process.close()


def test_a_client_whose_process_dies_twice_is_given_up(tmp_path: Path, scripted: list[str]) -> None:
    process = WorkProcess(tmp_path, command=scripted)
    assert process.ask(b"dies") == b"dies"
    assert [list(given) for given in asked(tmp_path)] == [[], [], ["2"]]
    assert "ended its process twice" in asked(tmp_path)[-1]["2"]
    process.close()


def test_a_client_that_takes_too_long_is_given_up(tmp_path: Path, scripted: list[str]) -> None:
    process = WorkProcess(tmp_path, limit=1.0, command=scripted)
    assert process.ask(b"hangs") == b"hangs"
    assert asked(tmp_path)[-1] == {"2": "it took longer than 1 seconds"}
    process.close()


def test_a_process_that_cannot_start_is_an_error(tmp_path: Path, scripted: list[str]) -> None:
    with pytest.raises(Error, match="ends at once"):
        WorkProcess(tmp_path, command=scripted).ask(b"dies at once")


def test_work_that_nobody_waits_for_is_stopped(tmp_path: Path, scripted: list[str]) -> None:
    process = WorkProcess(tmp_path, command=scripted)
    with pytest.raises(Stopped):
        process.ask(b"hangs", stop=lambda: (tmp_path / "asked").exists())


@pytest.fixture
def site(tmp_path: Path, digits: Federation) -> tuple[Path, Opening]:
    """A prepared site with clients 1 and 4 of the digits, and what opens a run there."""
    digits.partition.save(tmp_path / "partition.json")
    here = SiteFile(
        data="digits", partition=str(tmp_path / "partition.json"), folder=str(tmp_path / "here")
    )
    names = {"a": [1, 4], "b": [0, 2, 3, 5]}
    known = FederationFile(name="f", host="127.0.0.1", sites=names, admins={"lead@f.org": "lead"})
    import tomli_w

    file = tmp_path / "pfedsim.toml"
    file.write_text(
        tomli_w.dumps(Ready(federation=known, name="a", site=here).model_dump(exclude_none=True))
    )
    config = check({"data": "digits", "method": "fedper", "rounds": 2, "backend": "torch"})
    digests = config.digests.model_copy(update={"partition": digits.partition.digest})
    planned = plan(config.model_copy(update={"digests": digests}), digits.task, digits.clients)
    made = manifest.made_with(planned.config)
    return file, Opening(config=planned.config.plain(), data=digits.task.plain(), clients=6, made_with=made)


def asks(body: Opening) -> bytes:
    return messages.sealed(Envelope(run=RUN, site="a", request="f" * 32, body=body), {})


def test_a_site_opens_in_its_process_and_ends_with_its_parent(
    site: tuple[Path, Opening], digits: Federation
) -> None:
    file, opening = site
    process = WorkProcess(file)
    body = messages.unsealed(process.ask(asks(opening)))[0].body
    assert isinstance(body, Opened), body
    assert body.sizes == {i: len(digits.partition.clients[i].train) for i in (1, 4)}
    assert body.notes == []
    assert process._process is not None
    number = process._process.pid
    process._process.stdin.close()  # as when the parent dies
    assert process._process.wait(30) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(number, signal.SIGCONT)
    process.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "mine.py:Mine"}, "installed package only"),
        ({"model": "os:system"}, "installed package only"),
        ({"pretrained": "/etc/passwd.npz"}, "may not name a file of the site"),
        ({"data_dir": "/etc", "nosuch": 1}, "there is no setting 'nosuch'"),
        ({"rounds": -1}, "rounds = -1"),
    ],
)
def test_a_run_cannot_name_code_or_files_of_a_site(
    site: tuple[Path, Opening], change: dict, says: str
) -> None:
    from pfedsim.sites.premises import load
    from pfedsim.sites.site import Site

    file, opening = site
    bad = opening.model_copy(update={"config": {**opening.config, **change}})
    body = messages.unsealed(Site(load(file)).handle(asks(bad)))[0].body
    assert isinstance(body, Refusal)
    assert says in body.why


def test_another_version_or_other_data_are_refused_in_a_sentence(site: tuple[Path, Opening]) -> None:
    from pfedsim.sites.premises import load
    from pfedsim.sites.site import Site

    file, opening = site
    made = json.loads(json.dumps(opening.made_with))
    made["versions"]["pfedsim"] = "0.0.1"
    here = Site(load(file))

    def why(**change: object) -> str:
        body = messages.unsealed(here.handle(asks(opening.model_copy(update=change))))[0].body
        return body.why if isinstance(body, Refusal) else ""

    assert "its pfedsim is not the hub's (versions.pfedsim: 0.0.1 -> " in why(made_with=made)
    assert why(made_with=made, allow_drift=True) == ""
    shape = {**opening.data, "shape": [1, 28, 28]}
    assert "the data of this site have the shape (1, 32, 32)" in why(data=shape)
    assert "digests.data" in why(data={**opening.data, "digest": "0" * 64})


def test_an_unknown_file_of_a_site_is_an_error(tmp_path: Path) -> None:
    from pfedsim.sites.premises import load

    (tmp_path / "site.toml").write_text("name = 1")
    with pytest.raises(Error, match="needs 'federation'"):
        load(tmp_path / "site.toml")
