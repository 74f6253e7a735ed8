"""All studies in one Markdown page, from what is finished: docs/results.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from pfedsim.experiments import Record, Store, plan
from pfedsim.report import Document, Entry, Section, Table, entries, markdown
from pfedsim_paper import claims, gaps, questions, speed
from pfedsim_paper.evidence import common
from pfedsim_paper.grid import MICRO, TUNED, by_alpha, dealt, set_name, title
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import SEEDS, Choice
from pfedsim_paper.studies import NOT_IN_THE_PAPER, STUDIES, Study

HEAD = """# Results

`pfedsim reproduce --markdown > docs/results.md` generates this page from the finished runs in
`paper/results/`; no result of ours is typed by hand. `pfedsim reproduce NAME` writes pictures, LaTeX, CSV and an
HTML page to `reproduced/NAME`.

How to read the tables:

- Accuracies are in %, from the last round, on each client's own test half.
- "All samples" counts every test sample equally (the paper's number), "client mean" every client equally.
- "As served" is the model that a client of this method would use now: its own if the method keeps one
  (Local-Only, FedFomo, pFedSim), otherwise the server's.
- "After local epochs" is the model that the server sends out for training, after plain local training that
  is the same for every method.
- "Worst tenth" is the mean accuracy as served of the worst tenth of the clients (at least one).
- "Worse off" is the share of clients whose accuracy as served is below training alone.
- A number in brackets is the standard deviation over seeds (ddof 1); a single seed has none.
- All seeds share one partition, as in the paper.
- "The author's code" is FL-bench as it was when the paper came out, in May 2023.
"""
SIMILAR = ("fedavg", "fedrep", "fedap", "pfedsim")
WANTED: dict[str, list[Choice]] = {  # what this page is to show of a study, where that is not its default
    "accuracy": [
        Choice(seeds=SEEDS),
        Choice(data=("mnist",), alphas=(0.1,)),
        Choice(data=("fashion-mnist",), alphas=(0.1,)),
        Choice(data=("tiny-imagenet",), alphas=(0.1,), methods=SIMILAR),
        Choice(data=("heart",)),
        Choice(data=("watch",)),
    ],
    "overhead": [Choice(), Choice(settings={"backend": "torch"})],
    "domainnet": [Choice(data=("pacs",)), Choice(data=("digit-domains",))],
}


def page(store: Store) -> str:
    """The whole page."""
    benchmark = store.folder.parent.parent / "benchmarks" / "bench.json"
    parts = [
        HEAD,
        markdown(_short(store), level=2),
        markdown(_measured(store.all(), benchmark, store), level=2),
    ]
    parts += [markdown(_study(study, store), level=2) for study in STUDIES.values()]
    parts.append(markdown(_wrong(), level=2))
    return "\n".join(parts).rstrip() + "\n"


def _study(study: Study, store: Store) -> Document:
    wanted = WANTED.get(study.name, [Choice()])
    made = [study.report(store, choice) for choice in wanted]
    commands = ", ".join(f"`{command(study, _begun(study, choice, store))}`" for choice in wanted)
    scales = [
        [{**cell.words, "seed": 0} for cell in study.plan(Choice(full=full))] for full in (True, False)
    ]
    larger, seeds = any(words not in scales[1] for words in scales[0]), len(scales[0]) > len(scales[1])
    what = "At the paper's full scale" if larger else "With five seeds" if seeds else ""
    whole = f" {what}: `pfedsim reproduce {study.name} --full`." if what else ""
    head = Section(
        "",
        [f"{_place(study)}. Commands: {commands} (`--dry-run` estimates the time).{whole}"],
    )
    sections = [head]
    for section in [section for document in made for section in document.sections]:
        sections += (
            [section] if section not in sections else []
        )  # what several parts say alike is said once
    return Document(study.name, made[0].title, sections)


def _place(study: Study) -> str:
    return "Not in the paper" if study.place == NOT_IN_THE_PAPER else f"In the paper: {study.place}"


def _begun(study: Study, choice: Choice, store: Store) -> Choice:
    """With those of its seeds of which anything is finished."""
    return replace(
        choice, seeds=[s for s in choice.seeds if store.records(study.plan(replace(choice, seeds=(s,))))]
    )


def command(study: Study, choice: Choice) -> str:
    """What a reader types for this part of a study."""
    words = {
        "--data": choice.data,
        "--methods": choice.methods,
        "--alpha": choice.alphas,
        "--seeds": choice.seeds,
    }
    options = [f"{option} {','.join(map(str, value))}" for option, value in words.items() if value]
    return " ".join(
        ["pfedsim reproduce", study.name, *options, *(f"--set {k}={v}" for k, v in choice.settings.items())]
    )


def _wrong() -> Document:
    """The paper's cells that are known to be wrong."""
    rows = [
        entries(paper()[table]["place"], entry["why"])
        for table in paper()
        for entry in paper()[table].get("wrong", [])
    ]
    table = Table(
        "wrong",
        "Each has a mark and a footnote wherever its table is shown",
        ["table", "what is wrong"],
        rows,
        prose=True,
    )
    return Document("wrong", "Cells of the paper that are known to be wrong", [Section("", [table])])


def _short(store: Store) -> Document:
    """What a reader in a hurry wants to know of the main table."""
    choice = WANTED["accuracy"][0].of()
    found, said = by_alpha(store, choice, "cifar10"), []
    said += [f"- {words}" for words in gaps.in_short(store, choice, "cifar10")]
    for alpha, by in found.items():
        have = common(by)  # a method with more seeds than another is compared over those of both
        if "pfedsim" not in have or not have["pfedsim"].by_seed:
            continue
        (served, first), (tuned, second) = (
            max((r.mean(path) or 0, title(m)) for m, r in have.items()) for path in (MICRO, TUNED)
        )
        said.append(
            f"- {dealt(alpha)}, over the seeds that all methods have ({next(iter(have.values())).seeds}; the tables "
            f"use every seed): best as served is {first} "
            f"({served:.2f}); after the same local "
            f"epochs for every method it is {second} ({tuned:.2f}), and pFedSim has "
            f"{have['pfedsim'].text(TUNED)}."
        )
    said += [f"- {answer}" for answer in questions.answers(store, Choice())]
    said.append(f"- {claims.summary(store, Choice())}")
    return Document("short", "In short", [Section("", ["\n".join(said)])])


def _measured(records: list[Record], benchmark: Path, store: Store) -> Document:
    """What was run, on what, for how long, and what is still to be run."""
    rows: list[list[Entry]] = []
    for study in STUDIES.values():
        for choice in WANTED.get(study.name, [Choice()]):
            now = plan(study.plan(choice), store)
            if now.done or now.missing:
                took = sum(r.made["cpu_seconds"] for r in now.done) / 3600
                part = ", ".join(
                    [*map(set_name, choice.data), *(f"{k} = {v}" for k, v in choice.settings.items())]
                )
                rows.append(entries(study.name, part, len(now.done), len(now.missing), f"{took:.2f}"))
    head = ["study", "part, if not the default", "finished", "missing", "core hours"]
    table = Table(
        "measured",
        "Finished and missing cells of each study (a run that two studies share counts in both)",
        head,
        rows,
    )
    if not records:
        return Document(
            "measured", "What is measured and what is not", [Section("", ["Nothing yet.", table])]
        )
    machines = Counter(
        f"{r.made['cpu']}, {r.made['cores']} cores"
        + (f", kernels {r.made['kernels']}" if r.made.get("kernels") else "")
        for r in records
        if "cpu" in r.made  # nothing is trained for counts
    )
    versions = sorted({f"pfedsim {r.made['versions']['pfedsim']}" for r in records})
    total = sum(r.made["cpu_seconds"] for r in records) / 3600
    where = (
        f"{len(records)} cells, {total:.1f} core hours in all, with {', '.join(versions)} on "
        f"{'; '.join(f'{name} ({n})' for name, n in machines.most_common())}. One run per core, in "
        "parallel. The machine was shared with other work, so hours are processor time, not wall-clock time. "
        "Cells that train nothing name no machine."
    )
    table3 = store.records(STUDIES["accuracy"].plan(Choice(seeds=SEEDS)))
    return Document(
        "measured",
        "What is measured and what is not",
        [Section("", [where, table, *speed.story(table3, benchmark)])],
    )
