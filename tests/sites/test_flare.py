"""Real hubs and sites on the loopback interface, with kits and TLS: the bits of the serial engine, and who is refused.
`make test-sites` runs these."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sites as against_serial
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from pfedsim.errors import Error
from pfedsim.export.read import load
from pfedsim.runs.config import check
from pfedsim.sites.admin import Admin, check_certificate, job_folder
from pfedsim.sites.chain import Chain, How
from pfedsim.sites.checks import checks
from pfedsim.sites.files import FederationFile
from pfedsim.sites.kits import AUTHORITY, EXECUTOR, HUB, prepare, provision
from pfedsim.sites.local import LOOPBACK, Local, free_port
from pfedsim.sites.segment import CHAIN, beside
from pfedsim.sites.serve import command

CONFIG = check(
    {
        "data": "digits",
        "clients": 6,
        "alpha": 0.5,
        "minimum": 40,
        "method": "pfedsim",
        "rounds": 2,
        "epochs": 1,
    }
)
NAMES = {"site-1": [0, 3], "site-2": [1, 4], "site-3": [2, 5]}
ADMINS = {"lead@test.org": "lead", "boss@test.org": "project_admin", "member@test.org": "member"}
PATIENCE = 90.0


def made(folder: Path, port: int) -> Local:
    """A prepared federation of three sites."""
    from pfedsim.runs.setup import federate

    data = federate(CONFIG)
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(data.task.plain()))
    data.partition.save(folder / "partition.json")
    known = FederationFile(name="test", host=LOOPBACK, port=port, sites=NAMES, admins=ADMINS)
    provision(known, folder / "kits")
    local = Local(folder, known)
    shared = {"task": str(folder / "task.json"), "partition": str(folder / "partition.json")}
    prepare(local.kit(HUB), {"runs": str(local.runs), **shared})
    for name in NAMES:
        about = {"data": "digits", "partition": shared["partition"], "folder": str(local.site(name))}
        prepare(local.kit(name), about)
    return local


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    here = made(tmp_path_factory.mktemp("sites") / "ours", free_port())
    admin = Admin(here.kit("lead@test.org"))
    try:
        for name in (HUB, *NAMES):
            here.start(name)
        here.wait(admin)
        yield here
    finally:
        admin.close()
        here.close()


@pytest.fixture
def lead(local: Local) -> Iterator[Admin]:
    admin = Admin(local.kit("lead@test.org"))
    yield admin
    admin.close()


def test_a_run_over_three_sites_has_the_serial_engines_bytes(
    local: Local, lead: Admin, tmp_path: Path
) -> None:
    said: list[str] = []
    Chain(lead, local.runs, "run", CONFIG, How(), said.append).drive()
    serial = against_serial.serially(CONFIG, tmp_path / "serial")
    assert against_serial.differences(local, "run", serial) == []
    assert "round 2" in said
    run = json.loads((beside(local.runs, "run") / CHAIN).read_text())["run"]
    model = load(local.site("site-1") / "models" / run / "client-00003")
    assert len(model.classes) == 10
    again = Chain(lead, local.runs, "run", CONFIG, How(), said.append).drive()
    assert again == local.runs / "run"
    other = CONFIG.model_copy(update={"rounds": 3})
    with pytest.raises(Error, match="a run with other settings"):
        Chain(lead, local.runs, "run", other, How(), said.append).drive()


def test_a_job_that_names_code_is_refused_in_a_sentence(local: Local, lead: Admin) -> None:
    config = CONFIG.model_copy(update={"model": "os:system"})
    with pytest.raises(Error, match="the hub runs the methods and networks of the installed package only"):
        Chain(lead, local.runs, "foreign", config, How(), lambda said: None).drive()


def test_a_prepared_kit_passes_its_checks(local: Local) -> None:
    found = {name: (wrong, said) for name, wrong, said in checks(local.kit("site-2"))}
    assert [name for name, (wrong, _) in found.items() if wrong] == []
    assert "clients 1 (" in found["data"][1]
    at_hub = {name: wrong for name, wrong, _ in checks(local.kit(HUB))}
    assert [name for name, wrong in at_hub.items() if wrong] == ["port"]  # the hub itself has it


def answers(local: Local, kit: Path, certificate: bool = True) -> bool:
    """Whether the hub's port says anything to a client with this kit's certificate, or with none."""
    startup = kit / "startup"
    context = ssl.create_default_context(cafile=str(local.kit("site-1") / "startup" / "rootCA.pem"))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        with (
            socket.create_connection((LOOPBACK, local.federation.port), 10) as plain,
            context.wrap_socket(plain) as there,
        ):
            there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            return bool(there.recv(4096))
    except (ssl.SSLError, ConnectionError):
        return False


def stays_out(local: Local, lead: Admin, name: str, kit: Path, words: list[str]) -> str:
    """Starts a process as this site, whose own process is down meanwhile; it does not get in. Its log."""
    local.stop(name)
    end = time.monotonic() + PATIENCE
    while name in lead.sites() and time.monotonic() < end:
        time.sleep(1)
    log = kit.parent / f"{kit.name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(words, cwd=kit, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        for _ in range(25):
            time.sleep(1)
            assert name not in lead.sites()
    finally:
        for one in against_serial.tree(process.pid):
            one.kill()
        process.wait()
        local.start(name)
        local.wait(lead)
    return log.read_text(errors="replace")


def copy(kit: Path, to: Path) -> Path:
    shutil.copytree(kit, to)
    return to


def test_a_connection_without_a_certificate_is_refused(local: Local, tmp_path: Path) -> None:
    assert answers(local, local.kit("site-1"))
    assert not answers(local, local.kit("site-1"), certificate=False)
    kit = copy(local.kit("site-1"), tmp_path / "bare")
    (kit / "startup" / "client.crt").unlink()
    with pytest.raises(Error, match="has no certificate"):
        command(kit)


def test_a_kit_of_another_authority_is_refused(local: Local, tmp_path: Path) -> None:
    foreign = made(tmp_path / "theirs", local.federation.port)
    assert not answers(local, foreign.kit("site-1"))
    admin = Admin(foreign.kit("lead@test.org"))
    with pytest.raises(Error, match=r"does not answer|does not accept"):
        admin.sites()
    admin.close()


def test_a_site_cannot_take_anothers_name(local: Local, lead: Admin, tmp_path: Path) -> None:
    kit = copy(local.kit("site-2"), tmp_path / "pretender")
    words = [word.replace("site-2", "site-1").replace("site_2", "site_1") for word in command(kit)[-5:]]
    config = kit / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace("site-2", "site-1"))
    said = stays_out(local, lead, "site-1", kit, [*command(kit)[:-5], *words])
    assert "is closed" in said  # by the hub, which says why
    log = (local.folder / f"{HUB}.log").read_text(errors="replace")
    assert "authenticated as 'site-2' but claimed endpoint 'site-1'" in log


def test_a_sites_certificate_makes_no_admin(local: Local, tmp_path: Path) -> None:
    kit = copy(local.kit("lead@test.org"), tmp_path / "posing")
    for name in ("client.crt", "client.key"):
        shutil.copy(local.kit("site-1") / "startup" / name, kit / "startup" / name)
    admin = Admin(kit)
    with pytest.raises(Error, match=r"does not accept|refuses|may not"):
        admin.sites()
    admin.close()


def test_a_member_may_look_but_not_submit(local: Local) -> None:
    admin = Admin(local.kit("member@test.org"))
    assert set(admin.sites()) == set(NAMES)
    with job_folder("x", list(NAMES), 3, {}, 0.2) as job, pytest.raises(Error, match="may not do this"):
        admin.submit(job)
    admin.close()


def test_an_expired_certificate_is_refused(local: Local, tmp_path: Path) -> None:
    kit = copy(local.kit("site-3"), tmp_path / "expired")
    state = json.loads((local.folder / "kits" / AUTHORITY / "test" / "state" / "cert.json").read_text())
    root = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    old = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.issuer)
    builder = builder.public_key(old.public_key()).serial_number(x509.random_serial_number())
    now = datetime.now(UTC)
    builder = builder.not_valid_before(now - timedelta(9)).not_valid_after(now - timedelta(2))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate = builder.sign(root, hashes.SHA256())
    (kit / "startup" / "client.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(Error, match=r"client\.crt expired on"):
        check_certificate(kit)
    assert not answers(local, kit)


@pytest.mark.parametrize("how", ["code", "class", "arguments"])
def test_a_job_cannot_bring_code_or_another_class(local: Local, lead: Admin, how: str) -> None:
    """The lead submits it; the sites do not build it, and what it would do does not happen."""
    mark = local.folder / f"{how}.mark"
    with job_folder(how, list(NAMES), 3, {"name": how, "run_id": "0" * 32, "config": "{}"}, 0.2) as job:
        site = job / "app" / "config" / "config_fed_client.json"
        content = json.loads(site.read_text())
        component = content["executors"][0]["executor"]
        if how == "code":
            custom = job / "app" / "custom"
            custom.mkdir()
            (custom / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
            component["path"] = "evil.Evil"
        elif how == "class":
            component.update(path="subprocess.Popen", args={"args": ["touch", str(mark)]})
        else:
            component["args"] = {
                "file": {"path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}
            }
            assert component["path"] == EXECUTOR
        site.write_text(json.dumps(content))
        number = ""
        with contextlib.nullcontext() if how != "code" else contextlib.suppress(Error):
            number = lead.submit(job)
    end = time.monotonic() + PATIENCE
    while number and not lead.status(number).startswith("FINISHED") and time.monotonic() < end:
        time.sleep(0.5)
    lead.stop(number)
    assert not mark.exists()


def test_nobody_gets_a_shell_or_a_log_of_a_site(local: Local) -> None:
    admin = Admin(local.kit("boss@test.org"))
    admin.sites()
    for verb in ("ls_target", "cat_target", "tail_target_log", "get_working_directory"):
        with pytest.raises(Error, match=r"may not do this|refuses"):
            admin._do(verb, "site-1")
    admin.close()


def test_a_disabled_site_stays_out_until_it_is_enabled(local: Local, lead: Admin) -> None:
    boss = Admin(local.kit("boss@test.org"))
    boss._do("disable_client", "site-3")
    local.stop("site-3")
    local.start("site-3")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        assert "site-3" not in lead.sites()
        time.sleep(1)
    boss._do("enable_client", "site-3")
    boss.close()
    if local.processes["site-3"].poll() is not None:
        local.stop("site-3")
        local.start("site-3")
    local.wait(lead)
