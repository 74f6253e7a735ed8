"""Which form of a method the studies run, where the paper's benchmark differs from pfedsim's default."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pfedsim.experiments import Cell
from pfedsim.runs import Config, check

FORMS = {"fedgen": "fedgen:reference"}


def form(method: str) -> str:
    """The method to run for a study's word; a name with a preset or options stands for itself."""
    return FORMS.get(method, method)


@dataclass(frozen=True)
class StudyCell(Cell):
    """A cell of the studies: found by the study's words, run in the benchmark's form."""

    @cached_property
    def config(self) -> Config:
        return check({**self.words, "method": form(str(self.words["method"]))})

    @property
    def asked(self) -> Config:
        return check(self.words)
