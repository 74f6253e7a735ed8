"""A site's part of a job of NVIDIA FLARE: packets go to the process that does the work. Nothing of it is imported
here, and whatever goes wrong is an answer."""

from __future__ import annotations

import threading
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from pfedsim.errors import Error
from pfedsim.sites.files import SITE_FILE, Ready, read
from pfedsim.sites.process import Stopped, WorkProcess
from pfedsim.sites.topics import ALIVE, PACKET, WORK

BEAT = 1.0  # seconds between two signs of life


class SiteExecutor(Executor):  # type: ignore[misc]
    """Takes no arguments: a job cannot tell a site anything but packets."""

    def __init__(self) -> None:
        super().__init__()
        self._process: WorkProcess | None = None
        self._ended = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Beats from the start of a job to its end."""
        if event_type == EventType.START_RUN:
            self._warm_up(fl_ctx)
            threading.Thread(target=self._beat, args=(fl_ctx.get_engine(),), daemon=True).start()
        elif event_type in (EventType.ABOUT_TO_END_RUN, EventType.END_RUN):
            self._ended.set()
            if self._process is not None:
                self._process.close()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The answer to a packet."""
        try:
            packet = shareable.get(PACKET)
            if task_name != WORK or not isinstance(packet, bytes | bytearray):
                raise Error(f"a site takes packets for the task {WORK!r} and nothing else")
            if self._process is None:
                self._process = self._opened(fl_ctx)
            return Shareable({PACKET: self._process.ask(bytes(packet), lambda: abort_signal.triggered)})
        except Stopped:
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as error:
            self.log_exception(fl_ctx, f"pfedsim: {error}")
            return Shareable({"why": str(error) if isinstance(error, Error) else type(error).__name__})

    def _warm_up(self, fl_ctx: FLContext) -> None:
        """Starts the process before there is work. What is wrong is said when there is."""
        try:
            self._process = self._opened(fl_ctx)
            self._process.start()
        except Exception as error:
            self.log_exception(fl_ctx, f"pfedsim: {error}")

    def _opened(self, fl_ctx: FLContext) -> WorkProcess:
        file = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / SITE_FILE
        ready = read(Ready, file, "the site's file")
        if ready.site is None:
            raise Error(f"{file} is not a site's: it has no [site]")
        return WorkProcess(file, ready.site.time_limit)

    def _beat(self, engine: object) -> None:
        while not self._ended.is_set():
            try:
                with engine.new_context() as fl_ctx:  # type: ignore[attr-defined]
                    engine.send_aux_request(  # type: ignore[attr-defined]
                        targets=[SERVER_SITE_NAME],
                        topic=ALIVE,
                        request=Shareable(),
                        timeout=0.0,
                        fl_ctx=fl_ctx,
                        optional=True,
                    )
            except Exception as error:  # the connection may be away for a while
                self.logger.debug(f"pfedsim: {error}")
            self._ended.wait(BEAT)
