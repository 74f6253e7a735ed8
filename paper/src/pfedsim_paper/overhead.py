"""Local training seconds per sample, bytes per client and round, and what the server must hold (Table 7,
and the third limitation)."""

from __future__ import annotations

import os
from statistics import mean
from typing import Any

from pfedsim.core import Absent, Done, ServerState, Work
from pfedsim.experiments import Cell, Record, Store
from pfedsim.report import Document, Entry, Section, Table, entries, mean_std, size
from pfedsim.runs import Config
from pfedsim_paper import as_printed, pictures
from pfedsim_paper.forms import StudyCell, form
from pfedsim_paper.grid import dealt, points, set_name, title
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import Choice, words

METHODS = ("fedavg", "fedfomo", "fedgen", "fedap", "pfedsim")  # f-FedAP: for Table 1
REPETITIONS = 5
BUSY = 0.5  # load before a run from which its clock may say more of other work than of ours
SHARED = 1.05  # times the processor time by the clock: it did
HOW = (
    "xi_p as defined in the paper: the seconds of a client's work (including FedFomo's validation and "
    "f-FedAP's pass for statistics) divided by the number of its train samples, averaged over rounds "
    "and the clients asked to train. Mean (std) over five repetitions, with the methods taking turns. "
    "FedFomo trains on four fifths of its train part and holds out the rest for validation. The paper "
    "measured on one RTX 3090, so only ratios to FedAvg can be compared. On the native backend, these "
    "ratios favour FedAvg and pFedSim, whose plain steps run in one call, over FedGen, which runs step "
    "by step; the torch backend is closer to the paper's loop. Bytes are those of the messages sent. "
    "The server's storage is everything in its state after the last round."
)


def plan(choice: Choice) -> list[Cell]:
    """One cell for all methods, so that they take turns."""
    choice = choice.of(methods=METHODS, alphas=(0.1,), full_data=paper()["overhead"]["data"])
    quiet = {"rounds": 20, "score": {"every": 0, "finetune": 0}}
    return [
        StudyCell(
            words(data, "fedavg", alpha, choice.seeds[0], {**quiet, **choice.settings}, full=choice.full),
            "overhead",
            (("methods", ",".join(choice.methods)),),
        )
        for data in choice.data
        for alpha in choice.alphas
    ]


class Clock:
    """An observer of the time that every client's work takes."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, float, float]] = []
        """client, wall seconds, seconds of processor time"""

    def __call__(self, work: Work, done: Done | Absent) -> None:
        if isinstance(done, Done):
            self.taken.append((work.client, done.seconds, done.cpu_seconds))


def measure(config: Config, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All methods in turns, `REPETITIONS` times."""
    from pfedsim.runs import federate, made_with, one_thread, prepare

    load = os.getloadavg()[0]  # before our own work
    federation = federate(config)
    train = [len(s.train) for s in federation.partition.clients]
    found: dict[str, Any] = {m: {"xi": [], "xi_cpu": []} for m in extra["methods"].split(",")}
    for _ in range(REPETITIONS):
        for method, figures in found.items():
            with one_thread():
                clock = Clock()
                session = prepare(config.model_copy(update={"method": form(method)}), federation).observed(
                    clock
                )
                server, times, traffic = session.begin(), 0, []
                for round in session.rounds(server):
                    server, times = round.server, times + len(round.asked)
                    traffic += list(round.traffic.values())
            figures["xi"].append(sum(wall / train[i] for i, wall, _ in clock.taken) / times)
            figures["xi_cpu"].append(sum(used / train[i] for i, _, used in clock.taken) / times)
            figures["bytes_down"], figures["bytes_up"] = (
                sum(t[k] for t in traffic) / times for k in (0, 1)
            )
            figures["server_bytes"] = stored(server)
            figures["sent beyond a model"] = sorted(beyond(session, server))
    sent = session.fed.layout.size - int(session.fed.layout.buffers.sum()) * (config.buffers == "local")
    return {
        "methods": found,
        "model_bytes": 4 * sent,
        "clients": federation.clients,
        "load": load,
    }, made_with(session.config)


def stored(server: ServerState) -> int:
    """Bytes of all that the server holds."""
    from pfedsim.core import State
    from pfedsim.runs import to_tensors

    return sum(
        t.numel() * t.element_size()
        for name, t in to_tensors(State(server)).items()
        if name.startswith("server/")
    )


def beyond(session: Any, server: ServerState) -> set[str]:
    """Names of what a client of this method sends beside its model at this point of the run."""
    from pfedsim.core import send

    names: set[str] = set()
    for task in ("train", "stats"):
        messages = send(session.side, server, [0], task)
        names |= set(session.method.replies(session.fed, messages[0])) - {"model"}
    return names


def report(store: Store, choice: Choice) -> Document:
    sections = [Section("What is measured", [HOW])]
    tables: dict[str, tuple[Table, Table]] = {}
    for cell in plan(choice):
        record, name = (
            store.find(cell),
            f"{set_name(str(cell.words['data']))}, {dealt(cell.words['alpha'])}",
        )
        if record is None:
            asked = f", backend {cell.words['backend']}" if "backend" in cell.words else ""
            sections.append(Section(f"{name}{asked}", ["Not measured yet: run it alone on the machine."]))
        else:
            heading = f"{name}, backend {record.made['backend']}"
            tables[name] = made = _time(record, cell), _bytes(record, cell)
            sections.append(Section(heading, [_scale(record), *made, *pictures.times(made[0])]))
    return Document("overhead", "What a method costs", [*sections, *as_printed.overhead(tables)])


def _scale(record: Record) -> str:
    words = record.cell.words
    slowed = max(mean(f["xi"]) / mean(f["xi_cpu"]) for f in record.found["methods"].values())
    verdict = (
        "so other work made seconds too long" if slowed > SHARED else "so other work did not slow it down"
    )
    return (
        f"{record.found['clients']} clients, {words['join']:.0%} of them in each of {words['rounds']} "
        f"rounds, {words['epochs']} local "
        f"epochs; load of the machine in the minute before: {record.found['load']:.2f}; wall-clock time up to "
        f"{slowed:.2f} times the processor time, {verdict}."
    )


def _label(what: str, cell: Cell) -> str:
    return f"{what}-{cell.words['data']}-{cell.words['alpha']:g}" + (
        f"-{cell.words['backend']}" if "backend" in cell.words else ""
    )


def _time(record: Record, cell: Cell) -> Table:
    theirs, data = paper()["overhead"], str(cell.words["data"])
    base = mean(record.found["methods"]["fedavg"]["xi"]) if "fedavg" in record.found["methods"] else None
    rows: list[list[Entry]] = []
    for method, figures in record.found["methods"].items():
        printed = (
            theirs["cells"][method][theirs["data"].index(data)]
            if method in theirs["cells"] and data in theirs["data"]
            else None
        )
        paper_base = (
            theirs["cells"]["fedavg"][theirs["data"].index(data)][0] if data in theirs["data"] else None
        )
        rows.append(
            entries(
                title(method),
                *(mean_std([1e4 * s for s in figures[clock]]) for clock in ("xi", "xi_cpu")),
                points(mean(figures["xi"]) / base if base else None, ""),
                f"{printed[0]:.2f} ({printed[1]:.2f})" if printed else "-",
                points(printed[0] / paper_base if printed and paper_base else None, ""),
            )
        )
    return Table(
        _label("overhead", cell),
        "xi_p: local training in 1e-4 s per training sample, all epochs of a round",
        ["method", "wall", "processor", "times FedAvg", "printed", "times FedAvg"],
        rows,
        groups=[("ours", 3), ("paper", 2)],
    )


def _bytes(record: Record, cell: Cell) -> Table:
    theirs, model = paper()["overhead"]["complexity"], record.found["model_bytes"]
    rows = [
        entries(
            title(m),
            size(f["bytes_down"]),
            size(f["bytes_up"]),
            f"{f['bytes_down'] / model:.2f}",
            f"{f['bytes_up'] / model:.2f}",
            theirs.get(m, "-"),
            size(f["server_bytes"]),
        )
        for m, f in record.found["methods"].items()
    ]
    return Table(
        _label("bytes", cell),
        (
            f"Bytes per client and round, measured, and what the server holds for {record.found['clients']} "
            f"clients (a model: {size(model)})"
        ),
        [
            "method",
            "received",
            "sent",
            "received, in models",
            "sent, in models",
            "the paper's complexity",
            "server holds",
        ],
        rows,
        notes=[
            "f-FedAP: includes its one pass for the statistics of all clients, here spread over few rounds."
        ],
    )
