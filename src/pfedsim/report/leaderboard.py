"""A leaderboard as one report: standings, ranks, a table for each data set, commands and digests."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pfedsim import durable, escape
from pfedsim.experiments.board import Board, Place
from pfedsim.experiments.leaderboard import Contender
from pfedsim.report import leaderboard_page, published, ranks
from pfedsim.report.document import (
    Document,
    Entry,
    Figure,
    Section,
    Table,
    entries,
    markdown,
    markdown_table,
    ranked,
)
from pfedsim.report.standings import (
    BY_KEY,
    MEASURES,
    MISSING,
    Measure,
    Score,
    Standings,
    board_command,
    chosen_text,
    run_command,
)
from pfedsim.report.tables import counted

NAME = "leaderboard"
STANDING = ("served", "tuned")  # the measures with a table over all data sets and a ranking
SHORT = 12  # characters of a digest in tables


def document(standings: Standings) -> Document:
    """The report without its commands, which each format lays out in its own way."""
    sections = [Section("", [about(standings)]), Section("Standings", standing_tables(standings))]
    if figures := rank_parts(standings):
        sections.append(Section("Ranks", figures))
    for place in standings.places:
        sections.append(Section(place.title, place_parts(standings, place)))
        if beside := published.parts(standings, place):
            sections.append(Section(published.HEADING, beside))
    sections.append(Section("How it was made", [made(standings)]))
    return Document(NAME, standings.leaderboard.board.title, sections)


def about(standings: Standings) -> str:
    """What the board compares, by which rules, and how much of it is finished."""
    board, (done, every) = standings.leaderboard.board, standings.counts()
    rules = [
        f"- {_seeds(board)} Scores are those of the last round, on each client's own test part.",
    ]
    held_back = any("validation" in board.words(place) for place in standings.places)
    whole = "" if held_back else " The runs that are shown train on the whole train parts."
    if board.tuning is not None:
        rules.append(
            f"- Every method gets the same tuning budget on every data set: {board.tuning.trials} trials over its "
            "learning rate and the options that it declares (`pfedsim methods NAME`), judged on "
            f"{board.tuning.validation:.0%} of each client's train part, with a seed that is not among those shown. No "
            f"choice looks at test parts.{whole}"
        )
    else:
        rules.append("- No method is tuned: all run with the settings below.")
    rules += [
        '- "As served" is the model that a client of this method would use now; "after local epochs" is that model '
        "after plain local training that is the same for every method.",
        f"- {done} of {every} runs are finished. A cell that is {MISSING} is run by the command beside it, or all of "
        f"them by `pfedsim leaderboard {board.name}`; a method of your own joins with `--add mine.py:Mine`.",
    ]
    return "\n\n".join(filter(None, [board.about, "\n".join(rules)]))


def _seeds(board: Board) -> str:
    if len(board.seeds) == 1:
        return f"Every number is of one run, with seed {board.seeds[0]}."
    return (
        f"Every number is a mean over {len(board.seeds)} seeds ({', '.join(map(str, board.seeds))}), with the standard "
        "deviation in brackets (ddof 1). All seeds of a data set share one partition."
    )


def standing_tables(standings: Standings) -> list[Table]:
    """Methods x data sets, as served and after local epochs, in the order of the mean ranks."""
    return [_standing(standings, key, standings.places) for key in _standing_keys(standings)]


def short_table(standings: Standings) -> Table:
    """The first of these tables, of the data sets of which anything is finished."""
    begun = [p for p in standings.places if any(one.runs for one in standings.by_place[p.name].values())]
    return _standing(standings, STANDING[0], begun)


def _standing_keys(standings: Standings) -> list[str]:
    return [measure.key for measure in standings.measures if measure.key in STANDING]


def order(standings: Standings, key: str) -> list[str]:
    """The methods in the order of their mean ranks by this measure; those without one at the end."""
    found = standings.ranking(key)
    first = list(found.methods) if found else []
    return [*first, *(title for title in standings.titles if title not in first)]


def _standing(standings: Standings, key: str, places: Sequence[Place]) -> Table:
    found = standings.ranking(key)
    rank = dict(zip(found.methods, found.ranks, strict=True)) if found else {}
    names = order(standings, key)
    columns = []
    for place in places:
        scores = [standings.score(place, name, key) for name in names]
        texts = [_text(standings, place, name, key) for name in names]
        columns.append(ranked([s.mean if s else None for s in scores], texts))
    rows = [
        [Entry(name), Entry(f"{rank[name]:.2f}" if name in rank else "-", value=rank.get(name))]
        + [column[k] for column in columns]
        for k, name in enumerate(names)
    ]
    head = ["method", "mean rank", *(place.title for place in places)]
    title = BY_KEY[key].words
    notes = [f"Mean rank: over {', '.join(found.sets)}."] if found else []
    return Table(f"standings-{key}", f"{title[:1].upper()}{title[1:]}", head, rows, notes=notes)


def _text(standings: Standings, place: Place, name: str, key: str) -> str:
    """A cell of the standings: its number, with the seeds that it has if some are missing."""
    one = standings.by_place[place.name].get(name)
    if one is None:
        return "-"
    score = standings.score(place, name, key)
    if score is None:
        return "-" if one.runs else MISSING
    return score.text() + ("" if one.finished else f", {len(one.runs)} of {len(one.cells)} seeds")


def rank_parts(standings: Standings) -> list[str | Table | Figure]:
    """The critical-difference diagrams, each below what it says."""
    parts: list[str | Table | Figure] = []
    for key in _standing_keys(standings):
        found, words = standings.ranking(key), BY_KEY[key].words
        if found is None or not found.tested:
            continue
        left_out = [p.title for p in standings.places if p.title not in found.sets]
        said = ranks.sentence(found, f"by {words.partition(',')[0]}")
        if left_out:
            said += f" Without {', '.join(left_out)}, where fewer than half of the methods are finished."
        title = f"Critical-difference diagram, {BY_KEY[key].title}"
        parts += [said, Figure(f"{NAME}-ranks-{key}", title, partial(ranks.diagram, found))]
    return parts


def place_parts(standings: Standings, place: Place) -> list[str | Table | Figure]:
    """All numbers of one data set."""
    by = standings.by_place[place.name]
    found = {name: score for name in by if (score := standings.score(place, name, "served"))}
    if not found:
        command = f"pfedsim leaderboard {standings.leaderboard.board.name} --sets {place.name}"
        return [f"{scale(standings, place)} Nothing is finished yet; `{command}` runs it."]
    names = sorted(found, key=lambda name: -found[name].mean)
    columns = []
    for measure in standings.measures:
        columns.append(_column(measure, [standings.score(place, n, measure.key) for n in names]))
    rows = [
        [Entry(name), *(column[k] for column in columns), Entry(str(len(by[name].runs)))]
        for k, name in enumerate(names)
    ]
    head = ["method", *(measure.title for measure in standings.measures), "seeds"]
    table = Table(f"{place.name}", f"{place.title}: all measures", head, rows)
    return [scale(standings, place), table]


def _column(measure: Measure, scores: Sequence[Score | None]) -> list[Entry]:
    """The cells of a measure; the best are marked unless it is a cost."""
    texts = [s.text() if s else "-" for s in scores]
    sign = 1 if measure.higher else -1
    shown = ranked([sign * s.mean if s else None for s in scores], texts)
    marks = ["" if measure.cost else cell.mark for cell in shown]
    return [Entry(t, m, s.mean if s else None) for t, m, s in zip(texts, marks, scores, strict=True)]


def scale(standings: Standings, place: Place) -> str:
    """How large the runs of a data set are, in a sentence or two."""
    words = standings.leaderboard.board.words(place)
    facts = [counted(words["clients"], "client"), counted(words["rounds"], "round")]
    facts += [f"{words['join']:.0%} of the clients a round"] if "join" in words else []
    facts += [counted(words["epochs"], "local epoch")] if "epochs" in words else []
    facts += [f"batch {words['batch']}"] if "batch" in words else []
    facts += [str(words[k]) for k in ("model", "pretrained") if k in words]
    tuned = f" A tuning trial has {counted(place.tuning_rounds, 'round')}." if place.tuning_rounds else ""
    return f"{', '.join(facts)}.{tuned}"


def made(standings: Standings) -> str:
    """On which machines, with which versions, for how long."""
    records = standings.records()
    if not records:
        return "Nothing is finished yet."
    machines = Counter(f"{r.made['cpu']}, torch {r.made['versions']['torch']}" for r in records)
    hours = sum(r.made["cpu_seconds"] for r in records) / 3600
    tuning = sum(r.made["cpu_seconds"] for r in records if r.cell.kind != "run") / 3600
    lines = [f"- {machine}: {count} cells" for machine, count in machines.most_common()]
    return f"{hours:.2f} core hours, {tuning:.2f} of them for tuning.\n\n" + "\n".join(lines)


def commands(standings: Standings, place: Place) -> Table:
    """What was chosen, the command and the digests of every method on one data set, for Markdown."""
    rows = []
    for title, one in standings.by_place[place.name].items():
        first = next(iter(one.runs.values()), None)
        command = run_command(first.cell) if first else board_command(standings.leaderboard, one)
        digests = ", ".join(f"{seed}: {r.found['models_digest'][:SHORT]}" for seed, r in one.runs.items())
        if first and not one.finished:
            digests += f"; the missing ones: `{board_command(standings.leaderboard, one)}`"
        rows.append(entries(title, chosen_text(one), f"`{command}`", digests or MISSING))
    head = ["method", "chosen by tuning", "command (another seed: `--seed`)", "models' sha256 by seed"]
    return Table(f"commands-{place.name}", f"{place.title}: commands and digests", head, rows, prose=True)


def rows(standings: Standings) -> list[dict[str, Any]]:
    """One record for each method, data set and seed, finished or not."""
    found = []
    for place in standings.leaderboard.board.set:
        for title, one in standings.by_place[place.name].items():
            found += [_row(standings, place, title, one, seed) for seed in one.cells]
    return found


def _row(standings: Standings, place: Place, title: str, one: Contender, seed: int) -> dict[str, Any]:
    record = one.runs.get(seed)
    row: dict[str, Any] = {"set": place.name, "method": title, "seed": seed}
    row["state"] = "finished" if record else MISSING
    for measure in MEASURES:
        score = standings.score(place, title, measure.key)
        value = score.by_seed.get(seed) if score else None
        row[measure.key] = None if value is None else round(value, 5)
    row["chosen"] = chosen_text(one)
    row["trials"] = len(one.tuned.found["trials"]) if one.tuned else None
    row["command"] = run_command(record.cell) if record else board_command(standings.leaderboard, one)
    for key in ("config_digest", "models_digest"):
        row[key] = record.found[key] if record else None
    return row


def csv_text(standings: Standings) -> str:
    """One line for each method, data set and seed."""
    file, found = io.StringIO(), rows(standings)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(found[0])
    for row in found:
        writer.writerow("" if value is None else escape.cell(value) for value in row.values())
    return file.getvalue()


def json_text(standings: Standings) -> str:
    """The board, its runs and rankings."""
    board = standings.leaderboard.board
    rankings = {key: standings.ranking(key) for key in STANDING}
    content = {
        "board": board.model_dump(mode="json", exclude_none=True),
        "measures": {m.key: {"words": m.words, "higher is better": m.higher} for m in MEASURES},
        "rankings": {
            key: {
                "sets": r.sets,
                "ranks": dict(zip(r.methods, r.ranks, strict=True)),
                "friedman_p": r.p,
                "critical_difference": r.critical,
            }
            for key, r in rankings.items()
            if r
        },
        "runs": rows(standings),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def markdown_text(standings: Standings) -> str:
    """The report with a table of commands for each data set at its end."""
    tables = [f"\n{markdown_table(commands(standings, place))}\n" for place in standings.places]
    return (
        markdown(document(standings), pictures="figures") + "\n## Commands and digests\n" + "".join(tables)
    )


def write(standings: Standings, folder: Path) -> list[Path]:
    """Write leaderboard.html, .md, .csv and .json, and the diagrams as PNG and SVG in figures/."""
    durable.make_folder(folder)
    report = document(standings)
    forms = {
        "md": markdown_text(standings),
        "csv": csv_text(standings),
        "json": json_text(standings),
        "html": leaderboard_page.page(standings, report),
    }
    made = []
    for ending, text in forms.items():
        made.append(folder / f"{NAME}.{ending}")
        durable.write(made[-1], text.encode())
    for figure in report.figures():
        made += [
            figure.draw(folder / "figures" / f"{figure.name}.{e}", figure.width) for e in ("png", "svg")
        ]
    return made
