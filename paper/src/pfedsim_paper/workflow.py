"""The paper's four steps (Figure 4), drawn from a run: who was sampled, what was sent, what came back, how
it was mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfedsim.core import Pairs
from pfedsim.experiments import Cell, Store, packed, unpacked
from pfedsim.report import Document, Figure, Section, Table, entries, size
from pfedsim.runs import Config
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import dealt, set_name
from pfedsim_paper.protocol import Choice, words


def plan(choice: Choice) -> list[Cell]:
    choice = choice.of(methods=("pfedsim",), data=("digits",), alphas=(0.5,))
    quiet = {"score": {"every": 0, "finetune": 0}}
    return [
        StudyCell(
            words(data, "pfedsim", alpha, choice.seeds[0], {**quiet, **choice.settings}, full=choice.full),
            "workflow",
        )
        for data in choice.data
        for alpha in choice.alphas
    ]


def measure(config: Config, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last round of each phase: what was sent to whom, what came back, what the server made of it."""
    from pfedsim.runs import federate, made_with
    from pfedsim_paper import training

    found: dict[str, Any] = {}
    earlier: dict[int, float] = {}
    for session, before, round in training.rounds(config, federate(config)):
        shares = {r.client: r.weight for r in round.replies}
        mixed = {i: _mix(session.method, before, i, earlier) for i in shares}
        phase = "generalization" if before.personal is None else "personalization"
        down, up = zip(*round.traffic.values(), strict=True)
        found[phase] = {
            "round": round.server.round,
            "sampled": list(shares),
            "mix": [[[j, round_(w)] for j, w in sorted(mixed[i].items()) if w > 0] for i in shares],
            "down": max(down),
            "up": max(up),
            "loss": [round_(r.info["loss"]) if "loss" in r.info else None for r in round.replies],
            "weight": list(shares.values()),
        }
        earlier, last = shares, round.server
    found["similarity"] = packed(last.extra.get("similarity", Pairs()), session.fed.clients)
    return {**found, "clients": session.fed.clients}, made_with(session.config)


def _mix(method: Any, server: Any, client: int, earlier: dict[int, float]) -> dict[int, float]:
    """What the model that this client received is made of: clients and their shares."""
    weights = dict(earlier) if server.personal is None else method.second().resembling(server, client)
    total = sum(weights.values())
    return {j: w / total for j, w in weights.items()} if total else {}


def round_(value: float) -> float:
    return float(f"{value:.3g}")


def report(store: Store, choice: Choice) -> Document:
    sections = []
    for cell in plan(choice):
        record = store.find(cell)
        heading = f"{set_name(str(cell.words['data']))}, {dealt(cell.words.get('alpha'))}"
        if record is None:
            sections.append(Section(heading, ["Not run yet."]))
            continue
        found, rows = record.found, []
        for phase in ("generalization", "personalization"):
            if phase in found:
                f = found[phase]
                rows += [
                    entries(
                        f"{phase}, round {f['round']}",
                        "1 distribute",
                        f"{size(f['down'])} to each of clients {_listed(f['sampled'])}",
                    ),
                    entries("", "2 train", f"loss {min(f['loss']):.3f} to {max(f['loss']):.3f}"),
                    entries("", "3 send back", f"{size(f['up'])} from each"),
                    entries("", "4 aggregate", _made(phase, f)),
                ]
        table = Table(
            f"workflow-{cell.words['data']}",
            "Two rounds of one run",
            ["phase", "step", "what happened"],
            rows,
            prose=True,
        )
        figure = Figure(
            f"workflow-{cell.words['data']}",
            f"The four steps in the last round of each phase ({heading})",
            _drawn(found),
            width=10.0,
        )
        sections.append(Section(heading, [table, figure]))
    return Document("workflow", "The workflow of pFedSim", sections)


def _listed(clients: list[int]) -> str:
    return ", ".join(map(str, clients))


def _made(phase: str, f: dict[str, Any]) -> str:
    if phase == "generalization":
        return f"one model, the mean of {len(f['sampled'])} by their samples"
    neighbours = [len(row) - 1 for row in f["mix"]]
    renewed = len(f["sampled"]) * (len(f["sampled"]) - 1) // 2
    return (
        f"{renewed} similarities renewed; each got a mix of {min(neighbours)} to {max(neighbours)} others"
    )


def _drawn(found: Any) -> Any:
    def draw(path: Path, width: float) -> Path:
        from matplotlib import pyplot as plt

        from pfedsim.report import COLOURS, NARROW, saved

        phases = [p for p in ("generalization", "personalization") if p in found]
        narrow = width < NARROW
        down, across = (3 * len(phases), 1) if narrow else (len(phases), 3)
        figure, grid = plt.subplots(
            down, across, figsize=(width, 3.1 * down), layout="constrained", squeeze=False
        )
        axes = list(grid.flat)
        for k, phase in enumerate(phases):
            f, (first, second, third) = found[phase], axes[3 * k : 3 * k + 3]
            mix = np.full((len(f["sampled"]), found["clients"]), np.nan)
            for row, terms in enumerate(f["mix"]):
                for j, w in terms:
                    mix[row, j] = w
            image = first.imshow(mix, aspect="auto", cmap="viridis", interpolation="nearest")
            first.set_facecolor("#dddddd")
            figure.colorbar(image, ax=first, label="share in what it receives; grey: none")
            first.set_yticks(range(len(f["sampled"])), [str(i) for i in f["sampled"]], fontsize=8)
            first.set(
                title=f"{phase}, round {f['round']}\n1 distribute: {size(f['down'])} each",
                xlabel="made of client",
                ylabel="client sampled",
            )
            second.barh(range(len(f["sampled"])), f["loss"], color=COLOURS[0])
            second.set_yticks(range(len(f["sampled"])), [str(i) for i in f["sampled"]], fontsize=8)
            second.invert_yaxis()
            second.set(
                title=f"2 train, 3 send back:\n{size(f['up'])} each",
                xlabel="training loss",
                ylabel="client",
            )
            if phase == "generalization":
                third.barh(
                    range(len(f["sampled"])), np.array(f["weight"]) / sum(f["weight"]), color=COLOURS[2]
                )
                third.set_yticks(range(len(f["sampled"])), [str(i) for i in f["sampled"]], fontsize=8)
                third.invert_yaxis()
                third.set(title="4 aggregate:\none model, by samples", xlabel="weight", ylabel="client")
            else:
                matrix = unpacked(found["similarity"], found["clients"])
                image = third.imshow(matrix, aspect="auto", cmap="viridis", interpolation="nearest")
                third.set_facecolor("#dddddd")
                figure.colorbar(image, ax=third, label="similarity (Eq. 3); grey: never met")
                met = [(i, j) for i in f["sampled"] for j in f["sampled"] if i != j]
                third.scatter(
                    [j for _, j in met],
                    [i for i, _ in met],
                    s=5,
                    color="white",
                    edgecolor="black",
                    linewidth=0.4,
                )
                third.set(
                    title="4 aggregate: similarities\n(dots: just renewed)",
                    xlabel="client",
                    ylabel="client",
                )
        return saved(figure, path)

    return draw
