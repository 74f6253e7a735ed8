"""Our numbers laid out as the paper prints its tables, for LaTeX: columns taken from the tables that set
ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pfedsim.report import BEST, Entry, Section, Table, entries


def metrics(tables: Mapping[str, Table]) -> list[Section]:
    """Table 2, by set and length of training; a measure a row, its four pairs first."""
    made = []
    for which, table in tables.items():
        rows = [
            [Entry("Data Similarity" if k == 0 else row[0].text), *row[1:5]]
            for k, row in enumerate(table.rows)
        ]
        head, words = ["Metric", *table.head[1:5]], f"{_title(2)}: {which}"
        made.append(Table(f"table-2-{table.name}", words, head, rows, bars=range(1, 5), for_papers=True))
    return _section(made)


def accuracy(tables: Mapping[str, Table], scales: Sequence[str]) -> list[Section]:
    """Table 3, by set; a method a row, and under it how large each set's runs are."""
    made = [_by_set(3, tables, rules=[len(table.rows) - 1]) for table in list(tables.values())[:1]]
    return _section([replace(table, notes=scales) for table in made])


def rho(tables: Mapping[str, Table]) -> list[Section]:
    """Table 6, by set. The paper marks the best alone."""
    made = [_by_set(6, tables, rules=table.rules) for table in list(tables.values())[:1]]
    return _section(
        [
            replace(
                t, rows=[[replace(c, mark=c.mark if c.mark == BEST else "") for c in row] for row in t.rows]
            )
            for t in made
        ]
    )


def overhead(tables: Mapping[str, tuple[Table, Table]]) -> list[Section]:
    """Table 7, by set: every method's seconds, and the first set's bytes. The paper's last column is an
    order, ours is measured."""
    if not tables:
        return []
    seconds, traffic = next(iter(tables.values()))
    sent = [_columns(traffic, heading)[0] for heading in ("received, in models", "sent, in models")]
    columns = [_names(seconds), *(_columns(time, "wall")[0] for time, _ in tables.values()), *sent]
    return _section(
        [
            Table(
                f"table-7-{seconds.name}",
                _title(7),
                ["#Dataset", *tables, "received", "sent"],
                list(zip(*columns, strict=True)),
                groups=[("xi_p (1e-4 s) with format mean (std)", len(tables)), ("xi_m, in nu_m", 2)],
                bars=[len(tables) + 1],
                for_papers=True,
            )
        ]
    )


def domains(tables: Mapping[str, tuple[Table, str]]) -> list[Section]:
    """Table 8, a set each with its scale; a method a row, its domains first, then the average."""
    made = []
    for name, (table, scale) in tables.items():
        last = list(table.head).index("average")
        rows = [row[: last + 1] for row in table.rows]
        head = ["Method", *table.head[1:last], "Average"]
        made.append(
            Table(
                f"table-8-{table.name}",
                f"{_title(8)}: {name}",
                head,
                rows,
                rules=[len(rows) - 1],
                bars=[1, last],
                notes=[f"{name}: {scale}"],
                for_papers=True,
            )
        )
    return _section(made)


def _section(tables: Sequence[Table]) -> list[Section]:
    return [Section("", tables)] if tables else []


def _title(number: int) -> str:
    return f"Ours, as the paper prints its Table {number}"


def _names(table: Table) -> list[Entry]:
    return entries(*(row[0].text for row in table.rows))


def _columns(table: Table, heading: str) -> list[list[Entry]]:
    return [[row[k] for row in table.rows] for k, words in enumerate(table.head) if words == heading]


def _by_set(number: int, tables: Mapping[str, Table], rules: Sequence[int]) -> Table:
    """Ours alone: sets across, and under each how it was dealt."""
    columns = [_names(next(iter(tables.values())))]
    bars = []
    for table in tables.values():
        bars.append(len(columns))
        columns += _columns(table, "ours")
    return Table(
        f"table-{number}",
        _title(number),
        ["#Partition", *(dealt for table in tables.values() for dealt, _ in table.groups)],
        list(zip(*columns, strict=True)),
        groups=[(name, len(table.groups)) for name, table in tables.items()],
        rules=rules,
        bars=bars[1:],
        for_papers=True,
    )
