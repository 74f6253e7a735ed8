"""Pictures of runs, as parts of a report or as files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pfedsim import durable
from pfedsim.core.rows import Pairs
from pfedsim.report import figures
from pfedsim.report.document import Figure
from pfedsim.runs.reader import Run


def curves(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Accuracy by round; several runs of one name are seeds."""
    return Figure("curves", "Accuracy by round", lambda path, width: figures.curves(runs, path, width))


def clients(values: Mapping[str, Sequence[float]], title: str, who: Sequence[str] | None = None) -> Figure:
    """Each client's accuracy, for each name. `who`: the clients' names."""
    count = len(next(iter(values.values())))
    return Figure(
        "clients",
        title,
        lambda path, width: figures.clients(values, path, title, width, who),
        width=min(14, max(7.5, 0.12 * count + 5)),
    )


def similarities(runs: Mapping[str, Run]) -> list[Figure]:
    """The final similarities of every run that has any, unless they are all the same."""
    found: list[Figure] = []
    for name, run in runs.items():
        pairs = run.similarity()
        if pairs is not None and figures.differ(pairs):
            file = "similarity" if not found else f"similarity-{len(found) + 1}"
            title = f"{name}, after round {run.summary['rounds']}"
            found.append(_similarity(pairs, run.summary["clients"], file, title, run.client_names()))
    return found


def _similarity(pairs: Pairs, clients: int, file: str, title: str, who: Sequence[str] | None) -> Figure:
    return Figure(
        file,
        title,
        lambda path, width: figures.similarity(pairs, clients, path, title, width, who),
        width=6.2,
    )


def of_runs(runs: Mapping[str, Run]) -> list[Figure]:
    """Pictures of one or several overlaid runs. Accuracies by client are drawn only if all share a partition."""
    made = [curves({name: [run] for name, run in runs.items()})]
    if len({run.config.digests.partition for run in runs.values()}) == 1:
        values = {name: run.client_values() for name, run in runs.items()}
        who = next(iter(runs.values())).client_names()
        made.append(clients(values, "Each client's accuracy, as served", who))
    return made + similarities(runs)


def save(pictures: Iterable[Figure], folder: Path) -> list[Path]:
    """Save the pictures as PNG in this folder."""
    durable.refuse_link(folder)
    durable.make_folder(folder)
    return [picture.draw(folder / f"{picture.name}.png", picture.width) for picture in pictures]
