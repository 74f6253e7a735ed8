"""Follow a run from its folder: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pfedsim import escape
from pfedsim.cli.progress import duration
from pfedsim.report.tables import percent, size
from pfedsim.runs.news import News, news

PAUSE = 0.5  # seconds between two reads
BARS = "▁▂▃▄▅▆▇█"


def follow(folder: Path, console: Console, pause: Callable[[float], None] = time.sleep) -> None:
    """Show the run until it ends or stops, or the user presses Ctrl-C."""
    try:
        now = (_live if console.is_terminal else _printed)(folder, console, pause)
    except KeyboardInterrupt:
        console.print(f"no longer watching {folder}", highlight=False, soft_wrap=True)
        return
    if now.finished:
        said = f"finished; pictures: pfedsim show {folder}"
    else:
        said = (
            f"stopped after round {now.round} of {now.rounds}: no process is running it; resume it with: "
            f"pfedsim resume {folder}"
        )
    console.print(said, highlight=False, soft_wrap=True)


def _live(folder: Path, console: Console, pause: Callable[[float], None]) -> News:
    with Live(view(news(folder)), console=console, refresh_per_second=4) as live:
        while not ((now := news(folder)).finished or now.stopped):
            live.update(view(now))
            pause(PAUSE)
        live.update(view(now))
    return now


def _printed(folder: Path, console: Console, pause: Callable[[float], None]) -> News:
    shown = scored = 0
    while True:
        now = news(folder)
        for line in lines(now, shown, scored):
            console.print(line, highlight=False, soft_wrap=True)
        if now.finished or now.stopped:
            return now
        served = (s["round"] for s in now.scores if s["model"] == "served")
        shown, scored = now.round, max(served, default=0)
        pause(PAUSE)


def view(now: News) -> RenderableType:
    """The run's progress on one screen."""
    served = [s for s in now.scores if s["model"] == "served"]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("rounds", f"{now.round} of {now.rounds}{'' if now.finished else _left(now)}")
    table.add_row("", ProgressBar(max(1, now.rounds), now.round, width=50))
    if not now.finished:
        table.add_row("last update", f"{duration(now.silence)} ago")
    if now.records:
        last = now.records[-1]
        table.add_row(
            "training loss",
            _number(last["train_loss"]) + "  " + _spark([r["train_loss"] for r in now.records]),
        )
        table.add_row("clients in round", str(len(last["clients"])))
        down, up = (size(sum(r[way] for r in now.records)) for way in ("bytes_down", "bytes_up"))
        table.add_row("received, sent", f"{down}, {up}")
    if now.finished and now.scores and now.scores[-1]["model"] != "served":
        table.add_row("after local epochs", _score(now.scores[-1]))
    if served:
        table.add_row("served", f"{_score(served[-1])}, round {served[-1]['round']}")
        table.add_row("accuracy", _spark([s["micro"] for s in served]))
    events = [
        Text(escape.visible(f"{e['event']}: {e.get('why', e.get('what', ''))}"), style="yellow")
        for e in now.events[-3:]
    ]
    return Group(Text(escape.visible(now.title), style="bold"), table, *events)


def lines(now: News, shown: int, scored: int) -> list[str]:
    """A line for each new score (after round `scored`) of a round already shown, then a line for each round
    after `shown`."""
    scores = {s["round"]: s for s in now.scores if s["model"] == "served"}
    late = [
        f"round {r} of {now.rounds}: served {_score(score)}"
        for r, score in scores.items()
        if scored < r <= shown
    ]
    return late + [
        f"round {r['round']} of {now.rounds}: training loss {_number(r['train_loss'])}"
        + (f", served {_score(scores[r['round']])}" if r["round"] in scores else "")
        for r in now.records
        if r["round"] > shown
    ]


def _left(now: News) -> str:
    if not now.round:
        return ""
    return f", about {duration(now.seconds / now.round * (now.rounds - now.round))} left"


def _score(score: dict[str, Any]) -> str:
    return (
        f"{percent(score['micro'])}% of all samples, {percent(score['mean'])}% client "
        f"mean, {percent(score['worst_tenth'])}% worst tenth"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _spark(values: list[float | None]) -> str:
    """The last forty values as bars, scaled from the lowest to the highest."""
    known = [v for v in values[-40:] if v is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    return "".join(BARS[int((v - low) / ((high - low) or 1) * (len(BARS) - 1))] for v in known)
