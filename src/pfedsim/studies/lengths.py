"""How long the networks of the measurement study train: the paper's "20 iterations" can mean three things, so all three are run."""

from __future__ import annotations

from typing import Any

from pfedsim.studies.protocol import Choice, words

LENGTHS = {"rounds": "20 rounds of 5 epochs", "epochs": "20 epochs", "steps": "20 steps"}
SETTINGS: dict[str, dict[str, Any]] = {
    "rounds": {"rounds": 20, "epochs": 5},
    "epochs": {"rounds": 20, "epochs": 1},
    "steps": {"rounds": 1, "epochs": 1, "local_steps": 20},
}


def alone(data: str, choice: Choice, length: str, alpha: float | None, seed: int, **more: Any) -> dict[str, Any]:
    """Every client trains by itself in every round, all from one initial model."""
    return words(
        data, "local", alpha, seed, {**SETTINGS[length], "join": 1.0, "score": {"every": 0, "finetune": 0}, **more, **choice.settings}
    )
