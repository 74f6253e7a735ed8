"""A run under way: rounds, scores, files."""

from __future__ import annotations

import inspect
import re
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from pfedsim import seal
from pfedsim.core.engine import DIED, IGNORED
from pfedsim.core.method import ServerState
from pfedsim.core.rows import Pairs
from pfedsim.core.scoring import Scores, model_of, score
from pfedsim.core.server import ABSURD, NO_EFFECT, REJECTED, Round, State
from pfedsim.engines.attacks import attackers
from pfedsim.engines.dropouts import LATE, NEVER
from pfedsim.engines.ray import DRIFT
from pfedsim.errors import Diverged, Error
from pfedsim.export.rows import ranges_of
from pfedsim.methods import label
from pfedsim.methods.two_stage import TwoStage
from pfedsim.runs import manifest
from pfedsim.runs.checkpoint import Marks, Saver, marks_of
from pfedsim.runs.choice import Choice
from pfedsim.runs.names import MANIFEST, MAY_DIFFER
from pfedsim.runs.reader import lines
from pfedsim.runs.resume import Stopped
from pfedsim.runs.setup import Distant, Session
from pfedsim.runs.writer import Models, Writer


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every round; accuracies are of the last scoring."""

    method: str
    round: int
    rounds: int
    loss: float
    micro: float | None
    mean: float | None
    note: str = ""


Watch = Callable[[Progress], None]
OnRound = Callable[[int, Scores | None, ServerState], None]
"""called after every round: its number, copies of its scores (None if it was not scored) and of the server's state"""


def check_on_round(on_round: OnRound | None) -> None:
    """Raise an error if `on_round` cannot be called."""
    try:
        if on_round is not None:
            inspect.signature(on_round).bind(1, None, None)
    except TypeError:
        raise Error(
            f"on_round is called with (round, scores, state), which {on_round!r} does not take"
        ) from None
    except ValueError:  # a built-in function without a signature
        pass


class Execution:
    """One run under way: rounds, scores, files. The order of the lines is the order of events."""

    def __init__(
        self,
        was: Stopped,
        out: Path,
        watch: Watch,
        notices: list[str],
        on_round: OnRound | None,
        saves: bool,
    ):
        self._session, self._watch, self._notices, self._notes, self._drift = (
            was.session,
            watch,
            notices,
            was.notes,
            was.drift,
        )
        record = was.found.record if was.found else {}
        self._drifted_before = len(record.get("drift", []))
        self._made_with = manifest.made_with(was.session.config)
        self._config_digest = was.session.config.digest()
        self._manifest: dict[str, Any] = {}
        self._writer = Writer(out, record.get("logs"), record.get("files"), flush=saves)
        self._saver = Saver(out, self._writer.logs, was.found) if saves else None
        self._last_state: State | None = None
        was.session.engine.memories.may_return_to(self._marks)
        self._last: Scores | None = None
        self._on_round, self._loss = on_round, float("nan")
        self._unscored = bool(record.get("unscored"))  # an extended run's first state
        self._why = ""  # the last reply that could not be used
        self._counts = {"down": 0, "up": 0, "times": 0, "accepted": 0, **record.get("counts", {})}
        self._told: Counter[str] = Counter(record.get("told", {}))  # events by kind
        self._incidents: Counter[str] = Counter(
            record.get("incidents", {})
        )  # those that the settings do not ask for
        self._hostile = _hostile(was.session)
        best = was.found.state.best if was.found else None
        self._choice = Choice(was.session.config.stop, record.get("choice"), best)

    def close(self) -> None:
        """Leaves no worker behind; waits for the last save."""
        self._session.engine.close()
        try:
            if self._saver:
                self._saver.close()
        finally:
            self._writer.close()

    def run(self, server: ServerState) -> None:
        session, writer = self._session, self._writer
        first = server.round
        self._open(first)
        for note in filter(None, [session.notice, *self._notes]):  # of this machine, so not in the events
            self._tell(first, float("nan"), note)
        for notice in [] if first else self._notices:
            writer.line("events", {"event": "notice", "what": notice})
            self._tell(0, float("nan"), notice)
        if first:
            self._loss = _last_loss(writer.path)
        if self._unscored and self._due(first):
            self._score(server)
        clock = time.perf_counter()
        for round in () if self._choice.spent else session.rounds(server):
            server = round.server
            self._loss = _loss(round)
            training = sum(r.info["seconds"] for r in round.replies)
            writer.line(
                "timings",
                {"round": server.round, "seconds": time.perf_counter() - clock, "training": training},
            )
            self._record(round)
            scores = self._score(server) if self._due(server.round) else None
            self._warn(round)
            self._save(server)
            if server.round < len(session.schedule):  # the last round's score follows
                self._tell(server.round, self._loss)
                self._show(server, scores)
            if self._choice.spent:
                break
            del round  # its models make room for the next round's
            clock = time.perf_counter()
        self._conclude(server)

    def _due(self, number: int) -> bool:
        """Whether clients are scored after this round, which is not the last."""
        every = self._session.config.score.every
        return every not in (None, 0) and number % every == 0 and number < len(self._session.schedule)

    def _show(self, server: ServerState, scores: Scores | None) -> None:
        """Call the user's `on_round` with copies, so that nothing it does can change the run."""
        if self._on_round is not None:
            self._on_round(server.round, deepcopy(scores), deepcopy(server))

    def _open(self, first: int) -> None:
        """What stands in the folder before the first round, or again before the rounds that are left."""
        session, writer = self._session, self._writer
        if not first:
            writer.text("config.toml", tomli_w.dumps(session.config.plain()))
        writer.text("partition.json", session.federation.partition.text())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        before = manifest.stored(writer.path) if first else {}
        again = [*before.get("resumed", []), {"after_round": first, "at": now}] if first else []
        self._manifest = {"started": before.get("started", now), "resumed": again, **self._about()}
        writer.text(MANIFEST, seal.sealed(self._manifest))
        if first:
            writer.line("timings", {"round": first, "resumed": True})
        for what in self._drift[self._drifted_before :]:
            writer.line("events", {"event": "drift", "round": first, "what": what})

    def _about(self) -> dict[str, Any]:
        """What a manifest says of the run beside its progress."""
        config = self._session.config
        whole = {name: digest for name, digest in self._writer.files.items() if name not in MAY_DIFFER}
        return {
            "made_with": self._made_with,
            "digests": {
                "config": self._config_digest,
                "data": config.digests.data,
                "partition": config.digests.partition,
            },
            "place": manifest.place(config),
            "files": whole,
        }

    def _save(self, server: ServerState) -> None:
        if self._saver:
            self._saver.save(self._snapshot(server), {**self._about(), **self._tallies()})

    def _snapshot(self, server: ServerState) -> State:
        """The state of this round, and with it that of the best round so far."""
        return replace(self._session.side.snapshot(server), best=self._choice.best)

    def _marks(self) -> list[Marks]:
        """The memories that clients themselves hold, of every state to which this run may return."""
        saved = self._saver.marks() if self._saver else []
        states = [state for state in (self._choice.best, self._last_state) if state is not None]
        return [*saved, *(marks for state in states for marks in marks_of(state))]

    def _tallies(self) -> dict[str, Any]:
        """What a run that goes on must know of this one's past."""
        return {
            "counts": dict(self._counts),
            "told": dict(self._told),
            "incidents": dict(self._incidents),
            "drift": list(self._drift),
            **({"choice": self._choice.record} if self._session.config.stop else {}),
        }

    def _warn(self, round: Round) -> None:
        """The first replies that could not be used are said on screen; all are in the events."""
        self._counts["accepted"] += len(round.replies)
        for event in round.events:
            kind = event["event"]
            if kind in (NEVER, LATE, DIED, DRIFT, IGNORED):  # asked for, or run again
                continue
            if kind == NO_EFFECT:
                self._tell(round.server.round, float("nan"), event["why"])
                continue
            self._told[kind] += 1
            if event["client"] not in self._hostile or kind not in (REJECTED, ABSURD):
                self._incidents[kind] += 1
            self._why = f"client {event['client']}, round {round.server.round}: {event.get('why', kind)}"
            if self._told[kind] <= 3:
                self._tell(round.server.round, float("nan"), self._why)

    def _record(self, round: Round) -> None:
        down = sum(d for d, _ in round.traffic.values())
        up = sum(u for _, u in round.traffic.values())
        for name, more in (("down", down), ("up", up), ("times", len(round.asked))):
            self._counts[name] += more
        for event in round.events:
            self._befell(event, round.server.round)
        number = round.server.round
        clients = [r.client for r in round.replies]
        self._writer.line(
            "metrics",
            {
                "round": number,
                "train_loss": _loss(round),
                "clients": clients,
                "bytes_down": down,
                "bytes_up": up,
            },
        )

    def _score(
        self,
        server: ServerState,
        *,
        finetune: int = 0,
        take: Callable[[int, Tensor], None] | None = None,
        stays: bool = False,
    ) -> Scores:
        """Scores on the test parts and, where something is held back, on the validation parts; keeps the
        similarities of that time."""
        session, number = self._session, server.round
        clock = time.perf_counter()
        parts = ["test"] + ["validation"] * (session.worker.validation > 0)
        first: Scores | None = None
        for split in parts:
            scores = score(
                session.side,
                server,
                predictions=session.worker.simulated,
                finetune=finetune,
                split=split,
                lr=session.config.score.lr,
                take=take if split == "test" else None,
                stays=stays and split == "test",
            )
            self._writer.scores(number, scores)
            self._missed(number, scores)
            if split == "validation" and not finetune and session.config.stop:
                self._choice.hear(session.side.snapshot(server), scores.micro)
            first = first or scores
        assert first is not None
        self._writer.line(
            "timings", {"round": number, "scoring": first.model, "seconds": time.perf_counter() - clock}
        )
        pairs = server.extra.get("similarity")
        if isinstance(pairs, Pairs) and not finetune:
            self._writer.similarity(number, pairs)
        self._last = first if not finetune else self._last
        return first

    def _missed(self, number: int, scores: Scores) -> None:
        """Who could not be scored, and what befell the workers meanwhile."""
        for event in self._session.engine.events:
            self._befell({**event, "round": number}, number)
        self._session.engine.events.clear()
        for one in scores.clients:
            if one.absent:
                what = {
                    "event": "unscored",
                    "round": number,
                    "client": one.client,
                    "model": scores.model,
                    "why": one.absent,
                }
                self._writer.line("events", what)
                self._incidents["unscored"] += 1
                self._tell(number, float("nan"), f"client {one.client} could not be scored: {one.absent}")

    def _befell(self, event: dict[str, Any], number: int) -> None:
        """Writes an event; a node of a cluster that differs from this machine also counts as drift."""
        if event["event"] == DRIFT and event["what"] not in self._drift:
            self._drift.append(event["what"])
            self._tell(number, float("nan"), event["what"])
        self._writer.line("events", event)

    def _conclude(self, server: ServerState) -> None:
        session, writer = self._session, self._writer
        config = session.config
        counts = self._counts
        if not counts["accepted"]:
            if not self._why:
                raise Error("no client answered in time in any round: dropouts are set so")
            said = "no client's reply could be used in any round"
            if re.search("not finite|loss is", self._why):
                raise Diverged(f"{said}: {self._why}; try a lower lr")
            raise Error(f"{said} (events.jsonl names all): {self._why}")
        last, record = self._snapshot(server), self._record_of_state(server)  # before the last scores
        self._last_state = last
        if self._choice.keeps:
            if not self._due(server.round):
                self._show(server, self._score(server))
            server = session.side.restore(self._choice.chosen())
        server, once_more = self._last_wave(server)
        models = self._models(server) if session.worker.simulated else None
        served = self._served(server, last.server.round, models)
        if models:
            models.finish([one.client for one in served.clients if one.absent])
        after = self._score(server, finetune=config.score.finetune) if config.score.finetune else None
        strangers = self._unseen(server)
        if session.worker.simulated:
            writer.predictions({"served": served} | ({"finetuned": after} if after else {}))
        summary: dict[str, Any] = {
            "method": label(session.method),
            "data": session.federation.task.name,
            "clients": session.fed.clients,
            "rounds": last.server.round,
            **self._chosen(server, last.server.round),
            "seed": session.fed.settings.seed,
            "served": served.summary(),
            "finetuned": {"epochs": after.epochs, **after.summary()} if after else None,
            **({"unseen": strangers} if strangers else {}),
            "bytes_down_per_client_round": counts["down"] / counts["times"],
            "bytes_up_per_client_round": counts["up"] / counts["times"],
            **({"last_wave": once_more} if once_more else {}),
            "config_digest": self._config_digest,
            "models_digest": models.digest() if models else None,
        }
        if isinstance(session.method, TwoStage):
            summary["warm_up"] = session.method.warm_rounds(session.fed.settings.rounds)
        if self._drift:
            summary["drift"] = self._drift
        if (unused := sum(self._incidents.values())) > 3:
            said = f"{unused} incidents in all; events.jsonl names them"
            self._tell(last.server.round, float("nan"), said)
        if self._incidents:
            summary["incidents"] = dict(sorted(self._incidents.items()))
        if config.state:
            writer.state(last, record)
        writer.finish(summary, self._manifest)
        self._tell(last.server.round, self._loss)

    def _served(self, server: ServerState, last: int, models: Models | None) -> Scores:
        """The scores of the models to report. Those of a round that has been scored already are not written twice."""
        take = models.add if models else None
        if not self._choice.keeps and not self._due(last):
            served = self._score(server, take=take, stays=True)
            self._show(server, served)
            return served
        session = self._session
        self._last = score(
            session.side, server, predictions=session.worker.simulated, take=take, stays=True
        )
        session.engine.events.clear()
        return self._last

    def _chosen(self, server: ServerState, last: int) -> dict[str, Any]:
        """What the summary says of the choice of the round, where validation decides something."""
        if self._session.config.stop is None:
            return {}
        stopped = last < len(self._session.schedule)
        why = {"stopped": f"{self._choice.record['since']} scores without a higher validation accuracy"}
        return {
            "chosen": {
                "round": server.round,
                "by": "validation" if self._choice.keeps else "last",
                **(why if stopped else {}),
            }
        }

    def _last_wave(self, server: ServerState) -> tuple[ServerState, dict[str, Any]]:
        """The server after what its method asks all clients once more, and the figures of that wave. A run that is
        extended goes on from before it."""
        last = self._session.last(server)
        if last is None:
            return server, {}
        self._warn(last)
        for event in last.events:
            self._befell(event, server.round)
        down, up = (sum(by[k] for by in last.traffic.values()) for k in (0, 1))
        found = {"task": self._session.method.last, "replies": len(last.replies)}
        return last.server, {**found, "bytes_down": down, "bytes_up": up}

    def _record_of_state(self, server: ServerState) -> dict[str, Any]:
        """What a run that goes on from the final state must know of this one; equal for equal runs."""
        elsewhere = self._session.engine.memories.elsewhere()
        return {
            "round": server.round,
            "logs": {log.name: log.mark() for log in self._writer.logs if log.name not in MAY_DIFFER},
            "files": {
                name: digest for name, digest in self._writer.files.items() if name not in MAY_DIFFER
            },
            **self._tallies(),
            "unscored": not self._due(server.round),
            **({"elsewhere": dict(elsewhere)} if elsewhere else {}),
        }

    def _models(self, server: ServerState) -> Models:
        """The files of the clients' models, which only simulated clients show."""
        session = self._session
        task, clients = session.federation.task, session.fed.clients
        about = session.fed.layout, task, session.config, clients, session.method
        return self._writer.models(self._base(server), *about, _fills(session), _of_table(session))

    def _base(self, server: ServerState) -> tuple[int, Tensor]:
        """The client whose model the others' are told apart from: one that never took part, where there is
        one."""
        session = self._session
        took_part = {*session.engine.memories.held(), *session.engine.memories.elsewhere()}
        for i in sorted(range(session.fed.clients), key=lambda i: i in took_part):
            theta = model_of(session.side, server, i)
            if theta is not None:
                return i, theta
        raise Error("no client's model can be had (events.jsonl says why)")

    def _unseen(self, server: ServerState) -> dict[str, Any]:
        """The figures of the clients that never train: with what they are handed, and after local epochs of
        their own."""
        session = self._session
        found: dict[str, Any] = {}
        for epochs in (0, session.config.score.finetune or 0) if session.federation.unseen else ():
            if epochs or not found:
                scores = score(
                    session.side,
                    server,
                    finetune=epochs,
                    unseen=session.federation.unseen,
                    lr=session.config.score.lr,
                )
                self._writer.scores(server.round, scores)
                self._missed(server.round, scores)
                found |= {
                    "clients": session.federation.unseen,
                    scores.model: {"epochs": epochs, **scores.summary()},
                }
        return found

    def _tell(self, number: int, loss: float, note: str = "") -> None:
        micro, mean = (self._last.micro, self._last.mean()) if self._last else (None, None)
        name = f"{label(self._session.method)}, seed {self._session.fed.settings.seed}"
        self._watch(Progress(name, number, len(self._session.schedule), loss, micro, mean, note))


def _hostile(session: Session) -> frozenset[int]:
    """The clients that attack because the settings say so."""
    attack = session.config.attack
    return (
        attackers(attack, session.fed.settings.seed, session.fed.clients)
        if attack is not None
        else frozenset()
    )


def _fills(session: Session) -> dict[str, list[float]]:
    """What stands for the missing cells of every client, where the data have some."""
    samples, held_back = (
        session.worker.samples,
        session.worker.validation,
    )
    fills = {str(i): samples.fill(i, held_back) for i in range(session.fed.clients)}
    return {i: fill.reshape(-1).tolist() for i, fill in fills.items() if fill is not None}


def _of_table(session: Session) -> dict[str, Any]:
    """How rows of the table become numbers, and the ranges of every client's own train part."""
    if isinstance(session.federation, Distant) or session.federation.data.recipe is None:
        return {}
    data, splits = session.federation.data, session.federation.partition.clients[: session.fed.clients]
    assert data.recipe is not None
    ranges = {str(i): ranges_of(data.recipe, data.x[split.train]) for i, split in enumerate(splits)}
    return {"recipe": data.recipe.plain(), "recipe_digest": data.recipe.digest, "ranges": ranges}


def _loss(round: Round) -> float:
    """Mean training loss of the round, by train samples."""
    terms = [(r.weight, r.info["loss"]) for r in round.replies if "loss" in r.info]
    return sum(w * loss for w, loss in terms) / sum(w for w, _ in terms) if terms else float("nan")


def _last_loss(run: Path) -> float:
    """The training loss of the last round in the folder's metrics."""
    losses = [m["train_loss"] for m in lines(run / "metrics.jsonl") if m.get("train_loss") is not None]
    return float(losses[-1]) if losses else float("nan")
