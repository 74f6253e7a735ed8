"""Colours, markers and dashes. The paper's methods look the same in every picture; other names are styled by
their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Okabe and Ito's colours, which colour-blind people can tell apart; black is pFedSim's
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A4A00")
MORE_COLOURS = ("#AA4499", "#44AA99", "#EE3377", "#117733", "#88CC33", "#7755DD")  # if those are taken
MARKERS = "osD^vPX*<>h"
# Similar colours have different dashes: methods with one common model are dashed, those with personal models solid
OF_THE_PAPER = {
    "Local-Only": ("#777777", "o", ":"),
    "FedAvg": ("#0072B2", "s", "--"),
    "FedProx": ("#56B4E9", "D", "--"),
    "FedDyn": ("#CC79A7", "^", "--"),
    "FedGen": ("#E69F00", "v", "--"),
    "FedBN": ("#6A4A00", "P", "-"),
    "Per-FedAvg": ("#C2B24E", "X", "-"),
    "FedPer": ("#009E73", "<", "-"),
    "FedRep": ("#D55E00", ">", "-"),
    "FedFomo": ("#332288", "h", "-"),
    "f-FedAP": ("#882255", "p", "-"),
}
OURS = "pFedSim"
SCATTERED = {"linestyle": "none", "markersize": 4.5, "alpha": 0.7}  # small points that do not hide others


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dash of every name, distinguishable by colour-blind people and in grey print. pFedSim is
    black and heavier."""
    made: dict[str, dict[str, Any]] = {}
    others, names = 0, list(dict.fromkeys(names))
    taken = {OF_THE_PAPER[name][0] for name in names if name in OF_THE_PAPER}
    colours = [colour for colour in (*COLOURS, *MORE_COLOURS) if colour not in taken]
    for name in names:
        if name == OURS:
            made[name] = {
                "color": "#000000",
                "marker": "*",
                "linestyle": "-",
                "linewidth": 2.4,
                "markersize": 8,
                "zorder": 1.9,  # below the thinner lines, which it would hide where they are equal
            }
        elif name in OF_THE_PAPER:
            made[name] = _look(*OF_THE_PAPER[name])
        else:
            dash = ("-", "--", "-.", ":")[others // len(colours) % 4]
            made[name] = _look(colours[others % len(colours)], MARKERS[others % len(MARKERS)], dash) | {
                "markerfacecolor": "white"
            }
            others += 1
    return made


def _look(colour: str, marker: str, dash: str) -> dict[str, Any]:
    return {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.4, "markersize": 4.5}
