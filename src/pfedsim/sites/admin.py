"""The admin's side of NVIDIA FLARE: who is there, and jobs that are submitted, looked at and stopped."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pfedsim.errors import Error
from pfedsim.sites.kits import CONTROLLER, EXECUTOR, ready_of
from pfedsim.sites.topics import WORK

TIMEOUT = 10.0  # seconds to reach the hub


class Unreached(Error):
    """The hub does not answer."""


class Admin:
    """A session with the hub, opened when it is needed and again when it is lost."""

    def __init__(self, kit: Path):
        self._kit = kit
        ready = ready_of(kit)
        self._where = f"{ready.federation.host}:{ready.federation.port}"
        self.name, self.federation = ready.name, ready.federation
        check_certificate(kit)
        self._session: Any = None

    def sites(self) -> list[str]:
        """The sites that are connected."""
        return [client.name for client in self._do("get_connected_client_list")]

    def submit(self, job: Path) -> str:
        """Submits the job in this folder; returns its number."""
        return str(self._do("submit_job", str(job)))

    def status(self, job: str) -> str:
        """What the hub says of a job; empty if it does not know it."""
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        try:
            return str(self._do("get_job_meta", job).get("status", ""))
        except JobNotFound:
            return ""

    def stop(self, job: str) -> None:
        """Ends a job, if it runs."""
        with contextlib.suppress(Error):
            self._do("abort_job", job)

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception), _quiet():
                self._session.close()
            self._session = None

    def _do(self, verb: str, *args: Any) -> Any:
        from nvflare.fuel.flare_api import api_spec as spec

        try:
            with _quiet():
                if self._session is None:
                    self._session = self._opened()
                return getattr(self._session, verb)(*args)
        except spec.JobNotFound:
            raise
        except spec.AuthorizationError as error:
            raise Error(f"{self.name} may not do this at {self._where}: {_line(error)}") from error
        except spec.AuthenticationError as error:
            self.close()
            raise Error(f"the hub at {self._where} does not accept {self.name}: {_line(error)}") from error
        except (spec.NoConnection, spec.SessionClosed, TimeoutError, ConnectionError) as error:
            self.close()
            raise Unreached(f"the hub at {self._where} does not answer: {_line(error)}") from error
        except Exception as error:
            self.close()
            raise Error(f"the hub at {self._where} refuses: {_line(error)}") from error

    def _opened(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        return new_secure_session(
            self.name, str(self._kit.resolve()), timeout=TIMEOUT, auto_login_max_tries=1
        )


def check_certificate(kit: Path) -> None:
    """Raises an error if the kit's certificate is missing, not yet valid or expired."""
    from cryptography import x509

    names = ("server.crt", "client.crt")
    found = [kit / "startup" / name for name in names if (kit / "startup" / name).is_file()]
    if not found:
        raise Error(f"{kit} has no certificate: it should be in {kit / 'startup'}")
    for path in (*found, kit / "startup" / "rootCA.pem"):
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise Error(f"{path} cannot be read as a certificate: {error}") from error
        now = datetime.now(UTC)
        if now > certificate.not_valid_after_utc:
            day = certificate.not_valid_after_utc.date()
            raise Error(f"{path} expired on {day}: ask whoever provisioned the federation for a new kit")
        if now < certificate.not_valid_before_utc:
            day = certificate.not_valid_before_utc.date()
            raise Error(
                f"{path} is valid from {day} on, and the clock here says {now.date()}: set the clock"
            )


@contextlib.contextmanager
def job_folder(
    name: str, sites: Sequence[str], fewest: int, arguments: dict[str, Any], poll: float
) -> Iterator[Path]:
    """A job as FLARE takes it: which class runs at the hub and at the sites, and no code."""
    with tempfile.TemporaryDirectory(prefix="pfedsim-job-") as place:
        folder = Path(place) / "pfedsim"
        config = folder / "app" / "config"
        config.mkdir(parents=True)
        nothing: dict[str, Any] = {"task_data_filters": [], "task_result_filters": [], "components": []}
        meta = {
            "name": name,
            "deploy_map": {"app": ["server", *sites]},
            "min_clients": fewest,
            "resource_spec": {},
        }
        hub = {
            "format_version": 2,
            "server": {"task_request_interval": poll},
            "workflows": [{"id": WORK, "path": CONTROLLER, "args": arguments}],
            **nothing,
        }
        site = {
            "format_version": 2,
            "default_task_fetch_interval": poll,
            "executors": [{"tasks": [WORK], "executor": {"path": EXECUTOR, "args": {}}}],
            **nothing,
        }
        for path, content in (
            (folder / "meta.json", meta),
            (config / "config_fed_server.json", hub),
            (config / "config_fed_client.json", site),
        ):
            path.write_text(json.dumps(content, indent=2), encoding="utf-8")
        yield folder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """FLARE prints to the screen and logs; what matters comes back as results and errors."""
    logging.getLogger().setLevel(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
