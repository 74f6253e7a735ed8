"""How long the networks of the measurement study train: the paper's "20 iterations" can mean three things,
so all three are run."""

from __future__ import annotations

from typing import Any

from pfedsim.experiments import Cell
from pfedsim_paper.protocol import Choice, words

LENGTHS: dict[str, dict[str, Any]] = {
    "rounds": {"rounds": 20, "epochs": 5},
    "epochs": {"rounds": 20, "epochs": 1},
    "steps": {"rounds": 1, "epochs": 1, "local_steps": 20},
}


def trained(cell: Cell) -> str:
    """How long this cell's networks train, in words."""
    words = cell.words
    if words.get("local_steps"):
        return f"{words['local_steps']} steps"
    return (
        f"{words['rounds']} epochs"
        if words["epochs"] == 1
        else f"{words['rounds']} rounds of {words['epochs']} epochs"
    )


def alone(
    data: str, choice: Choice, length: str, alpha: float | None, seed: int, **more: Any
) -> dict[str, Any]:
    """Every client trains by itself in every round, all from one initial model."""
    settings = {
        **LENGTHS[length],
        "join": 1.0,
        "score": {"every": 0, "finetune": 0},
        **more,
        **choice.settings,
    }
    return words(data, "local", alpha, seed, settings, full=choice.full)
