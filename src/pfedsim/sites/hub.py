"""The hub's part of a job of NVIDIA FLARE: the same round loop, whose clients are at sites."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from pfedsim import durable, seal
from pfedsim.core.engine import Engine
from pfedsim.data import partition as partitions
from pfedsim.data.partition import Partition, Split
from pfedsim.data.task import Task as DataTask
from pfedsim.errors import Error
from pfedsim.runs import manifest
from pfedsim.runs.config import read as read_config
from pfedsim.runs.execute import execute
from pfedsim.runs.setup import Distant, Plan
from pfedsim.sites.engine import Sites, TooFew
from pfedsim.sites.files import SITE_FILE, HubFile, Ready, bound, read
from pfedsim.sites.messages import Opening
from pfedsim.sites.segment import AGAIN, BEAT, DONE, FAILED, OUTCOME, beside
from pfedsim.sites.segment import ALIVE as ALIVE_FILE
from pfedsim.sites.topics import ALIVE, PACKET, WORK

LONGEST = 7 * 24 * 3600  # seconds after which a task ends, whatever happens
OK = "OK"


class FlareLink:
    """Packets as tasks: each site asks for its own. A site is there while its beats come, at most `silence` seconds
    apart."""

    def __init__(
        self, hub: Controller, fl_ctx: FLContext, abort: Signal, sites: Collection[str], silence: float
    ):
        self._hub, self._ctx, self._abort, self._silence = hub, fl_ctx, abort, silence
        self._sites = set(sites)
        self._heard: dict[str, float] = {}
        self._came: queue.SimpleQueue[tuple[str, bytes | str]] = queue.SimpleQueue()
        self._tasks: dict[str, Task] = {}
        fl_ctx.get_engine().register_aux_message_handler(topic=ALIVE, message_handle_func=self._alive)

    def wait(self, seconds: float) -> None:
        """Until all sites are there, or so many seconds."""
        end = time.monotonic() + seconds
        while set(self.here()) < self._sites and time.monotonic() < end:
            self._check()
            time.sleep(0.05)

    def here(self) -> Collection[str]:
        now = time.monotonic()
        return [site for site, heard in list(self._heard.items()) if now - heard <= self._silence]

    def post(self, site: str, packet: bytes, seconds: float | None) -> None:
        self._forget(site)
        limit = LONGEST if seconds is None else max(1, int(seconds) + 1)
        task = Task(
            name=WORK, data=Shareable({PACKET: packet}), timeout=limit, result_received_cb=self._received
        )
        self._tasks[site] = task
        self._hub.send(task=task, fl_ctx=self._ctx, targets=[site])

    def receive(self, seconds: float) -> Sequence[tuple[str, bytes | str]]:
        end = time.monotonic() + seconds
        found: list[tuple[str, bytes | str]] = []
        while not found:
            self._check()
            with suppress(queue.Empty):
                found.append(self._came.get(timeout=max(0.0, min(0.2, end - time.monotonic()))))
            here = set(self.here())
            for site in [site for site in self._tasks if site not in here]:
                self._forget(site)
                self._heard.pop(site, None)
                found.append((site, f"nothing was heard of it for {self._silence:g} seconds"))
            if time.monotonic() >= end:
                break
        return found

    def close(self) -> None:
        for site in list(self._tasks):
            self._forget(site)

    def _check(self) -> None:
        if self._abort.triggered:
            raise TooFew("the job was stopped")

    def _forget(self, site: str) -> None:
        if (task := self._tasks.pop(site, None)) is not None and task.completion_status is None:
            self._hub.cancel_task(task)

    def _alive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        site = fl_ctx.get_peer_context().get_identity_name()
        if site in self._sites:
            self._heard[site] = time.monotonic()
        return make_reply(OK)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, result = client_task.client.name, client_task.result
        if self._tasks.get(site) is client_task.task:
            del self._tasks[site]
        packet = result.get(PACKET)
        if isinstance(packet, bytes | bytearray):
            self._came.put((site, bytes(packet)))
        else:
            code = result.get_return_code()
            self._came.put((site, f"it answered {str(result.get('why') or code)[:300]}"))
        client_task.result = None


class Hub(Controller):  # type: ignore[misc]
    """Runs what `config` (as JSON) asks for, or goes on with it, in the hub's own folder for runs. How it ended is in
    a file beside the run's folder."""

    def __init__(
        self,
        name: str,
        run_id: str,
        config: str,
        quorum: float = 1.0,
        deadline: float | None = None,
        allow_drift: bool = False,
        silence: float = 30.0,
        join: float = 60.0,
    ):
        super().__init__(task_check_period=0.1)
        self._name, self._run_id, self._config = name, run_id, config
        self._quorum, self._deadline, self._allow_drift = quorum, deadline, allow_drift
        self._silence, self._join = silence, join

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing before the flow."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing after it."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The whole run, or what is left of it."""
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        file = Path(engine.get_workspace().get_site_config_dir()) / SITE_FILE
        ready = read(Ready, file, "the hub's file")
        if ready.hub is None:
            raise Error(f"{file} is not a hub's: it has no [hub]")
        runs, ended = Path(ready.hub.runs), threading.Event()
        folder = beside(runs, self._name)
        durable.make_folder(folder)
        beats = threading.Thread(target=_beat, args=(folder / ALIVE_FILE, job, ended), daemon=True)
        beats.start()
        try:
            how, why = self._run(ready, runs, abort_signal, fl_ctx)
        finally:
            ended.set()
            beats.join()
        self.log_info(fl_ctx, f"pfedsim: {how} {why}")
        text = seal.sealed({"job": job, "run": self._run_id, "how": how, "why": why})
        durable.write(folder / OUTCOME, text.encode())

    def _run(self, ready: Ready, runs: Path, abort: Signal, fl_ctx: FLContext) -> tuple[str, str]:
        try:
            assert ready.hub is not None
            link = FlareLink(self, fl_ctx, abort, ready.federation.sites, self._silence)
            task, partition = described(ready)

            def connect(planned: Plan) -> tuple[Engine, Sequence[float]]:
                link.wait(self._join)
                opening = Opening(
                    config=planned.config.plain(),
                    data=task.plain(),
                    clients=len(partition.clients),
                    made_with=manifest.made_with(planned.config),
                    allow_drift=self._allow_drift,
                )
                places = bound(ready.federation.sites)
                classes = len(task.classes)
                sites = Sites(link, planned.wire, classes, places, opening, self._run_id, self._quorum)
                return sites, sites.sizes

            federation = Distant(task, partition, connect, self._deadline)
            config = read_config(json.loads(self._config))
            if code := config.own_code():
                named = next(iter(code.values()))
                raise Error(
                    f"the hub runs the methods and networks of the installed package only, not {named!r}"
                )
            execute(config, runs / self._name, federation, resume=True, allow_drift=self._allow_drift)
        except (TooFew, durable.Busy) as error:
            return AGAIN, str(error)
        except Error as error:
            return FAILED, str(error)
        except Exception as error:
            self.log_exception(fl_ctx, f"pfedsim: {error}")
            return FAILED, f"{type(error).__name__}: {error}; the log of this job at the hub has the trace"
        return DONE, ""


def described(ready: Ready) -> tuple[DataTask, Partition]:
    """The data as the hub knows them: their description, and who has which of them, if that is public."""
    assert ready.hub is not None
    hub: HubFile = ready.hub
    try:
        task = DataTask.of(json.loads(Path(hub.task).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Error(f"the description of the data {hub.task} cannot be read: {error}") from error
    clients = bound(ready.federation.sites)
    if hub.partition is not None:
        found = partitions.load(Path(hub.partition), task.digest, 2**62)
        if len(found.clients) != len(clients):
            raise Error(
                f"{hub.partition} has {len(found.clients)} clients, the federation's file binds {len(clients)}"
            )
        return task, found
    nothing = np.zeros(0, dtype=np.int64)
    recipe = {"kind": "sites", "names": [f"{site}/{client}" for client, site in sorted(clients.items())]}
    return task, Partition(tuple(Split(nothing, nothing) for _ in clients), recipe, task.digest)


def _beat(file: Path, job: str, ended: threading.Event) -> None:
    """Says once in a while that this job lives."""
    while not ended.wait(BEAT):
        with suppress(OSError):
            file.write_text(json.dumps({"job": job, "at": time.time()}), encoding="utf-8")
