"""The kits of hub, sites and admins: made by NVIDIA FLARE, and completed so that a site runs nothing but what is
installed there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import tomli_w

from pfedsim import durable
from pfedsim.errors import Error
from pfedsim.sites.files import (
    ROLES,
    SITE_FILE,
    FederationFile,
    HubFile,
    Ready,
    SiteFile,
    Table,
    checked,
)

AUTHORITY = "authority"  # the folder with the key that signs every certificate
HUB = "hub"
EXECUTOR = "pfedsim.sites.executor.SiteExecutor"
CONTROLLER = "pfedsim.sites.hub.Hub"
SILENCE = 30  # seconds after which FLARE's own server forgets a site
AT_SITES: dict[str, dict[str, str]] = {  # what roles may ask of a site
    "project_admin": {"submit_job": "any", "manage_job": "any", "view": "any"},
    "org_admin": {"manage_job": "o:submitter", "view": "any"},
    "lead": {"submit_job": "any", "manage_job": "n:submitter", "view": "any"},
    "member": {"view": "any"},
}
AT_HUB: dict[str, dict[str, str]] = {  # and of the hub
    **AT_SITES,
    "project_admin": {**AT_SITES["project_admin"], "operate": "any"},
}
NEVER = ("byoc", "shell_commands", "clone_job", "download_job", "server-predeployed-flwr")
STREAMS = ("site_log_streamer", "log_receiver")


def provision(federation: FederationFile, out: Path) -> list[Path]:
    """Makes a kit for everybody who has none yet. The certificates' key stays in the folder `authority`."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    durable.make_folder(out)
    authority = out / AUTHORITY
    authority.mkdir(mode=0o700, exist_ok=True)
    said = io.StringIO()
    project = _project(federation)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        ctx = Provisioner(str(authority), prepare_builders(project)).provision(prepare_project(project))
    if ctx.get("__build_error__"):
        raise Error(f"the kits could not be made: {' '.join(said.getvalue().split())[:300]}")
    newest = max((authority / federation.name).glob("prod_*"), key=lambda path: int(path.name[5:]))
    made = []
    for source in sorted(newest.iterdir()):
        target = out / (HUB if source.name == federation.host else source.name)
        if source.is_dir() and not target.exists():
            shutil.copytree(source, target)
            target.chmod(0o700)
            _ready(target, Ready(federation=federation, name=target.name))
            made.append(target)
    shutil.rmtree(newest)
    return made


def _project(federation: FederationFile) -> dict[str, Any]:
    """What FLARE's provisioning takes. Every site is an organisation of its own."""
    hub = {"type": "server", "name": federation.host, "org": "hub", "default_host": federation.host}
    sites = [{"type": "client", "name": site, "org": re.sub(r"\W", "_", site)} for site in federation.sites]
    admins = [
        {"type": "admin", "name": name, "org": "hub", "role": role}
        for name, role in federation.admins.items()
    ]
    impl = "nvflare.lighter.impl"
    return {
        "api_version": 3,
        "name": federation.name,
        "description": "",
        "participants": [
            {**hub, "fed_learn_port": federation.port, "admin_port": federation.port},
            *sites,
            *admins,
        ],
        "builders": [
            {
                "path": f"{impl}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {
                "path": f"{impl}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{impl}.cert.CertBuilder", "args": {"root_valid_days": federation.days}},
            {"path": f"{impl}.signature.SignatureBuilder", "args": {}},
        ],
    }


def prepare(kit: Path, own: dict[str, Any]) -> Ready:
    """Completes a kit with what its owner wrote: where the data are (a site), or where runs go (the hub). From then on
    it takes no code from anybody, builds no component but ours, shows no log and opens no shell."""
    ready = ready_of(kit)
    what = "hub" if ready.name == HUB else "site"
    if what == "site" and ready.name not in ready.federation.sites:
        raise Error(f"{kit} is an admin's kit, which needs no preparation")
    kind: type[Table] = HubFile if what == "hub" else SiteFile
    table = checked(kind, {**own, **_absolute(own)}, "the settings")
    ready = ready.model_copy(update={what: table})
    _ready(kit, ready)
    local = kit / "local"
    _harden_resources(local, kit, what)
    roles = AT_HUB if what == "hub" else AT_SITES
    permissions = {role: {**dict.fromkeys(NEVER, "none"), **roles[role]} for role in ROLES}
    _write(local / "authorization.json", {"format_version": "1.0", "permissions": permissions})
    return ready


def _absolute(own: dict[str, Any]) -> dict[str, str]:
    """Paths that hold wherever a process starts."""
    named = ("folder", "runs", "task", "partition", "data_dir")
    paths = {name: str(Path(own[name]).resolve()) for name in named if isinstance(own.get(name), str)}
    data = own.get("data")
    if isinstance(data, str) and Path(data).suffix:
        paths["data"] = str(Path(data).resolve())
    return paths


def _harden_resources(local: Path, kit: Path, what: str) -> None:
    file = local / "resources.json.default"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Error(
            f"{file} cannot be read, so {kit} is no kit of pfedsim sites provision: {error}"
        ) from error
    found["class_list_enforcement_mode"] = "enforce"
    found["class_allow_list"] = [CONTROLLER if what == "hub" else EXECUTOR]
    found["allow_log_streaming"] = False
    found["components"] = [one for one in found["components"] if one["id"] not in STREAMS]
    if what == "hub":
        for server in found["servers"]:
            server["heart_beat_timeout"] = SILENCE
        store = found["snapshot_persistor"]["args"]["storage"]["args"]
        store["root_dir"] = str((kit / "snapshots").resolve())
        for one in found["components"]:
            if one["id"] == "job_manager":
                one["args"]["uri_root"] = str((kit / "jobs").resolve())
            if one["id"] == "job_scheduler":
                one["args"] = {
                    "max_jobs": 4,
                    "max_schedule_count": 1_000_000,
                    "min_schedule_interval": 1.0,
                    "max_schedule_interval": 5.0,
                }
    _write(local / "resources.json", found)


def ready_of(kit: Path) -> Ready:
    """What a kit says of itself."""
    from pfedsim.sites.files import read

    if not (kit / "startup").is_dir():
        raise Error(f"{kit} is no kit: it has no folder 'startup' (pfedsim sites provision makes kits)")
    return read(Ready, kit / "local" / SITE_FILE, "the kit's file")


def _ready(kit: Path, ready: Ready) -> None:
    (kit / "local").mkdir(exist_ok=True)
    text = tomli_w.dumps(ready.model_dump(exclude_none=True))
    durable.write(kit / "local" / SITE_FILE, text.encode())


def _write(path: Path, content: dict[str, Any]) -> None:
    durable.write(path, (json.dumps(content, indent=2) + "\n").encode())
