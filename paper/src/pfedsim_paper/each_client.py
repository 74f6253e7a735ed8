"""Every client's accuracy as a picture: against its size and its number of classes, or domain by domain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedsim.report import Figure
from pfedsim_paper.grid import Runs, dealt, set_name, title

SHOWN = ("local", "fedavg", "pfedsim")
Clients = dict[str, Any]  # a record's "clients": a list for each of what is known of them


def clients(data: str, found: Mapping[float | None, Mapping[str, Runs]]) -> Figure:
    """Of a few methods at their first seed, as served."""
    first = {alpha: _first(by) for alpha, by in found.items()}
    if all("domain" in c for by in first.values() for c in by.values()):
        return _by_domain(data, next(iter(first.values())))
    return _by_size(data, first)


def _first(by: Mapping[str, Runs]) -> dict[str, Clients]:
    have = {m: next(iter(r.by_seed.values())) for m, r in by.items() if r.by_seed}
    return {title(m): have[m].found["clients"] for m in [m for m in SHOWN if m in have] or list(have)[:3]}


def _accuracies(clients: Clients) -> list[float]:
    return [100 * (v or 0) for v in clients["served"]]


def _by_size(data: str, first: Mapping[float | None, Mapping[str, Clients]]) -> Figure:
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    kinds: list[str] = []
    for alpha, by in first.items():
        for what in ("samples", "labels"):
            if (
                what == "samples" or len({v for c in by.values() for v in c[what]}) > 1
            ):  # else it says nothing
                panels[f"{dealt(alpha, data)}, by {what}"] = {
                    name: (c[what], _accuracies(c)) for name, c in by.items()
                }
                kinds.append(what)
    labels = {"samples": "its samples, train and test", "labels": "its classes"}

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import points

        return points(
            panels, path, width, [labels[k] for k in kinds], "accuracy, %", [k == "samples" for k in kinds]
        )

    against = "its size" + (" and its number of classes" if "labels" in kinds else "")
    return Figure(
        f"clients-{data}", f"{set_name(data)}: each client's accuracy as served against {against}", draw
    )


def _by_domain(data: str, by: Mapping[str, Clients]) -> Figure:
    """Clients of a domain have nearly the same size, so that size would only stack them."""
    columns: dict[str, dict[str, list[float]]] = {}
    for name, c in by.items():
        for domain, accuracy in zip(c["domain"], _accuracies(c), strict=True):
            columns.setdefault(domain, {}).setdefault(name, []).append(accuracy)

    def draw(path: Path, width: float) -> Path:
        from pfedsim.report import scattered

        return scattered(columns, path, width, "accuracy, %")

    return Figure(
        f"clients-{data}", f"{set_name(data)}: each client's accuracy as served, domain by domain", draw
    )
