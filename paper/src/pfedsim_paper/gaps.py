"""Where ours differs from the paper by more than two of its standard deviations, and the runs that look for
the cause."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from pfedsim.experiments import Cell, Store
from pfedsim.report import Document, Entry, Figure, Section, Table, entries
from pfedsim_paper import pictures, rho
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import Runs, by_alpha, dealt, points, set_name, title
from pfedsim_paper.paper import printed
from pfedsim_paper.protocol import SEEDS, Choice, base_name, cell

FAR = 2  # standard deviations of the paper
HOW = (
    "Moved by: the runs with the cause switched on, minus our own runs with the same seeds. Moved mean:"
    " our mean over all seeds plus that difference, and its distance from the paper. A gap is a mean "
    f"more than {FAR} of the paper's standard deviations away. A cause closes it if both the moved mean "
    "and the switched runs themselves lie within that distance. With one or two seeds this is a hint, "
    "not a proof."
)
PIXELS = (
    "Pixels 0..255: the author's code at the time of the paper normalises pixels of 0..255 by the mean "
    "and deviation of pixels of 0..1, so inputs are 255 times as large and not centred. In training, "
    "the first norm layer cancels both: on {} the training loss of Local-Only in the rounds scored "
    "differs by {:.1%} at most. The scores still differ, because they use running means, which lag "
    "behind the weights and depend on them when inputs are not centred."
)


@dataclass(frozen=True)
class Cause:
    """What may explain the distance of some methods from the paper, and what switches it."""

    methods: Sequence[str]
    why: str
    run: str = ""
    """the method to run in their place"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """what is no setting: see `measure.varied`"""
    model: str = "served"
    """which of the two scores to look at"""
    seeds: Sequence[int] = ()
    """at which it is tried, where not the first alone: some gaps show in the mean only"""

    def cells(self, choice: Choice, data: str, method: str, alpha: float | None) -> dict[int, Cell]:
        """Its runs by seed."""
        settings = {**choice.settings, **self.settings}
        made: dict[int, Cell] = {}
        for seed in self.seeds or SEEDS[:1]:
            one = cell(data, self.run or method, alpha, seed, settings, full=choice.full)
            made[seed] = StudyCell(one.words, one.kind, tuple(self.extra.items()))
        return made


@cache
def causes() -> list[Cause]:
    """gaps.toml."""
    stated: list[dict[str, Any]] = tomllib.loads(
        (resources.files("pfedsim_paper") / "gaps.toml").read_text(encoding="utf-8")
    )["cause"]
    return [Cause(**one) for one in stated]


def plan(choice: Choice) -> list[Cell]:
    """Every cause's runs."""
    choice = choice.of()
    return [
        one
        for data in choice.data
        for alpha in choice.alphas
        for cause in causes()
        for method in cause.methods
        if base_name(method) in choice.methods
        for one in cause.cells(choice, data, method, alpha).values()
    ]


@dataclass(frozen=True, eq=False)
class Compared:
    """A cell of the paper that we have measured."""

    name: str
    method: str
    alpha: float
    ours: Runs
    theirs: tuple[float, float]
    """mean and standard deviation"""

    @property
    def mean(self) -> float:
        return self.ours.mean() or 0.0

    def apart(self, accuracy: float) -> float:
        """In standard deviations of the paper."""
        return (accuracy - self.theirs[0]) / self.theirs[1]

    @property
    def far(self) -> bool:
        return abs(self.apart(self.mean)) > FAR


@dataclass(frozen=True)
class Tried:
    """A cause and its finished runs."""

    cause: Cause
    switched: Runs
    accuracy: float | None
    moved: float | None
    """against our own runs of the same seeds"""


def main_table(store: Store, choice: Choice, data: str) -> list[Compared]:
    """The cells of the paper's Table 3 that are measured, with all seeds that are finished."""
    found = by_alpha(store, replace(choice.of(), seeds=SEEDS), data)
    return [
        Compared(title(method), method, alpha, ours, theirs)
        for alpha, by in found.items()
        for method, ours in by.items()
        if alpha and ours.by_seed and (theirs := printed("accuracy", method, data, alpha))
    ]


def of_rho(store: Store, choice: Choice, data: str) -> list[Compared]:
    """The same of Table 6, without 0.5 and 1, which are in the main table."""
    chosen = replace(choice.of(), seeds=SEEDS)
    return [
        Compared(f"rho = {r:g}", rho.with_rho(r), alpha, ours, theirs)
        for alpha in chosen.alphas
        for r, ours in rho.found(store, chosen, data, alpha).items()
        if ours.by_seed and r not in (0.5, 1.0) and (theirs := rho.of_paper(data, alpha).get(r))
    ]


def tried(store: Store, choice: Choice, data: str, one: Compared) -> list[Tried]:
    """The causes named for this cell."""
    made = []
    for cause in [c for c in causes() if one.method in c.methods]:
        asked = cause.cells(choice, data, one.method, one.alpha)
        switched = Runs(
            {
                seed: record
                for seed, run in asked.items()
                if seed in one.ours.by_seed and (record := store.find(run))
            }
        )
        here, there = one.ours.common(switched).mean(), switched.mean((cause.model, "micro"))
        made.append(Tried(cause, switched, there, None if here is None or there is None else there - here))
    return made


def closes(one: Compared, attempt: Tried) -> bool:
    """Whether both what is left of our mean and the switched runs themselves lie near."""
    if not one.far or attempt.moved is None or attempt.accuracy is None:
        return False
    return all(abs(one.apart(accuracy)) <= FAR for accuracy in (one.mean + attempt.moved, attempt.accuracy))


def in_short(store: Store, choice: Choice, data: str) -> list[str]:
    """How much of the paper's two tables is near, what closes the rest, and what is open."""
    said = []
    for place, compared in (
        ("Table 3", main_table(store, choice, data)),
        ("Table 6", of_rho(store, choice, data)),
    ):
        far = {
            one: [t.cause for t in tried(store, choice, data, one) if closes(one, t)]
            for one in compared
            if one.far
        }
        by_pixels = sum(any("pixels" in cause.extra for cause in several) for several in far.values())
        open_ = [f"{one.name} {dealt(one.alpha)}" for one, several in far.items() if not several]
        above = sum(one.mean > one.theirs[0] for one in compared)
        words = (
            f"Of the {len(compared)} cells of {place} for {set_name(data)} that we measured, "
            f"{len(compared) - len(far)} lie within two "
            f"of the paper's standard deviations, and {above} are higher than the paper's."
        )
        if far:
            words += (
                f" Of the {len(far)} further away, a known cause closes the gap for {len(far) - len(open_)} "
                "in the few seeds "
                f"it was tried with (for {by_pixels} the author's pixel scale, alone or with another cause)"
                + (f"; open: {', '.join(open_)}." if open_ else ".")
            )
        said += [words] if compared else []
    return said


def losses_apart(store: Store, choice: Choice, data: str) -> float | None:
    """By how much, relatively, the pixels' scale changes what Local-Only's training loses, at most over the
    rounds scored."""
    apart = []
    for alpha in choice.of().alphas:
        plain = cell(data, "local", alpha, SEEDS[0], choice.settings, full=choice.full)
        pair = [
            store.find(one) for one in (plain, StudyCell(plain.words, plain.kind, (("pixels", "0..255"),)))
        ]
        curves = [np.array(record.found["curve"]["train_loss"]) for record in pair if record]
        apart += [float(np.abs(curves[1] / curves[0] - 1).max())] if len(curves) == 2 else []
    return max(apart, default=None)


def report(store: Store, choice: Choice) -> Document:
    apart = {data: losses_apart(store, choice, data) for data in choice.of().data}
    sections = [
        Section(
            "", [HOW, *(PIXELS.format(set_name(data), a) for data, a in apart.items() if a is not None)]
        )
    ]
    for data in choice.of().data:
        for place, compared in (
            ("Table 3", main_table(store, choice, data)),
            ("Table 6", of_rho(store, choice, data)),
        ):
            sections += [_section(store, choice, data, place, compared)] if compared else []
    nothing = [Section("", ["Nothing that the paper has is measured yet."])]
    return Document(
        "gaps", "Where our results differ from the paper", sections if len(sections) > 1 else nothing
    )


def _section(store: Store, choice: Choice, data: str, place: str, compared: Sequence[Compared]) -> Section:
    """The cells that lie far from the paper's, each with the causes tried; then what the same causes do to
    those that lie near."""
    label, attempts = (
        f"{data}-{place.split()[-1]}",
        {one: tried(store, choice, data, one) for one in compared},
    )
    far = [row for one in compared if one.far for row in _rows(one, attempts[one])]
    near = [(one, [t for t in attempts[one] if t.moved is not None]) for one in compared if not one.far]
    rest = [row for one, several in near if several for row in _rows(one, several)]
    parts: list[str | Table | Figure] = (
        []
        if far
        else ["No cell measured so far lies more than two of the paper's standard deviations away."]
    )
    judged = [(one, several, any(closes(one, t) for t in several)) for one, several in attempts.items()]
    parts.append(pictures.distances(f"distances-{label}", place, judged, FAR))
    if far:
        parts.append(
            Table(
                f"gaps-{label}",
                "More than two of the paper's standard deviations away, and what was tried",
                HEAD,
                far,
            )
        )
    if rest:
        parts.append(
            Table(
                f"near-{label}",
                "Effect of the same causes on cells within two standard deviations",
                HEAD,
                rest,
            )
        )
    return Section(f"{set_name(data)}, {place}", parts)


HEAD = ["cell, and what was switched", "accuracy", "moved by", "moved mean", "paper", "in std", "verdict"]


def _rows(one: Compared, attempts: Sequence[Tried]) -> list[list[Entry]]:
    """Ours, and below it a row for each cause."""
    verdict = "near" if not one.far else "explained" if any(closes(one, t) for t in attempts) else "open"
    name, theirs = f"{one.name}, {dealt(one.alpha)}", f"{one.theirs[0]:.2f} ({one.theirs[1]:.2f})"

    def row(what: str, accuracy: float, moved: float | None, so: str) -> list[Entry]:
        then = one.mean + (moved or 0)
        shown = (
            [Entry(""), Entry("")] if moved is None else [points(moved), Entry(f"{then:.2f}", value=then)]
        )
        return [
            Entry(what),
            Entry(f"{accuracy:.2f}", value=accuracy),
            *shown,
            *entries(theirs),
            points(one.apart(then)),
            Entry(so),
        ]

    rows = [row(name, one.mean, None, verdict)]
    for t in attempts:
        if t.accuracy is None or t.moved is None:
            rows.append(entries(f"{name}: {t.cause.why}", *"-" * 5, "not run"))
            continue
        seeds = f", seeds {t.switched.seeds}" if len(t.switched.by_seed) > 1 else ""
        within = abs(one.apart(one.mean + t.moved)) <= FAR
        far = "closes it" if closes(one, t) else "in the mean only" if within else "does not"
        rows.append(
            row(
                f"{name}: {t.cause.why}{seeds}",
                t.accuracy,
                t.moved,
                far if one.far else "stays near" if within else "moves away",
            )
        )
    return rows
