"""A site: it answers packets. Whatever goes wrong is an answer as well."""

from __future__ import annotations

import hashlib
import json
import math
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from pfedsim.core.engine import Absent, Done
from pfedsim.core.job import Work, Worker
from pfedsim.core.method import Memory
from pfedsim.core.scoring import ClientScore
from pfedsim.core.tasks import perform
from pfedsim.errors import Error
from pfedsim.sites import messages
from pfedsim.sites.keeper import Keeper
from pfedsim.sites.messages import (
    LONGEST,
    Answered,
    Asked,
    Body,
    Envelope,
    Opened,
    Opening,
    Packer,
    Refusal,
    Results,
    Unpacker,
    Wave,
)

if TYPE_CHECKING:
    from torch import Tensor

NOBODY = "0" * 16  # the run and the request of an answer to bytes that name none
At = Callable[[int], None]


class Premises(Protocol):
    """What a site has: its name, its clients, its data and its disk."""

    @property
    def name(self) -> str: ...

    @property
    def clients(self) -> Collection[int]: ...

    @property
    def folder(self) -> Path: ...

    @property
    def shares_scores(self) -> bool: ...

    def open(self, opening: Opening) -> tuple[Worker, list[str]]:
        """The worker of a run on this site's data, and how the site differs from the hub. Raises an error if the
        site does not take part."""

    def deliver(self, run: str, client: int, model: Tensor, score: ClientScore) -> None:
        """Takes a client's final model, which stays here."""


@dataclass(frozen=True, eq=False)
class _Run:
    """A run that this site has opened."""

    id: str
    digest: str
    worker: Worker
    keeper: Keeper


class Site:
    """Answers one packet at a time. `limit`: bytes of the largest one that it reads."""

    def __init__(self, premises: Premises, limit: int | None = None):
        self._premises, self._limit = premises, limit
        self._run: _Run | None = None

    def handle(
        self, data: bytes, at: At = lambda client: None, given_up: Mapping[int, str] | None = None
    ) -> bytes:
        """The answer to a packet. `at` hears whose work is begun; clients that are `given_up` do no work, for the
        reason given."""
        run, request = NOBODY, NOBODY
        tensors: dict[str, Tensor] = {}
        body: Body
        try:
            envelope, brought = messages.unsealed(data, self._limit)
            run, request = envelope.run, envelope.request
            if envelope.site != self._premises.name:
                raise Error(f"this is for the site {envelope.site!r}, and here is {self._premises.name!r}")
            body, tensors = self._answer(envelope, brought, at, given_up or {})
        except Exception as error:
            body = Refusal(why=_reason(error))
        reply = Envelope(run=run, site=self._premises.name, request=request, body=body)
        sealed = messages.sealed(reply, tensors)
        self._note(reply, len(data), len(sealed))
        return sealed

    def _answer(
        self, envelope: Envelope, brought: Mapping[str, Tensor], at: At, given_up: Mapping[int, str]
    ) -> tuple[Body, dict[str, Tensor]]:
        body = envelope.body
        if isinstance(body, Opening):
            return self._open(envelope.run, body), {}
        if not isinstance(body, Wave):
            raise Error(f"a site is not asked for {body.kind!r}")
        if self._run is None or self._run.id != envelope.run:
            raise Error("this site has not opened this run")
        return self._work(self._run, body, brought, at, given_up)

    def _open(self, run: str, opening: Opening) -> Opened:
        worker, notes = self._premises.open(opening)
        sizes = {i: len(worker.samples.part(i, "train")[1]) for i in self._premises.clients}
        digest = hashlib.sha256(json.dumps(opening.model_dump(mode="json"), sort_keys=True).encode())
        keeper = Keeper(self._premises.folder / "state", run, worker.wire)
        self._run = _Run(run, digest.hexdigest(), worker, keeper)
        return Opened(sizes=sizes, notes=[note[:LONGEST] for note in notes])

    def _work(
        self, run: _Run, wave: Wave, brought: Mapping[str, Tensor], at: At, given_up: Mapping[int, str]
    ) -> tuple[Results, dict[str, Tensor]]:
        began, answers = time.monotonic(), []
        packer, unpacker = Packer(run.worker.wire), Unpacker(run.worker.wire, brought)
        digests = (
            {name: messages.digest_of(t) for name, t in brought.items()} if wave.what == "train" else {}
        )
        twice = len({it.client for it in wave.works}) < len(wave.works)
        if twice:
            raise Error("a client is asked twice in one wave")
        for it in wave.works:
            if it.client not in self._premises.clients:
                raise Error(f"client {it.client} is not at the site {self._premises.name!r}")
            late = wave.seconds is not None and time.monotonic() - began > wave.seconds
            mark = messages.mark_of(run.id, run.digest, it, digests) if wave.what == "train" else None
            done: Done | Absent
            if it.client in given_up:
                done = Absent(it.client, given_up[it.client])
            elif late:
                done = Absent(it.client, "it was not asked in time")
            else:
                at(it.client)
                done = self._done(run, messages.work_of(unpacker, it, wave.what), it, mark)
            answers.append(self._told(messages.answered(packer, done, mark), done))
        return Results(answers=answers), packer.tensors

    def _done(self, run: _Run, work: Work, it: Asked, mark: str | None) -> Done | Absent:
        """A client's result. What it has answered before is answered again."""
        try:
            if mark is not None and (before := run.keeper.find(work.client, mark)) is not None:
                run.keeper.keep_only(work.client, {*it.keep, it.base, mark})
                return before[1]
        except Error:  # damaged: it can be made again from the memory before it
            pass
        memory = Memory()
        try:
            if it.base:
                found = run.keeper.find(work.client, it.base)
                if found is None:
                    raise Error(
                        f"the site {self._premises.name!r} no longer has what client {work.client} remembered after "
                        f"round {int(it.base.partition('-')[0]) + 1}"
                    )
                memory = found[0]
        except Error as error:
            return Absent(work.client, str(error))
        done, remembered = self._performed(run, work, memory)
        if mark is not None and isinstance(done, Done) and remembered is not None:
            run.keeper.put(mark, done, remembered)
            run.keeper.keep_only(work.client, {*it.keep, it.base, mark})
        return done

    def _performed(self, run: _Run, work: Work, memory: Memory) -> tuple[Done | Absent, Memory | None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums split over threads have other bits
        try:
            if work.score is None:
                return perform(run.worker, "train", work, memory)
            asked = work.score._replace(model=work.score.stays)
            done, _ = perform(run.worker, "score", work._replace(score=asked), memory)
            if isinstance(done, Done) and isinstance(done.result, ClientScore) and asked.stays:
                assert done.result.model is not None
                self._premises.deliver(run.id, work.client, done.result.model, done.result)
                done = replace(done, result=replace(done.result, model=None))
            return done, None
        finally:
            torch.set_num_threads(threads)

    def _told(self, answer: Answered, done: Done | Absent) -> Answered:
        """What the hub may hear. A trace stays here, and so do scores, unless the site shares them."""
        if isinstance(done, Absent) and done.trace:
            self._log("failed", {"client": done.client, "trace": done.trace})
        if answer.samples is not None and not self._premises.shares_scores:
            numbers = {name: None if math.isnan(x) else x for name, x in answer.metrics.items()}
            self._log("score", {"client": answer.client, "samples": answer.samples, **numbers})
            return Answered(client=answer.client, why="its scores stay at its site")
        return answer

    def _note(self, reply: Envelope, came: int, went: int) -> None:
        """Writes what was sent, so that the site's administrator can see it."""
        body = reply.body
        what: dict[str, Any] = {"run": reply.run, "what": body.kind, "bytes_in": came, "bytes_out": went}
        if isinstance(body, Results):
            for answer in body.answers:
                names = [] if answer.carried is None else answer.carried.model_dump(exclude_none=True)
                what.setdefault("clients", []).append(
                    {
                        "client": answer.client,
                        "round": answer.round + 1,
                        "task": answer.task,
                        "sent": _names(names),
                    }
                    if answer.carried is not None
                    else {"client": answer.client, "sent": ["why not"] if answer.why else ["score"]}
                )
        elif isinstance(body, Refusal):
            what["why"] = body.why
        self._log("sent", what)

    def _log(self, name: str, what: Mapping[str, Any]) -> None:
        line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **what})
        folder = self._premises.folder
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{name}.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")


def _names(carried: Any) -> list[str]:
    """The names of what was sent."""
    own = ["model"] if "model" in carried else []
    return [*own, *carried.get("models", ()), *carried.get("extra", ())]


def _reason(error: Exception) -> str:
    """One sentence about an error, for the hub; its trace is for the site alone."""
    if isinstance(error, Error):
        return str(error)[:LONGEST]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {error}"[:LONGEST]
