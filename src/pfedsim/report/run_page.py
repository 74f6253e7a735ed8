"""A run as one page: its settings, its scores by client, its costs and its environment; or several runs side by
side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfedsim import durable
from pfedsim.report import figures, page, pictures
from pfedsim.report.document import Document, Section, html
from pfedsim.report.tables import FIGURES, names, percent, run_table, size
from pfedsim.runs.reader import Run

AS_SERVED = "as served"


def write(runs: Sequence[Run], folder: Path) -> Path:
    """Write report.html in this folder: one run in full, or several side by side."""
    durable.make_folder(folder)
    path = folder / "report.html"
    durable.write(path, (run_page(runs[0]) if len(runs) == 1 else html(several(runs))).encode())
    return path


def several(runs: Sequence[Run]) -> Document:
    """Runs side by side: their scores, the settings in which they differ, and their pictures."""
    sections = [Section("Runs", [run_table(runs)]), Section("Pictures", pictures.of_runs(names(runs)))]
    return Document("runs", f"{len(runs)} runs", sections)


def run_page(run: Run) -> str:
    """The page of one run."""
    summary = run.summary
    sections = {
        "What ran": _what(run),
        "Over the rounds": _curves(run),
        "Each client": _clients(run),
        "Similarity of clients": _similarity(run),
        "Bytes": _bytes(run),
        "Time": _time(run),
        "Events": _events(run),
        "Configuration": page.preformatted(run.verified("config.toml").read_text(encoding="utf-8")),
        "Environment": _environment(run),
    }
    title = (
        f"{summary['method']} on {summary['data']}, {summary['clients']} clients, "
        f"{summary['rounds']} rounds, seed {summary['seed']}"
    )
    return page.page(title, [(heading, body) for heading, body in sections.items() if body])


def _after(run: Run) -> str | None:
    """The name of the second score; None if there is none."""
    second = run.summary["finetuned"]
    return f"after {second['epochs']} local epoch{'s' * (second['epochs'] > 1)}" if second else None


def _what(run: Run) -> str:
    config, after = run.config, _after(run)
    named = {
        "method": run.summary["method"],
        "data": run.summary["data"],
        "model": config.model,
        "clients": f"{run.summary['clients']}, {100 * (config.join or 0):.0f}% of which take part in each round",
        "partition": f"{config.partition}"
        + (f", alpha {config.alpha}" if "dirichlet" in f"{config.partition}" else ""),
        "training": (
            f"{config.rounds} rounds of {config.epochs} epochs, batches of "
            f"{config.batch}, learning rate {config.lr}"
        ),
    }
    columns = {AS_SERVED: run.summary["served"]} | ({after: run.summary["finetuned"]} if after else {})
    unseen = run.summary.get("unseen", {})
    for model, state in (("served", AS_SERVED), ("finetuned", after)):
        if model in unseen:
            columns[f"{unseen['clients']} unseen clients, {state}"] = unseen[model]
    rows = [
        (words, *(percent(values.get(figure)) for values in columns.values()))
        for figure, words in FIGURES.items()
    ]
    return (
        page.facts(named)
        + page.paragraph("After the last round, on the clients' test parts, in %:")
        + page.table(["", *columns], rows)
    )


def _curves(run: Run) -> str:
    loss = {m["round"]: m["train_loss"] for m in run.metrics() if m.get("train_loss") is not None}
    parts = [
        page.picture(
            lambda path, width: figures.curves({run.summary["method"]: [run]}, path, width),
            "accuracy by round",
        )
    ]
    if loss:
        parts.append(
            page.picture(
                lambda path, width: figures.over_rounds(
                    {"": loss}, path, "loss", "Training loss of each round", width
                ),
                "loss by round",
            )
        )
    return "\n".join(parts)


def _clients(run: Run) -> str:
    after = _after(run)
    values = {AS_SERVED: run.client_values()} | (
        {after: run.client_values(model="finetuned")} if after else {}
    )
    samples = run.client_values("samples")
    names = run.client_names()
    drawn = page.picture(
        lambda path, width: figures.clients(values, path, "Each client's accuracy", width, names),
        "accuracy by client",
    )
    who = [(i,) if names is None else (i, names[i]) for i in range(len(samples))]
    rows = [
        (*who[i], int(samples[i]), *(percent(v[i]) for v in values.values())) for i in range(len(samples))
    ]
    head = [
        "client",
        *([] if names is None else ["name"]),
        "test samples",
        *(f"{name}, %" for name in values),
    ]
    return drawn + page.folded("All clients as a table", page.table(head, rows))


def _similarity(run: Run) -> str:
    pairs = run.similarity()
    if pairs is None or not figures.differ(pairs):
        return ""
    title = f"After round {run.summary['rounds']}"
    return page.picture(
        lambda path, width: figures.similarity(
            pairs, run.summary["clients"], path, title, min(width, 6.2), run.client_names()
        ),
        "similarities of the clients",
    )


def _bytes(run: Run) -> str:
    records = [m for m in run.metrics() if "bytes_down" in m]
    rows = []
    for words, way in (("received by clients", "down"), ("sent by clients", "up")):
        each = run.summary[f"bytes_{way}_per_client_round"]
        rows.append((words, size(each), size(sum(m[f"bytes_{way}"] for m in records))))
    return page.table(["", "per client and round", "total"], rows)


def _time(run: Run) -> str:
    records = run.timings()
    rounds = {r["round"]: r["seconds"] for r in records if "training" in r}
    training = {r["round"]: r["training"] for r in records if "training" in r}
    scoring = sum(r["seconds"] for r in records if "scoring" in r)
    if not rounds:
        return ""
    table = page.table(
        ["", "seconds"],
        [
            ("all rounds", f"{sum(rounds.values()):.1f}"),
            ("mean per round", f"{sum(rounds.values()) / len(rounds):.2f}"),
            ("training, summed over clients", f"{sum(training.values()):.1f}"),
            ("scoring", f"{scoring:.1f}"),
        ],
    )
    both = {"the round": rounds, "training, summed over clients": training}
    return table + page.picture(
        lambda path, width: figures.over_rounds(both, path, "seconds", "Time of each round", width),
        "seconds by round",
    )


def _events(run: Run) -> str:
    events = run.events()
    if not events:
        return page.paragraph("None: every reply was used.")
    shown = {
        f"{k}. {e['event']}": ", ".join(f"{name} {v}" for name, v in e.items() if name != "event")
        for k, e in enumerate(events, 1)
    }
    return page.facts(shown)


def _environment(run: Run) -> str:
    return page.facts(
        _flat(run.manifest)
        | {"configuration": run.summary["config_digest"], "models": run.summary["models_digest"]}
    )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value)
        elif value is not None:
            flat[name.replace("_", " ")] = value
    return flat
