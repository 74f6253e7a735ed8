"""The hub's side: clients of a wave at the sites that hold them. The bits are those of the serial engine on the same
type of machine."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pfedsim.core.engine import IGNORED, Absent, Done, timed_out
from pfedsim.core.job import Work
from pfedsim.core.method import Memory
from pfedsim.core.wire import Wire
from pfedsim.engines.ray import DRIFT
from pfedsim.errors import Error
from pfedsim.sites import messages
from pfedsim.sites.messages import (
    Answered,
    Envelope,
    Opened,
    Opening,
    Packer,
    Refusal,
    Results,
    Unpacker,
    Wave,
)
from pfedsim.sites.packet import Malformed

AWAY = "away"  # the event of a client whose site does not answer
LOOKS = 1.0  # seconds between looks at the clock
ROOM = 64 << 20  # bytes that an answer may always have
TIMES = 16  # as large as what was sent may an answer be, beyond that


class Link(Protocol):
    """How packets reach sites, whatever carries them. A link knows who sent a packet."""

    def here(self) -> Collection[str]:
        """The sites that can be reached now."""

    def post(self, site: str, packet: bytes, seconds: float | None) -> None:
        """Sends a packet to a site; nobody waits for its answer longer than `seconds`."""

    def receive(self, seconds: float) -> Sequence[tuple[str, bytes | str]]:
        """What has come after at most so many seconds, each with its site; a text: why this site is lost, and with
        it what it had to do."""

    def close(self) -> None: ...


class TooFew(Error):
    """Fewer clients answered than a wave needs. The run stops; its checkpoint stays."""


class Marks:
    """Memories that stay at the sites: here are only the marks under which they are found."""

    def __init__(self) -> None:
        self._accepted: dict[int, str] = {}
        self._offered: dict[int, str] = {}
        self._returns: Callable[[], Iterable[Mapping[int, str]]] = tuple

    def of(self, client: int) -> str:
        """The mark of the accepted memory; empty before the first."""
        return self._accepted.get(client, "")

    def kept(self, client: int) -> set[str]:
        """The marks to which the run may come back."""
        return {marks[client] for marks in self._returns() if client in marks}

    def offer(self, client: int, mark: str) -> None:
        """Came with a reply that nobody has accepted yet."""
        self._offered[client] = mark

    def accept(self, clients: Collection[int]) -> None:
        self._accepted = {**self._accepted, **{i: self._offered[i] for i in clients}}
        self._offered = {}

    def held(self) -> Mapping[int, Memory]:
        return {}

    def elsewhere(self) -> Mapping[int, str]:
        return self._accepted

    def restore(self, held: Mapping[int, Memory], elsewhere: Mapping[int, str] | None = None) -> None:
        if held:
            raise Error(
                "this run's engine held what the clients remember, so sites cannot continue it; resume it with the "
                "engine pool or serial"
            )
        self._accepted, self._offered = dict(elsewhere or {}), {}

    def may_return_to(self, marks: Callable[[], Iterable[Mapping[int, str]]]) -> None:
        self._returns = marks


@dataclass(eq=False)
class _Asked:
    """A request under way at a site."""

    works: list[Work]
    request: str = ""
    limit: int = ROOM
    opening: bool = True


@dataclass(eq=False)
class Sites:
    """The engine. `places`: the site of every client. `quorum`: the share of a wave's clients whose sites must
    answer. A site that fails is left out of the wave and asked again in the next, if it is there."""

    link: Link
    wire: Wire
    classes: int
    places: Mapping[int, str]
    opening: Opening
    run_id: str
    quorum: float = 1.0
    sizes: list[float] = field(default_factory=list)
    """how many train samples each client said it holds, once its site has opened"""
    events: list[dict[str, Any]] = field(default_factory=list)
    memories: Marks = field(default_factory=Marks)
    notes: list[str] = field(default_factory=list)
    """how sites differ from the hub"""
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.sizes = [math.inf] * (max(self.places) + 1)
        self._open: set[str] = set()

    def close(self) -> None:
        self.link.close()

    def run(
        self, task: str, works: Sequence[Work], deadline: float | None = None
    ) -> Iterator[Done | Absent]:
        """Results as the sites send them. Raises TooFew as soon as the quorum cannot be reached."""
        end = None if deadline is None else self.now() + deadline
        missing: list[Absent] = []
        waiting: dict[str, _Asked] = {}
        here = set(self.link.here())
        for site, own in self._by_site(works).items():
            if site in here:
                waiting[site] = _Asked(own)
                self._post(site, waiting[site], task, deadline)
            else:
                self._open.discard(site)
                yield from self._missed(missing, own, works, f"its site {site!r} is not there")
        while waiting:
            left = LOOKS if end is None else min(LOOKS, max(0.0, end - self.now()))
            came = self.link.receive(left)
            for site, data in came:
                for one in self._received(site, data, waiting, task, end):
                    if isinstance(one, str):
                        yield from self._missed(missing, waiting.pop(site).works, works, one)
                    else:
                        yield one
            if not came and end is not None and self.now() >= end:
                for asked in waiting.values():
                    late = "its site did not answer in time"
                    yield from self._missed(missing, asked.works, works, late, timed=True)
                return

    def _by_site(self, works: Sequence[Work]) -> dict[str, list[Work]]:
        found: dict[str, list[Work]] = {}
        for work in works:
            if work.client not in self.places:
                raise Error(f"client {work.client} has no site: bind it to one in the federation's file")
            found.setdefault(self.places[work.client], []).append(work)
        return found

    def _missed(
        self,
        missing: list[Absent],
        lost: Sequence[Work],
        works: Sequence[Work],
        why: str,
        timed: bool = False,
    ) -> Iterator[Absent]:
        """Absent clients, if enough others can still answer."""
        for work in lost:
            missing.append(timed_out(work, why) if timed else Absent(work.client, why, AWAY))
        need = math.ceil(self.quorum * len(works) - 1e-9)
        if len(works) - len(missing) < need:
            clients = ", ".join(str(one.client) for one in missing[:8]) + (
                ", ..." if len(missing) > 8 else ""
            )
            raise TooFew(
                f"round {works[0].round + 1}: at most {len(works) - len(missing)} of {len(works)} clients can answer, "
                f"and {need} must; clients {clients}: {why}"
            )
        yield from missing[-len(lost) :]

    def _post(self, site: str, asked: _Asked, task: str, seconds: float | None) -> None:
        """Asks a site to work, or first to open the run."""
        asked.request, asked.opening = secrets.token_hex(16), site not in self._open
        tensors = {}
        if asked.opening:
            body: Opening | Wave = self.opening
        else:
            packer = Packer(self.wire)
            facts = [
                messages.asked(packer, work, self.memories.of(work.client), self.memories.kept(work.client))
                for work in asked.works
            ]
            body, tensors = Wave(what=task, seconds=seconds, works=facts), packer.tensors  # type: ignore[arg-type]
        packet = messages.sealed(
            Envelope(run=self.run_id, site=site, request=asked.request, body=body), tensors
        )
        asked.limit = ROOM + TIMES * len(packet)
        self.link.post(site, packet, seconds)

    def _received(
        self, site: str, data: bytes | str, waiting: dict[str, _Asked], task: str, end: float | None
    ) -> Iterator[Done | Absent | str]:
        """What this packet brings; a text: why the site's clients are missing. What nobody waits for is an event."""
        asked = waiting.get(site)
        if isinstance(data, str):
            self._open.discard(site)
            if asked is not None:
                yield f"its site {site!r} is lost: {data}"
            return
        try:
            envelope, tensors = messages.unsealed(data, asked.limit if asked else ROOM)
        except Error as error:
            if asked is None:
                self._ignore(site, f"it cannot be read: {error}")
            else:
                yield f"the answer of its site {site!r} cannot be read: {error}"
            return
        if why := self._strange(site, envelope, asked):
            self._ignore(site, why)
            return
        assert asked is not None
        body = envelope.body
        if isinstance(body, Opened) and asked.opening:
            yield from self._opened(site, body, asked, task, end)
        elif isinstance(body, Results) and not asked.opening:
            yield from self._results(site, body, asked, tensors, task)
            del waiting[site]
        elif isinstance(body, Refusal):
            self._open.discard(site)
            yield f"its site {site!r} says: {body.why}"
        else:
            yield f"its site {site!r} answered {body.kind!r}, which it was not asked for"

    def _strange(self, site: str, envelope: Envelope, asked: _Asked | None) -> str:
        """Why nobody waits for this packet, or nothing."""
        if envelope.site != site:
            return f"it says that it comes from {envelope.site!r}"
        if envelope.run != self.run_id and not isinstance(envelope.body, Refusal):
            return "it answers another run"
        if asked is None:
            return "nobody waits for it: it is late, or came twice"
        unread = isinstance(envelope.body, Refusal) and set(envelope.request) == {"0"}
        if envelope.request != asked.request and not unread:
            return "it answers another request: it is late, or came twice"
        return ""

    def _ignore(self, site: str, why: str) -> None:
        self.events.append({"event": IGNORED, "site": site, "why": f"an answer is ignored: {why}"})

    def _opened(
        self, site: str, body: Opened, asked: _Asked, task: str, end: float | None
    ) -> Iterator[str]:
        """Takes note of an open site, and sends it its work."""
        own = {client for client, place in self.places.items() if place == site}
        if set(body.sizes) != own:
            have, want = (", ".join(map(str, sorted(c))) or "none" for c in (body.sizes, own))
            yield f"its site {site!r} holds clients {have}, and the federation's file binds it to {want}"
            return
        for client, size in body.sizes.items():
            self.sizes[client] = size
        for note in (f"site {site}: {one}" for one in body.notes):
            if note not in self.notes:
                self.notes.append(note)
                self.events.append({"event": DRIFT, "what": note})
        self._open.add(site)
        self._post(site, asked, task, None if end is None else max(0.0, end - self.now()))

    def _results(
        self, site: str, body: Results, asked: _Asked, tensors: Mapping[str, Any], task: str
    ) -> Iterator[Done | Absent]:
        """The results of a site's clients. One that cannot be read costs its client only."""
        works = {work.client: work for work in asked.works}
        unpacker = Unpacker(self.wire, tensors)
        for answer in body.answers:
            work = works.pop(answer.client, None)
            if work is None:
                self._ignore(site, f"client {answer.client} was not asked, or answered twice")
                continue
            try:
                yield self._result(unpacker, answer, site, task)
            except Error as error:
                yield Absent(answer.client, f"its result cannot be read: {error}")
        for client in works:
            yield Absent(client, f"its site {site!r} sent no result of it")

    def _result(self, unpacker: Unpacker, answer: Answered, site: str, task: str) -> Done | Absent:
        if answer.why is not None:
            trace = f"the log of the site {site!r} has the trace" if answer.failed else ""
            return Absent(answer.client, answer.why, trace=trace)
        times = answer.seconds, answer.cpu_seconds
        if task == "score":
            return Done(answer.client, unpacker.score(answer, self.classes), *times)
        if answer.mark is None:
            raise Malformed("it has no mark")
        reply = unpacker.reply(answer)
        self.memories.offer(answer.client, answer.mark)
        return Done(answer.client, reply, *times, answer.flaw)
