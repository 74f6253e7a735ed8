"""How names look in pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes

from pfedsim.methods import TWELVE
from pfedsim.report.looks import looks
from pfedsim.report.plots import lines

TITLES = [kind.title for kind in TWELVE.values()]


def test_the_twelve_methods_differ_in_colour_and_in_marker() -> None:
    made = looks(TITLES)
    assert (
        len({look["color"] for look in made.values()})
        == len({look["marker"] for look in made.values()})
        == 12
    )
    assert made["pFedSim"]["color"] == "#000000"
    assert made["pFedSim"]["linewidth"] > max(
        look["linewidth"] for name, look in made.items() if name != "pFedSim"
    )


def test_a_method_looks_the_same_beside_whatever_others() -> None:
    both = looks(["mine", "FedPer", "pFedSim:uniform", "pFedSim"])
    assert both["FedPer"] == looks(TITLES)["FedPer"]
    assert both["mine"] == looks(["mine"])["mine"]


def test_others_take_looks_that_no_method_of_the_paper_has() -> None:
    made = looks([*TITLES, *(f"my {k}" for k in range(30))])
    seen = {
        (look["color"], look["marker"], look["linestyle"], look.get("markerfacecolor"))
        for look in made.values()
    }
    assert len(seen) == 42


def test_no_two_names_have_one_colour() -> None:
    ours = looks(["FedAvg", "FedAvgM", "FedAvgM(beta=0.9)", "FedPer"])
    assert len({look["color"] for look in ours.values()}) == 4
    many = looks([*TITLES, *(f"my {k}" for k in range(6))])
    assert len({look["color"] for look in many.values()}) == 18


def test_pictures_draw_the_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, str] = {}
    plot = Axes.plot

    def seen(axes: Axes, *arguments: object, **words: object) -> object:
        drawn[str(words["label"])] = str(words["color"])
        return plot(axes, *arguments, **words)

    monkeypatch.setattr(Axes, "plot", seen)
    one = [([1, 2], [1.0, 2.0])]
    lines({"p": {"FedAvg": one, "pFedSim": one}, "q": {"pFedSim": one}}, tmp_path / "a.png", 5, "x", "y")
    assert drawn == {name: looks(TITLES)[name]["color"] for name in ("FedAvg", "pFedSim")}
