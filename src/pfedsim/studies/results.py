"""All studies in one Markdown page, from what is finished: docs/results.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pfedsim.report.document import Document, Section, Table, cells, markdown
from pfedsim.studies import speed
from pfedsim.studies.cells import Record, Store, read
from pfedsim.studies.protocol import SEEDS, Choice
from pfedsim.studies.studies import STUDIES, Study

HEAD = """# Results

Written by `pfedsim reproduce --markdown > docs/results.md` from the finished runs in `results/`; nothing here is typed by hand.

Every number is of the last round, on each client's own test half, in %. "All samples" counts every test sample alike (the paper's
number), "client mean" every client alike. "As served" is the model that a method would hand out now; "after local epochs" the same after
plain local training from what it hands out for training. Where a spread stands in brackets it is the standard deviation over seeds
(ddof 1); a single seed has none. The partition is the same for all seeds, as in the paper.
"""
CHOSEN: dict[str, list[Choice]] = {  # what of a study the page shows, beyond its default
    "accuracy": [Choice(seeds=SEEDS)],
    "rho": [Choice(seeds=(42,))],
    "questions": [Choice(seeds=SEEDS)],
    "heterogeneity": [Choice(seeds=SEEDS)],
}


def page(folder: Path) -> str:
    """The whole page."""
    store = Store(folder)
    records = [read(path) for path in sorted(folder.glob("*.json"))]
    parts = [HEAD, markdown(_measured(records, folder.parent / "benchmarks" / "bench.json"), level=2)]
    for study in STUDIES.values():
        if study.name == "gaps":  # its runs stand in the accuracy section
            continue
        for choice in CHOSEN.get(study.name, [Choice()]):
            parts.append(_study(study, store, choice))
    return "\n".join(parts).rstrip() + "\n"


def _study(study: Study, store: Store, choice: Choice) -> str:
    command = (
        f"`pfedsim reproduce {study.name}`; the paper's whole scale: `pfedsim reproduce {study.name} --full`. In the paper: {study.place}."
    )
    document = study.report(store, choice)
    return markdown(Document(document.name, document.title, [Section("", [command]), *document.sections]), level=2)


def _measured(records: list[Record], benchmark: Path) -> Document:
    """What was run, on what, for how long."""
    if not records:
        return Document("measured", "What is measured", [Section("", ["Nothing yet."])])
    machines = Counter(
        f"{r.made['processor']}, {r.made['cores']} cores" + (f", kernels {r.made['kernels']}" if r.made.get("kernels") else "")
        for r in records
    )
    versions = sorted({f"pfedsim {r.made['versions']['pfedsim']}" for r in records})
    rows = []
    kinds = Counter((str(r.cell.words["data"]), r.cell.kind) for r in records)
    for (data, kind), count in sorted(kinds.items()):
        some = [r for r in records if (r.cell.words["data"], r.cell.kind) == (data, kind)]
        cpu, wall = (sum(r.made[k] for r in some) / 3600 for k in ("cpu_seconds", "seconds"))
        rows.append(cells(data, "runs" if kind == "run" else kind, count, f"{cpu:.2f}", f"{wall:.2f}"))
    table = Table(
        "measured", "Finished cells and what they took", ["data", "what", "number", "hours of one core", "hours by the clock"], rows
    )
    where = "Measured with " + ", ".join(versions) + " on " + "; ".join(f"{name} ({n})" for name, n in machines.most_common())
    shared = "One run per core, side by side; the machine was shared with other work, so the clock's hours say less than the processor's."
    return Document("measured", "What is measured", [Section("", [f"{where}. {shared}", table, *speed.story(records, benchmark)])])
