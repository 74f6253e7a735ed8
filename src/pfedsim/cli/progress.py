"""Show a run's progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from pfedsim import escape
from pfedsim.plugin import location

if TYPE_CHECKING:
    from pfedsim.data.cache import Tell
    from pfedsim.data.federation import Federation
    from pfedsim.runs.config import Config
    from pfedsim.runs.execution import Progress as Done
    from pfedsim.runs.execution import Watch


class Screen(Console):
    """Standard output, without rich's markup and emoji codes and with escape codes made visible: users' names may
    contain anything."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(escape.visible(text, keep="\n\t"), **how)


def screen() -> Console:
    return Screen()


def say_code(config: Config, folder: Path) -> None:
    """Say on standard error which code a run will import from its own folder, before that happens."""
    for what, spec in config.own_code().items():
        file = location(spec)
        if file is not None and file.resolve().is_relative_to(folder.resolve()):
            print(f"pfedsim: running the code of the {what} in {file}, inside {folder}", file=sys.stderr)


@contextmanager
def watching(console: Console, quiet: bool) -> Iterator[Watch]:
    """A progress callback for `execute` that prints to this console."""
    if quiet:
        yield lambda done: None
    elif console.is_terminal:
        with _bar(console) as watch:
            yield watch
    else:
        yield _lines(console)


@contextmanager
def reading(console: Console, quiet: bool = False) -> Iterator[Tell]:
    """Show the progress of reading or downloading data: a bar on a terminal, a line at its start elsewhere."""
    if quiet or not console.is_terminal:
        printed: set[str] = set()

        def line(what: str, done: int, total: int) -> None:
            if what not in printed and not quiet:
                printed.add(what)
                console.print(
                    what + (f" ({total:,})" if total > 1 else ""), highlight=False, soft_wrap=True
                )

        yield line
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(escape.visible(what), total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield advance


def say_data(console: Console, name: str, federation: Federation, quiet: bool = False) -> None:
    """Print how a data set was read and, if it names no clients, how it was divided."""
    if quiet:
        return
    data = federation.data
    console.print(f"{Path(name).name}: {data.described()}", highlight=False, soft_wrap=True)
    for sentence in [*data.said, *federation.divided]:
        console.print(f"note: {sentence}", highlight=False, soft_wrap=True)


@contextmanager
def _bar(console: Console) -> Iterator[Watch]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as progress:
        current: TaskID | None = None

        def watch(done: Done) -> None:
            nonlocal current
            if done.note:
                console.print(f"note: {done.note}", style="yellow")
            if current is None or done.round < progress.tasks[current].completed:
                current = progress.add_task(escape.visible(done.method), total=done.rounds, score="")
            progress.update(current, completed=done.round, score=_score(done))

        yield watch


def _lines(console: Console) -> Watch:
    """About twenty lines per run, with the time left from the second round on."""
    began, start, last = time.monotonic(), 0, 0

    def watch(done: Done) -> None:
        nonlocal began, start, last
        if done.note:
            console.print(f"note: {done.note}", highlight=False)
            return
        if last == 0:  # the first round of this run, or the first after resuming it
            start = done.round - 1
        last = done.round
        step = max(1, done.rounds // 20)
        if done.round == done.rounds:
            console.print(f"{done.method}: finished{_score(done)}", highlight=False, soft_wrap=True)
            began, last = time.monotonic(), 0
        elif done.round == start + 2 or done.round % step == 0:
            each = (time.monotonic() - began) / (done.round - start)
            left = f", {duration(each * (done.rounds - done.round))} left"
            left = "" if done.round == start + 1 else left
            console.print(
                f"{done.method}: round {done.round} of {done.rounds}{_score(done)}{left}",
                highlight=False,
                soft_wrap=True,
            )

    return watch


def _score(done: Done) -> str:
    if done.micro is None or done.mean is None:
        return ""
    return f", accuracy {100 * done.micro:.2f}% (mean of clients {100 * done.mean:.2f}%)"


def duration(seconds: float) -> str:
    """h:mm:ss, or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
