"""Long-lived Ray actors, one per core of a cluster: opened from a value, called, watched, and replaced when they
die."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from pfedsim.engines.last_words import LastWords
from pfedsim.errors import Error

NEEDED = "the engine 'ray' needs Ray, which is not installed: pip install 'pfedsim[ray]'"
TRUST = (
    "Ray lets everyone who reaches its ports run code, unless token authentication is on: fence the ports of "
    "{} (docs/cluster.md says how)"
)
RESUME = (
    "the checkpoint stays: `pfedsim resume RUN` continues a run on this or another cluster, the same command as "
    "before a comparison"
)
ENDED = "pfedsim: this process was ended, by Ray if the node under it or the head node died; " + RESUME
PATIENCE = 60.0  # seconds without any worker before a run gives up
FIRST = 300.0  # the same before the first has opened: a node may import torch from a slow disk
WINDOW = 2  # calls that an actor has at once: the next is there when one ends
ANSWERS = 10.0  # seconds in which a living actor says what it does
FAILURES = 5  # actors in a row that die while they open
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, 4, 0, 0, 0, 0, 0]
)  # how gRPC begins: with its settings
LOOK = "look"  # the thread of an actor that says what it does, while another works


class Guest(Protocol):
    """What an actor holds: it does jobs, and says meanwhile how far it is."""

    def do(self, *job: Any) -> Any: ...

    def look(self) -> Any: ...


class Opener(Protocol):
    """A value from which an actor opens its guest. `arrays` None: from what the node has. Returns the guest, or
    None where it needs the arrays, and how the node differs from the driver."""

    def open(self, arrays: Sequence[np.ndarray | None] | None) -> tuple[Guest | None, list[str]]: ...


class Host:
    """The actor itself, in its own process."""

    def __init__(self) -> None:
        self._guest: Guest | None = None

    def open(self, opener: Opener, *arrays: np.ndarray | None) -> Any:
        """Whether the guest is open, how the node differs, and the node's number in the cluster."""
        import ray

        number = ray.get_runtime_context().get_node_id()
        node = f"{socket.gethostname()} ({ray.util.get_node_ip_address()}, {number[:6]})"
        return _answer(lambda: self._opened(opener, node, arrays), number)

    def _opened(
        self, opener: Opener, node: str, arrays: Sequence[np.ndarray | None]
    ) -> tuple[bool, list[str]]:
        try:
            self._guest, notes = opener.open(arrays or None)
        except Error as error:
            raise Error(f"node {node}: {error}") from error
        return self._guest is not None, [f"node {node}: {note}" for note in notes]

    def do(self, *job: Any) -> Any:
        assert self._guest is not None
        guest = self._guest
        return _answer(lambda: guest.do(*job))

    def look(self) -> Any:
        return self._guest.look() if self._guest is not None else None


def _answer(work: Any, *more: Any) -> tuple[Any, ...]:
    """The error or None, the result, and what else is known."""
    try:
        return None, work(), *more
    except Error as error:
        error.add_note(traceback.format_exc())  # a cause does not travel
        return error, None, *more
    except Exception:
        return RuntimeError(f"in an actor:\n{traceback.format_exc()}"), None, *more


def require(address: str | None) -> str:
    """Refuses to go on without Ray. Returns what a user of this address should know, or nothing."""
    if find_spec("ray") is None:
        raise Error(NEEDED)
    if address is None or _is_loopback(address):
        return ""
    return TRUST.format("the cluster" if address == "auto" else address)


def _reach(address: str | None) -> None:
    """Refuses an address at which nobody listens, or something else than Ray: Ray itself would try for minutes."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    encrypted = os.environ.get("RAY_USE_TLS", "0") != "0"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS) as there:
            there.sendall(b"" if encrypted else HELLO)
            greeting = HELLO[-9:] if encrypted else there.makefile("rb").read(4)
    except (OSError, OverflowError) as error:
        raise Error(
            f"nobody answers at {address} ({getattr(error, 'strerror', None) or error}): give the address of a Ray "
            "cluster's head node, as `ray start --head` prints it"
        ) from error
    if greeting[3:4] != HELLO[-6:-5]:  # the kind of the frame
        raise Error(
            f"what answers at {address} is not Ray: give the address of a cluster's head node, as `ray start --head` "
            "prints it"
        )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(eq=False)
class Call:
    """A job under way: what it is to the caller, and since when it is the first of its actor."""

    what: Any
    ref: Any
    began: float


@dataclass(eq=False)
class Actor:
    number: int
    handle: Any
    opening: Any
    """the call that opens it; None: it is open"""
    node: str = ""
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Came:
    """A call that ended. `lost`: its actor died; `first`: while it did this; `node_died`: with its whole node."""

    what: Any
    worker: int
    answer: Any = None
    lost: bool = False
    first: bool = False
    node_died: bool = False


class Actors:
    """The actors of one driver. `workers` None: one per core of the cluster. `address` None: a Ray of our own on
    this machine, which nobody else reaches. `notes`: how nodes differ from the driver."""

    def __init__(
        self,
        opener: Opener,
        arrays: Sequence[np.ndarray | None],
        address: str | None = None,
        workers: int | None = None,
    ):
        self.notice = require(address)
        _reach(address)
        self._opener, self._arrays = opener, arrays
        self._address, self._workers = address, workers
        self._actors: list[Actor] = []
        self._stored: dict[str, Any] = {}  # what all actors read, in the object store
        self._ours = False  # whether this object started or joined Ray
        self._kind: Any = None
        self._last_words: LastWords | None = None
        self._started = self._failures = 0
        self._usable = 0.0  # when an actor was last open
        self.notes: list[str] = []

    @property
    def count(self) -> int:
        """How many actors the cluster has room for."""
        self.connect()
        import ray

        with _connected():
            return self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def connect(self) -> None:
        """Joins the cluster, or starts one here; nothing if it is done."""
        if self._kind is not None:
            return
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_IGNORE_UNHANDLED_ERRORS="1")
        if self._address is None:
            _keep_to_ourselves()
        import ray

        with _signals_kept():
            if not ray.is_initialized():
                self._join(ray)
        self._last_words = LastWords(ENDED)
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {LOOK: 1}}
        self._kind = ray.remote(**options)(Host)
        self._usable = time.monotonic() + FIRST - PATIENCE

    def _join(self, ray: Any) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": None}
        try:
            if self._address is None:
                cores = self._workers or len(os.sched_getaffinity(0))
                ray.init("local", num_cpus=cores, **{**quiet, "include_dashboard": False})
            else:
                ray.init(self._address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            where = "on this machine" if self._address is None else f"at {self._address}"
            raise Error(f"there is no Ray {where} to run on: {_first_line(error)}") from error
        self._ours = True

    def start(self, most: int) -> int:
        """Starts actors until there are as many as there is room for, or `most`; how many there are."""
        wanted = min(self.count, most)
        while len(self._actors) < wanted:
            self._actors.append(self._new())
        return len(self._actors)

    def put(self, value: Any) -> Any:
        """In the object store, for all actors."""
        import ray

        return ray.put(value)

    def _new(self) -> Actor:
        if "opener" not in self._stored:
            self._stored["opener"] = self.put(self._opener)
        handle = self._kind.remote()
        self._started += 1
        return Actor(self._started - 1, handle, handle.open.remote(self._stored["opener"]))

    def idle(self) -> Iterator[Actor]:
        """Open actors that take another call, those with nothing to do first."""
        ready = [actor for actor in self._actors if actor.opening is None]
        for depth in range(WINDOW):
            yield from [actor for actor in ready if len(actor.calls) == depth]

    def call(self, actor: Actor, what: Any, *job: Any) -> None:
        """Sends a job; `arrived` returns `what` with its answer."""
        actor.calls.append(Call(what, actor.handle.do.remote(*job), time.monotonic()))

    def arrived(self, seconds: float) -> list[Came]:
        """What has ended, after at most so many seconds. Raises an error if there is no worker left."""
        import ray

        refs = [call.ref for actor in self._actors for call in actor.calls]
        refs += [actor.opening for actor in self._actors if actor.opening is not None]
        with _connected():
            ready, _ = ray.wait(refs, timeout=seconds) if refs else ([], [])
            if ready:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        came = [one for actor in list(self._actors) for one in self._looked_at(actor, set(ready))]
        self._check_alive()
        return came

    def _check_alive(self) -> None:
        if any(actor.opening is None for actor in self._actors):
            self._usable = max(self._usable, time.monotonic())
        elif time.monotonic() - self._usable > PATIENCE:
            raise Error(f"no node of the Ray cluster takes work for {PATIENCE:g} seconds; {RESUME}")

    def _looked_at(self, actor: Actor, ready: set[Any]) -> list[Came]:
        """What this actor has answered; all that it had to do, if it died."""
        import ray

        found: list[Came] = []
        try:
            if actor.opening in ready:
                self._opened(actor, ray.get(actor.opening))
            while actor.calls and actor.calls[0].ref in ready:
                error, answer = ray.get(actor.calls[0].ref)
                if error is not None:
                    raise error
                found.append(Came(actor.calls.pop(0).what, actor.number, answer))
                for following in actor.calls[:1]:
                    following.began = time.monotonic()
        except ray.exceptions.RayTaskError as error:  # not of the job: that is an answer
            raise Error(f"an actor cannot answer: {_last_line(error)}") from error
        except ray.exceptions.RayError as error:
            return found + self._died(actor, error)
        return found

    def _opened(self, actor: Actor, answer: tuple[Any, ...]) -> None:
        error, result, actor.node = answer
        if error is not None:
            raise error
        is_open, notes = result
        self.notes += [note for note in notes if note not in self.notes]
        self._failures = 0
        if is_open:
            actor.opening = None
        else:
            if "arrays" not in self._stored:
                self._stored["arrays"] = [self.put(array) for array in self._arrays]
            actor.opening = actor.handle.open.remote(self._stored["opener"], *self._stored["arrays"])

    def _died(self, actor: Actor, error: Exception) -> list[Came]:
        import ray

        if actor.opening is not None:
            self._failures += 1
            if self._failures >= FAILURES:
                why = _why(error)
                raise Error(f"{FAILURES} workers in a row died while they opened: {why}; {RESUME}")
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        gone = bool(actor.node) and actor.node not in alive
        return [
            Came(call.what, actor.number, lost=True, first=k == 0, node_died=gone)
            for k, call in enumerate(self.replace(actor))
        ]

    def replace(self, actor: Actor) -> list[Call]:
        """Kills an actor and starts another; returns what it had to do."""
        import ray

        ray.kill(actor.handle)
        self._actors[self._actors.index(actor)] = self._new()
        return actor.calls

    def busy(self, seconds: float = 0.0) -> list[Actor]:
        """Actors whose first call takes longer than this."""
        now = time.monotonic()
        return [a for a in self._actors if a.calls and now - a.calls[0].began > seconds]

    def look(self, actors: Sequence[Actor]) -> list[Any]:
        """What each of these says of its work; None where it does not answer."""
        import ray

        refs = [actor.handle.look.options(concurrency_group=LOOK).remote() for actor in actors]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=ANSWERS) if refs else ([], [])
        said = []
        for ref in refs:
            with contextlib.suppress(ray.exceptions.RayError):
                said.append(ray.get(ref) if ref in ready else None)
                continue
            said.append(None)
        return said

    def drop_busy(self) -> None:
        """Ends actors whose work was given up half-way: their answers belong to no later one."""
        import ray

        if ray.is_initialized():
            for actor in [one for one in self._actors if one.calls]:
                self._actors.remove(actor)
                ray.kill(actor.handle)

    def close(self) -> None:
        """Ends the actors, and Ray if we joined or started it."""
        if self._kind is None:
            return
        import ray

        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor.handle)
            if self._ours:
                ray.shutdown()
        if self._last_words is not None:
            self._last_words.withdraw()
            self._last_words = None
        self._actors, self._stored, self._kind, self._ours = [], {}, None, False


def _keep_to_ourselves() -> None:
    """A Ray that we start listens on the loopback interface only, and wants a token that only its own processes
    know."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's word for: one machine, so loopback
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    import ray

    try:
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise Error(f"the connection to Ray is lost ({_first_line(error)}); {RESUME}") from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _why(error: BaseException) -> str:
    """Why an actor died. Ray explains at length how to tune it where a node's memory is full."""
    if "out of memory" in str(error) or "OOM" in str(error):
        return "Ray ended them, because their node's memory is full; give it fewer cores (`ray start --num-cpus`)"
    return _last_line(error)


def _last_line(error: BaseException) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
