"""Everything on this machine: a hub and sites as processes of their own, with kits and TLS, on the loopback interface
only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pfedsim import durable
from pfedsim.errors import Error
from pfedsim.runs.config import Config
from pfedsim.runs.setup import federate
from pfedsim.sites.admin import Admin
from pfedsim.sites.chain import Chain, How
from pfedsim.sites.files import FederationFile
from pfedsim.sites.kits import HUB, prepare, provision
from pfedsim.sites.serve import command

LOOPBACK = "127.0.0.1"
LEAD = "lead@local.org"
PATIENCE = 120.0  # seconds until all processes are there
Say = Callable[[str], None]


@dataclass
class Local:
    """A federation in one folder: kits/, runs/ and a folder for each site."""

    folder: Path
    federation: FederationFile
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def site(self, name: str) -> Path:
        """What a site keeps."""
        return self.folder / "sites" / name

    def start(self, name: str) -> None:
        """Starts the hub or a site; its output goes to a log beside its kit."""
        words = command(self.kit(name))
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                words,
                cwd=self.kit(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Ends a process and all that it started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name)

    def wait(self, admin: Admin) -> None:
        """Until all sites are connected."""
        end = time.monotonic() + PATIENCE
        missing = set(self.federation.sites)
        while missing:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise Error(f"the process of {name} ended at once; {self.folder / name}.log says why")
            if time.monotonic() > end:
                raise Error(
                    f"after {PATIENCE:g} seconds not all sites are connected: {', '.join(sorted(missing))}"
                )
            time.sleep(0.2)
            with contextlib.suppress(Error):
                missing = set(self.federation.sites) - set(admin.sites())


def build(config: Config, sites: int, folder: Path) -> Local:
    """Kits, data and a partition for so many sites, each with about the same number of clients."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Error(f"{folder} exists and is not empty; choose another folder")
    data = federate(config)
    if not 1 <= sites <= data.clients:
        raise Error(
            f"--sites {sites}: there are {data.clients} clients, so give a number from 1 to {data.clients}"
        )
    durable.make_folder(folder)
    (folder / "task.json").write_text(json.dumps(data.task.plain()), encoding="utf-8")
    data.partition.save(folder / "partition.json")
    names = {f"site-{k + 1}": list(range(data.clients))[k::sites] for k in range(sites)}
    federation = FederationFile(
        name="local", host=LOOPBACK, port=free_port(), sites=names, admins={LEAD: "lead"}
    )
    provision(federation, folder / "kits")
    local = Local(folder, federation)
    shared = {"task": str(folder / "task.json"), "partition": str(folder / "partition.json")}
    prepare(local.kit(HUB), {"runs": str(local.runs), **shared})
    own = {"data": config.data, **({"data_dir": config.data_dir} if config.data_dir else {})}
    for name in names:
        about = {**own, "partition": shared["partition"], "folder": str(local.site(name))}
        prepare(local.kit(name), about)
    return local


@contextlib.contextmanager
def running(local: Local, say: Say) -> Iterator[Admin]:
    """The hub and all sites as processes; an admin's session with them."""
    admin = Admin(local.kit(LEAD))
    try:
        for name in (HUB, *local.federation.sites):
            local.start(name)
        say(
            f"hub at {LOOPBACK}:{local.federation.port}, {len(local.federation.sites)} sites, all on this machine"
        )
        local.wait(admin)
        yield admin
    finally:
        admin.close()
        local.close()


def run_local(config: Config, sites: int, folder: Path, how: How, say: Say = print) -> Path:
    """The finished run's folder."""
    local = build(config, sites, folder)
    with running(local, say) as admin:
        return Chain(admin, local.runs, "run", config, how, say).drive()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
