"""Our numbers beside those that others have published under the same protocol, and what runs say of the differences."""

from __future__ import annotations

from pfedsim.experiments import published
from pfedsim.experiments.board import Place
from pfedsim.methods import label, parse
from pfedsim.report.document import Entry, Figure, Table, entries
from pfedsim.report.standings import MISSING, Score, Standings

HEADING = "Beside published numbers"
NEAR = 1.0  # points
HEAD = [
    "method, and what was changed",
    "published",
    "ours, best round on test",
    "difference",
    "rounds",
    "verdict",
]


def parts(standings: Standings, place: Place) -> list[str | Table | Figure]:
    """What others published for this place, ours, and the runs that change one thing each; nothing if nobody did."""
    if place.published is None:
        return []
    protocol = published.protocols()[place.published]
    said = (
        f"Source: {protocol['source']}. Their protocol: {protocol['partition']}; {protocol['clients']} clients, "
        f"{protocol['rounds']} rounds, {protocol['model']}; scored by {protocol['scored']}. Numbers are accuracies in "
        f"%. A row is near if it lies within {NEAR:g} point of the published number. Below a method stand the runs "
        "that change one thing: the change explains the difference if its run is near."
    )
    rows = []
    for method, number in published.numbers(place.published).items():
        title = label(parse(method)) if method in _here(standings, place) else ""
        if title:
            rows += _rows(standings, place, title, number)
    absent = [m for m in published.numbers(place.published) if m not in _here(standings, place)]
    notes = [f"Published too, but not on this board: {', '.join(absent)}."] if absent else []
    title = f"{place.title}, beside published numbers"
    return [said, Table(f"published-{place.name}", title, HEAD, rows, notes=notes, prose=True)]


def _here(standings: Standings, place: Place) -> list[str]:
    return standings.leaderboard.methods(place)


def _rows(standings: Standings, place: Place, title: str, number: published.Number) -> list[list[Entry]]:
    """Ours, and below it a row for each change."""
    board = standings.leaderboard.board
    ours = standings.best_round(place, title)
    variants = [
        (v, standings.best_round(v, title))
        for v in board.variants(place)
        if title in standings.by_place[v.name]
    ]
    explained = [v for v, score in variants if score and _near(score, number)]
    spread = f" ({number.std:.2f})" if number.std is not None else ""

    def row(what: str, theirs: str, score: Score | None, at: Place, verdict: str) -> list[Entry]:
        rounds = board.words(at)["rounds"]
        if score is None:
            return entries(what, theirs, MISSING, "-", rounds, "-")
        apart = score.mean - number.accuracy
        shown = [Entry(score.text(), value=score.mean), Entry(f"{apart:+.2f}", value=apart)]
        return [*entries(what, theirs), *shown, *entries(rounds, verdict)]

    verdict = ""
    if ours:
        verdict = "near" if _near(ours, number) else "explained" if explained else "open"
    theirs = f"{number.accuracy:.2f}{spread}"
    found = [row(title, theirs, ours, place, verdict)]
    for variant, score in variants:
        if score is None:
            so = ""
        elif ours and _near(ours, number):
            so = "stays near" if _near(score, number) else "moves away"
        else:
            so = "explains it" if _near(score, number) else "does not explain it"
        found.append(row(f"{title}: {variant.title}", "", score, variant, so))
    return found


def _near(score: Score, number: published.Number) -> bool:
    return abs(score.mean - number.accuracy) <= NEAR
