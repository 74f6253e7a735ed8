"""Show the progress of several runs at once: one bar each on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pfedsim import escape
from pfedsim.cli.progress import watching

if TYPE_CHECKING:
    from pfedsim.runs.execution import Progress as Done
    from pfedsim.runs.execution import Watch


@contextmanager
def watching_several(
    console: Console, quiet: bool = False, lines: bool = True
) -> Iterator[Callable[[str, Done], None]]:
    """Show each run's progress under its name. `lines`: print lines as well as bars."""
    if console.is_terminal and not quiet and not console.quiet:
        with _bars(console, lines) as watch:
            yield watch
        return
    with ExitStack() as stack:
        watches: dict[str, Watch] = {}

        def tell(name: str, done: Done) -> None:
            if name not in watches:
                watches[name] = stack.enter_context(watching(console, quiet or not lines))
            watches[name](done)

        yield tell


@contextmanager
def _bars(console: Console, lines: bool) -> Iterator[Callable[[str, Done], None]]:
    """Bars of the current runs; with `lines`, a run that ends becomes a line above them."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, done: Done) -> None:
            if done.note:
                console.print(f"note: {name}: {done.note}", style="yellow", highlight=False)
                return
            if name not in tasks:
                tasks[name] = progress.add_task(escape.visible(name), total=done.rounds, score="")
            score = "" if done.micro is None else f"{100 * done.micro:.2f}%"
            progress.update(tasks[name], completed=done.round, score=score)
            if done.round == done.rounds:
                progress.remove_task(tasks.pop(name))
                if lines:
                    said = f", accuracy {score}" if score else ""
                    console.print(f"{name}: finished{said}", highlight=False)

        yield tell
