"""Which form of a method the studies run, where the paper's benchmark differs from pfedsim's default."""

from __future__ import annotations

FORMS = {"fedgen": "fedgen:reference"}


def form(method: str) -> str:
    """The method to run for a study's word; a name with a preset or options stands for itself."""
    return FORMS.get(method, method)
