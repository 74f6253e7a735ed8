"""What studies' pictures say of themselves, and what they draw, from handmade records."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cells import record

from pfedsim.report.document import Document, Figure
from pfedsim.studies import similarity
from pfedsim.studies.cells import Record, Store
from pfedsim.studies.protocol import Choice, cell
from pfedsim.studies.studies import STUDIES


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def figures(document: Document) -> dict[str, Figure]:
    return {figure.name: figure for figure in document.figures()}


def clients(**more: Any) -> dict[str, Any]:
    return {"samples": [10, 30, 20], "labels": [2, 2, 2], "served": [0.2, 0.6, 0.5], "finetuned": [0.2, 0.6, 0.5], **more}


def test_clients_are_drawn_by_domain_where_there_are_domains(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSIM_DATA", str(tmp_path / "nothing"))
    for method in ("fedavg", "pfedsim"):
        store.put(record(cell("pacs", method, None, 42, {}), clients=clients(domain=["photo", "sketch", "photo"])))
    document = STUDIES["domainnet"].report(store, Choice(data=("pacs",)))
    made = figures(document)
    assert made["clients-pacs"].title == "PACS: each client's accuracy as served, domain by domain"
    seen: dict[str, Any] = {}
    monkeypatch.setattr("pfedsim.report.plots.columns", lambda values, path, *_: seen.update(values) or path)
    made["clients-pacs"].draw(tmp_path / "a.png", 7.5)
    assert seen == {"photo": {"FedAvg": [20, 50], "pFedSim": [20, 50]}, "sketch": {"FedAvg": [60], "pFedSim": [60]}}
    assert "sheet-pacs" not in made
    words = " ".join(part for part in document.parts() if isinstance(part, str))
    assert "the data themselves (PACS), and left out where they are not at hand" in words


def test_a_caption_names_the_panels_that_are_drawn(store: Store) -> None:
    store.put(record(cell("watch", "fedavg", None, 42, {}), clients=clients()))
    store.put(record(cell("cifar10", "fedavg", 0.1, 42, {}), clients=clients(labels=[1, 2, 2])))
    made = figures(STUDIES["accuracy"].report(store, Choice(data=("watch", "cifar10"))))
    assert made["clients-watch"].title.endswith("as served against its size")
    assert made["clients-cifar10"].title.endswith("as served against its size and its number of classes")


def test_clients_dealt_within_domains_are_not_called_given(store: Store) -> None:
    for data in ("digit-domains", "watch"):
        store.put(record(cell(data, "fedavg", None, 42, {})))
    tables = {t.name: t for t in STUDIES["accuracy"].report(store, Choice(data=("digit-domains", "watch"))).tables()}
    assert tables["accuracy-digit-domains"].groups[0][0] == "clients within domains"
    assert tables["accuracy-watch"].groups[0][0] == "clients as given"


def test_columns_of_points_are_drawn_wide_and_narrow(tmp_path: Path) -> None:
    from pfedsim.report.plots import columns

    for width in (7.5, 4.2):
        assert columns({"a": {"x": [1.0, 2.0], "y": [3.0]}, "b": {"y": [2.0]}}, tmp_path / f"{width}.png", width, "%").is_file()


@pytest.mark.parametrize(("lowest", "begins", "written"), [(0.9906, 0.9906, "0.9906"), (0.2, 0.0, "0.20"), (-0.3, -1.0, "-0.30")])
def test_values_that_are_close_are_told_apart(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowest: float, begins: float, written: str
) -> None:
    one = similarity.plan(Choice())[0]
    cosines = {f"{a}{b}": [1.0] * 9 + [lowest] for a, b in combinations(range(4), 2)}
    pairs = [[1.0 if a == b else lowest for b in range(4)] for a in range(4)]
    found = {"CS": pairs, "data": [[float(a == b) for b in range(4)] for a in range(4)], "cosines": cosines}
    store.put(Record(one, one.settings(), found, record(one).made))
    document = similarity.report(store, Choice())
    row = document.tables()[0].rows[0]
    assert (row[2].text, row[-1].text) == (written, written)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("pfedsim.report.plots.heat_maps", lambda *_, **words: asked.append(words))
    for figure in document.figures():
        figure.draw(tmp_path / "a.png", 7.5)
    assert [list(words["low"].values()) for words in asked] == [[begins], [0.0, begins]]


def test_a_colour_bar_says_where_it_begins(tmp_path: Path) -> None:
    from pfedsim.report.plots import heat_maps

    maps = {"a": np.eye(3), "b": 0.99 + 0.01 * np.eye(3)}
    path = heat_maps(maps, tmp_path / "a.svg", 7.5, "cosine", low={"a": 0.0, "b": 0.99}, decimals={"a": 2, "b": 4})
    assert "<!-- cosine, from 0.99 -->" in path.read_text()
