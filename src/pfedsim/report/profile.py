"""What a table holds, column by column, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table as Grid

from pfedsim import escape
from pfedsim.data.federation import Federation
from pfedsim.data.tables import problems, table
from pfedsim.data.tables.cells import GONE
from pfedsim.data.tables.recipe import WHY
from pfedsim.data.tables.sheets import Sheet
from pfedsim.errors import Error

FEW_CLASSES = 10


@dataclass(frozen=True, eq=False)
class Profile:
    """The files of a table and, unless more than missing cells is wrong with them, the data set that they make."""

    files: table.Files
    problems: list[str]
    federation: Federation | None

    def cells(self) -> Grid:
        """A row for each column: what becomes of it, and how many cells are known and missing in each file."""
        grid = Grid("column", "becomes")
        for sheet in self.files.sheets:
            grid.add_column(escape.visible(sheet.party), justify="right")
        becomes = self._becomes()
        for name in self.files.names:
            counts = [_count(found.get(name)) for found in self.files.found]
            grid.add_row(*map(escape.visible, (name, becomes.get(name, "?"), *counts)))
        return grid

    def _becomes(self) -> dict[str, str]:
        recipe = None if self.federation is None else self.federation.data.recipe
        if recipe is None:
            return {}
        left_out = {name: f"left out: {WHY[why]}" for name, why in recipe.left_out.items()}
        return {step.name: step.in_words for step in recipe.steps} | left_out

    def sentences(self) -> list[str]:
        """What was made of the files, and by which recipe."""
        if self.federation is None:
            return []
        data, recipe = self.federation.data, self.federation.data.recipe
        assert recipe is not None
        numbers = f"{len(data.columns or ()):,} number{'s' * (len(data.columns or ()) != 1)} in each row"
        classes = ", ".join(map(escape.visible, data.classes[:FEW_CLASSES]))
        more = f" and {len(data.classes) - FEW_CLASSES} more" if len(data.classes) > FEW_CLASSES else ""
        return [
            *data.notes,
            f"label {escape.visible(recipe.label)!r}: {classes}{more}",
            f"{numbers}; recipe {recipe.digest[:12]}, fitted on the {recipe.rows:,} rows of the train parts "
            "of the default split",
        ]


def profile(sheets: Sequence[Sheet], asked: table.Asked, name: str) -> Profile:
    """Look at the files of a table."""
    from pfedsim.runs.config import check
    from pfedsim.runs.setup import federate

    files = table.opened(sheets, asked)
    wrong = problems.of(files)
    filled = replace(asked, missing="mean")
    if problems.of(table.opened(sheets, filled)):
        return Profile(files, wrong, None)
    data = table.read(sheets, filled, name)
    try:
        return Profile(files, wrong, federate(check({"data": name}), data=data))
    except Error as error:  # too few rows for the default split
        return Profile(files, [*wrong, str(error)], None)


def _count(found: object) -> str:
    column = getattr(found, "column", None)
    if column is None:
        return "no column"
    gone = int((column.codes == GONE).sum())
    return f"{len(column) - gone:,}" + (f", {gone:,} missing" if gone else "")
