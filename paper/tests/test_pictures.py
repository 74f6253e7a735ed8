"""What studies' pictures say of themselves, and what they draw, from handmade records."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pfedsim_paper import gaps, overhead, privacy, similarity
from pfedsim_paper.protocol import Choice, cell
from pfedsim_paper.studies import STUDIES
from test_cells import record

from pfedsim.experiments import Record, Store
from pfedsim.report.document import Document, Figure


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def figures(document: Document) -> dict[str, Figure]:
    return {figure.name: figure for figure in document.figures()}


def clients(**more: Any) -> dict[str, Any]:
    return {
        "samples": [10, 30, 20],
        "labels": [2, 2, 2],
        "served": [0.2, 0.6, 0.5],
        "finetuned": [0.2, 0.6, 0.5],
        **more,
    }


def test_clients_are_drawn_by_domain_where_there_are_domains(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFEDSIM_DATA", str(tmp_path / "nothing"))
    for method in ("fedavg", "pfedsim"):
        store.put(
            record(cell("pacs", method, None, 42, {}), clients=clients(domain=["photo", "sketch", "photo"]))
        )
    document = STUDIES["domainnet"].report(store, Choice(data=("pacs",)))
    made = figures(document)
    assert made["clients-pacs"].title == "PACS: each client's accuracy as served, domain by domain"
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        "pfedsim.report.plots.scattered", lambda values, path, *_: seen.update(values) or path
    )
    made["clients-pacs"].draw(tmp_path / "a.png", 7.5)
    assert seen == {
        "photo": {"FedAvg": [20, 50], "pFedSim": [20, 50]},
        "sketch": {"FedAvg": [60], "pFedSim": [60]},
    }
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
    tables = {
        t.name: t
        for t in STUDIES["accuracy"].report(store, Choice(data=("digit-domains", "watch"))).tables()
    }
    assert tables["accuracy-digit-domains"].groups[0][0] == "clients within domains"
    assert tables["accuracy-watch"].groups[0][0] == "clients as given"


def test_columns_of_points_are_drawn_wide_and_narrow(tmp_path: Path) -> None:
    from pfedsim.report.plots import scattered

    for width in (7.5, 4.2):
        assert scattered(
            {"a": {"x": [1.0, 2.0], "y": [3.0]}, "b": {"y": [2.0]}}, tmp_path / f"{width}.png", width, "%"
        ).is_file()


@pytest.mark.parametrize(
    ("lowest", "begins", "written"), [(0.9906, 0.9906, "0.9906"), (0.2, 0.0, "0.20"), (-0.3, -1.0, "-0.30")]
)
def test_values_that_are_close_are_told_apart(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lowest: float,
    begins: float,
    written: str,
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
    path = heat_maps(
        maps, tmp_path / "a.svg", 7.5, "cosine", low={"a": 0.0, "b": 0.99}, decimals={"a": 2, "b": 4}
    )
    assert "<!-- cosine, from 0.99 -->" in path.read_text()


def drawn(monkeypatch: pytest.MonkeyPatch, form: str, figure: Figure) -> list[Any]:
    """What a figure hands to the form that draws it."""
    asked: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(f"pfedsim.report.strips.{form}", lambda *words: asked.extend(words))
        figure.draw(Path("a.png"), 7.5)
    return asked


def test_seconds_are_drawn_beside_the_papers(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = overhead.plan(Choice())
    costs = {"xi": [1.0, 1.0], "xi_cpu": [1.0], "bytes_down": 100, "bytes_up": 100, "server_bytes": 400}
    methods = {"fedavg": costs, "fedfomo": {**costs, "xi": [2.0]}, "fedap": costs}
    found = {"methods": methods, "model_bytes": 400, "clients": 100, "load": 0.0}
    store.put(Record(one, one.settings(), found, {**record(one).made, "backend": "native"}))
    (figure,) = overhead.report(store, Choice()).figures()
    rows, *_ = drawn(monkeypatch, "bars", figure)
    assert rows["f-FedAP"] == {"ours": 1.0}
    assert rows["FedFomo"] == pytest.approx({"ours": 2.0, "the paper's": 11.28 / 8.68})
    assert figure.draw(tmp_path / "wide.png", 7.5).is_file()
    assert figure.draw(tmp_path / "narrow.png", 4.2).is_file()


def test_readings_are_drawn_by_method_and_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = next(c for c in privacy.plan(Choice()) if c.words["method"] == "pfedsim")
    assert not privacy.report(store, Choice()).figures()
    store.put(
        Record(
            one,
            one.settings(),
            {"clients": 9, "classifier, fitted": {"auroc": 0.9, "distance": 0.1}},
            record(one).made,
        )
    )
    (figure,) = privacy.report(store, Choice()).figures()
    rows, *_, line = drawn(monkeypatch, "bars", figure)
    assert (rows, line) == ({"pFedSim": {"classifier, fitted": 0.9}}, 0.5)


def test_differences_are_drawn_seed_by_seed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, (base, uniform) in {42: (0.8, 0.7), 43: (0.9, 0.7)}.items():
        store.put(record(cell("cifar10", "pfedsim", 0.1, seed, {}), base))
        store.put(record(cell("cifar10", "pfedsim:uniform", 0.1, seed, {}), uniform))
    store.put(record(cell("cifar10", "pfedsim", 0.1, 42, {}, shuffle=True), 0.75))
    made = figures(STUDIES["questions"].report(store, Choice()))
    assert list(made) == ["forms-cifar10", "shuffle-cifar10"]
    (panels, *_), (switched, *_) = (drawn(monkeypatch, "spreads", figure) for figure in made.values())
    assert panels["Dir(0.1)"]["minus pFedSim:uniform"]["as served"] == pytest.approx([10.0, 20.0])
    assert switched["Dir(0.1)"]["pFedSim"]["after local epochs"] == pytest.approx([-5.0])
    for figure in made.values():
        assert figure.draw(tmp_path / f"{figure.name}.png", 4.2).is_file()


def test_every_cell_is_drawn_at_its_distance(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local-Only: 84.30 (0.81) in the paper; FedPer: 82.42 (0.55)."""
    cause = gaps.Cause(["local"], "another scale of the pixels", extra={"pixels": "0..255"})
    monkeypatch.setattr(gaps, "causes", lambda: [cause])
    for method, micro in {"local": 0.8673, "fedper": 0.8792, "pfedsim": 0.8676}.items():
        store.put(record(cell("cifar10", method, 0.1, 42, {}), micro))
    store.put(record(cause.cells(Choice().of(), "cifar10", "local", 0.1)[42], 0.8511))
    figure = figures(gaps.report(store, Choice()))["distances-cifar10-3"]
    panels, *_ = drawn(monkeypatch, "distances", figure)
    rows = panels["Dir(0.1)"]
    assert {name: (round(d.at, 2), d.kind) for name, d in rows.items()} == {
        "Local-Only": (3.0, "far, closed by a cause"),
        "FedPer": (10.0, "far, open"),
        "pFedSim": (0.0, "near"),
    }
    assert rows["Local-Only"].then == pytest.approx(1.0)
    assert rows["FedPer"].then is None
    store.put(
        record(cell("cifar10", "local", 0.1, 43, {}), 0.90)
    )  # now the moved mean lies near, the switched run too low
    store.put(record(cause.cells(Choice().of(), "cifar10", "local", 0.1)[42], 0.8220))
    panels, *_ = drawn(
        monkeypatch, "distances", figures(gaps.report(store, Choice()))["distances-cifar10-3"]
    )
    assert panels["Dir(0.1)"]["Local-Only"].kind == "far, open"  # as the table has it
    assert figure.draw(tmp_path / "a.png", 7.5).is_file()


def test_a_row_keeps_its_place_where_a_panel_lacks_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    from pfedsim.report.strips import spreads

    places, errorbar = [], Axes.errorbar
    monkeypatch.setattr(
        Axes, "errorbar", lambda ax, x, y, **words: places.append(list(y)) or errorbar(ax, x, y, **words)
    )
    spreads(
        {"p": {"a": {"x": [1.0]}, "b": {"x": [2.0, 3.0]}}, "q": {"b": {"x": [4.0]}}},
        tmp_path / "a.png",
        7.5,
        "points",
    )
    assert places == [[0, 1], [1]]
