"""Carries out a run: rounds, scores, files. The order of the lines is the order of events."""

from __future__ import annotations

import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch

import pfedsim
from pfedsim.errors import Error, Notice
from pfedsim.federation import Federation
from pfedsim.methods import label
from pfedsim.rows import Pairs
from pfedsim.runs.config import Config
from pfedsim.runs.folder import Run, Writer
from pfedsim.runs.session import Session, one_thread, prepare
from pfedsim.scoring import Scores, score
from pfedsim.server import Round, State, run_rounds


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


def execute(config: Config, out: Path | None = None, federation: Federation | None = None, watch: Watch | None = None) -> Run:
    """Runs what the configuration asks for and returns the finished run; `out` None: a folder that lives as long as the result."""
    keep = None
    if out is None:
        keep = tempfile.TemporaryDirectory(prefix="pfedsim-")
        out = Path(keep.name)
    elif out.exists() and not out.is_dir():
        raise Error(f"{out} is a file; choose another --out")
    elif out.exists() and any(out.iterdir()):
        raise Error(f"{out} exists and is not empty; choose another --out")
    with warnings.catch_warnings(record=True) as caught, one_thread():
        warnings.simplefilter("always", Notice)
        session = prepare(config, federation)
        state = session.begin()
    writer = Writer(out)
    try:
        with one_thread():
            _Execution(session, writer, watch or (lambda _: None), [str(w.message) for w in caught if w.category is Notice]).carry_out(
                state
            )
    finally:
        writer.close()
    return Run(out, keep)


class _Execution:
    def __init__(self, session: Session, writer: Writer, watch: Watch, notices: list[str]):
        self._session, self._writer, self._watch, self._notices = session, writer, watch, notices
        self._last: Scores | None = None
        self._bytes = [0, 0, 0]  # down, up, client-rounds
        self._accepted = self._unused = 0

    def carry_out(self, state: State) -> None:
        session, writer = self._session, self._writer
        config = session.config
        (writer.path / "config.toml").write_text(tomli_w.dumps(config.plain()))
        session.federation.partition.save(writer.path / "partition.json")
        writer.json("manifest.json", _manifest(session))
        if session.notice:  # of this machine, so not in the events
            self._tell(0, float("nan"), session.notice)
        for notice in self._notices:
            writer.line("events", {"event": "notice", "what": notice})
            self._tell(0, float("nan"), notice)
        clock = time.perf_counter()
        for round in run_rounds(session.method, session.fed, session.kept, session.engine, session.schedule, state):
            state = round.state
            training = sum(r.info["seconds"] for r in round.replies)
            writer.line("timings", {"round": state.server.round, "seconds": time.perf_counter() - clock, "training": training})
            self._record(round)
            every = config.score.every
            if every and state.server.round % every == 0 and state.server.round < len(session.schedule):
                self._score(state)
            self._warn(round)
            if state.server.round < len(session.schedule):  # the last round's score follows
                self._tell(state.server.round, _loss(round))
            clock = time.perf_counter()
        self._conclude(state)

    def _warn(self, round: Round) -> None:
        """The first replies that could not be used are said on screen; all are in the events."""
        self._accepted += len(round.replies)
        for event in round.events:
            self._unused += 1
            if self._unused <= 3:
                why = event.get("why", event["event"])
                self._tell(round.state.server.round, float("nan"), f"client {event['client']}, round {round.state.server.round}: {why}")

    def _record(self, round: Round) -> None:
        down = sum(d for d, _ in round.traffic.values())
        up = sum(u for _, u in round.traffic.values())
        self._bytes = [a + b for a, b in zip(self._bytes, (down, up, len(round.traffic)), strict=True)]
        for event in round.events:
            self._writer.line("events", event)
        number = round.state.server.round
        clients = [r.client for r in round.replies]
        self._writer.line("metrics", {"round": number, "train_loss": _loss(round), "clients": clients, "bytes_down": down, "bytes_up": up})

    def _score(self, state: State, *, finetune: int = 0, models: bool = False) -> Scores:
        """Scores on the test parts and, where something is held back, on the validation parts; keeps the similarities of that time."""
        session, number = self._session, state.server.round
        clock = time.perf_counter()
        parts = ["test"] + ["validation"] * (max(session.method.validation, session.fed.settings.validation) > 0)
        first: Scores | None = None
        for split in parts:
            scores = score(
                session.method, session.fed, session.kept, session.engine, state,
                finetune=finetune, split=split, models=models and split == "test",
            )  # fmt: skip
            self._writer.scores(number, scores)
            first = first or scores
        assert first is not None
        self._writer.line("timings", {"round": number, "scoring": first.model, "seconds": time.perf_counter() - clock})
        pairs = state.server.extra.get("similarity")
        if isinstance(pairs, Pairs) and not finetune:
            self._writer.similarity(number, pairs)
        self._last = first if not finetune else self._last
        return first

    def _conclude(self, state: State) -> None:
        session, writer = self._session, self._writer
        config = session.config
        if not self._accepted:
            raise Error("no client's reply could be used in any round (events.jsonl says why); try a lower --lr")
        if self._unused > 3:
            self._tell(state.server.round, float("nan"), f"{self._unused} replies could not be used in all; events.jsonl names them")
        served = self._score(state, models=True)
        after = self._score(state, finetune=config.score.finetune) if config.score.finetune else None
        writer.predictions({"served": served} | ({"finetuned": after} if after else {}))
        thetas = {c.client: c.model for c in served.clients if c.model is not None}
        base = next((i for i in thetas if i not in state.memories), min(thetas))
        digest = writer.models(thetas, base, session.fed.layout, session.federation.data, config, session.fed.clients)
        down, up, times = self._bytes
        summary: dict[str, Any] = {
            "method": label(session.method),
            "data": session.federation.data.name,
            "clients": session.fed.clients,
            "rounds": state.server.round,
            "seed": session.fed.settings.seed,
            "served": served.summary(),
            "finetuned": {"epochs": after.epochs, **after.summary()} if after else None,
            "bytes_down_per_client_round": down / times,
            "bytes_up_per_client_round": up / times,
            "config_digest": config.digest(),
            "models_digest": digest,
        }
        writer.json("summary.json", summary)
        self._tell(state.server.round, float("nan"))

    def _tell(self, number: int, loss: float, note: str = "") -> None:
        micro, mean = (self._last.micro, self._last.mean()) if self._last else (None, None)
        name = f"{label(self._session.method)}, seed {self._session.fed.settings.seed}"
        self._watch(Progress(name, number, len(self._session.schedule), loss, micro, mean, note))


def _loss(round: Round) -> float:
    """Mean training loss of the round, by train samples."""
    terms = [(r.weight, r.info["loss"]) for r in round.replies if "loss" in r.info]
    return sum(w * loss for w, loss in terms) / sum(w for w, _ in terms) if terms else float("nan")


def _manifest(session: Session) -> dict[str, Any]:
    """What may differ between equal runs: versions, machine, time."""
    versions = {"pfedsim": pfedsim.__version__, "torch": torch.__version__, "numpy": numpy.__version__, "python": platform.python_version()}
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": platform.machine(),
        "system": platform.system(),
        "device": session.config.device,
        "backend": session.config.backend,
        "kernels": getattr(session.fed.net, "kernels", None),
        "data_dir": session.config.data_dir,
    }
