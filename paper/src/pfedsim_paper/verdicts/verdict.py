"""What is said of a claim."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """None: not measured."""

    holds: bool | None
    figures: str = ""

    @property
    def word(self) -> str:
        return {True: "holds", False: "does not", None: "not measured"}[self.holds]


def every(checks: list[tuple[bool, str]]) -> Verdict:
    """Holds where every case does; the figures of all, those that fail marked."""
    if not checks:
        return Verdict(None)
    return Verdict(
        all(ok for ok, _ in checks), "; ".join(text if ok else f"NOT {text}" for ok, text in checks)
    )
