"""Tables as LaTeX, in the paper's style (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pfedsim import escape

if TYPE_CHECKING:
    from pfedsim.report.document import Table

MARKS = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}


def packages(names: Sequence[str]) -> str:
    """A comment with the packages that the including document must load."""
    return rf"% needs \usepackage{{{','.join(names)}}}" + "\n"


def latex(tables: Sequence[Table], caption: str = "") -> str:
    """A file of tables to \\input; `caption` becomes a comment at the top."""
    needs = packages(["booktabs", *["longtable"] * any(t.prose for t in tables)])
    return (
        needs + (f"% {escape.visible(caption)}\n" if caption else "") + "\n".join(map(latex_table, tables))
    )


def latex_table(table: Table) -> str:
    """One table; a table of sentences is a longtable, which can span pages."""
    kind = "longtable" if table.prose else "tabular"
    lines = [
        f"% {escape.visible(table.title)}",
        rf"\begin{{{kind}}}{{{_columns(table)}}}",
        r"\toprule",
        *_groups(table),
    ]
    lines += [" & ".join(map(escape.latex, table.head)) + r" \\", r"\midrule"]
    for k, row in enumerate(table.rows):
        lines += [r"\midrule"] if k in table.rules else []
        shown = " & ".join(MARKS[c.mark].format(escape.latex(c.text)) for c in row)
        shielded = "{}" if shown.startswith(("[", "*")) else ""  # else the \\ before takes it as an option
        lines.append(shielded + shown + r" \\")
    lines += [r"\bottomrule", rf"\end{{{kind}}}"]
    lines += [rf"\par{{\footnotesize {escape.latex(note)}\par}}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _columns(table: Table) -> str:
    others = len(table.head) - 1
    if table.prose:
        return rf"p{{0.1\textwidth}}*{{{others}}}{{p{{{0.75 / others:.2f}\textwidth}}}}"
    kinds = [
        r"p{0.3\textwidth}" if sentences else "l" if k < table.names else "c"
        for k, sentences in enumerate(table.sentences())
    ]
    return "".join("|" * (k in table.bars) + kind for k, kind in enumerate(kinds))


def _groups(table: Table) -> list[str]:
    if not table.groups:
        return []
    words = [
        "",
        *(rf"\multicolumn{{{count}}}{{c}}{{{escape.latex(name)}}}" for name, count in table.groups),
    ]
    at, rules = 2, ""
    for name, count in table.groups:
        rules += rf"\cmidrule(lr){{{at}-{at + count - 1}}}" if name else ""
        at += count
    return [" & ".join(words) + r" \\", rules]
