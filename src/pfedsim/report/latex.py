"""Tables as LaTeX, in the paper's style (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfedsim.report.document import Table

MARKS = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
SPECIAL = {
    **{character: "\\" + character for character in "&%_#${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\`{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "−": "$-$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
    "¶": r"\P{}",
}
PIECES = re.compile(
    r"""`([^`]*)`  # code
    | "([^"]*)"
    | (?<![\w.])(-?\d+(?:\.\d+)?)e(-?)0*(\d+)\b  # 1.1e-3
    | \bO\(([^()]*)\)  # O(v_m)
    | \b(xi_[a-z]|nu_[a-z]|rho)\b
    | (?<![\w.-])(-)(?=\d)  # a minus, not a hyphen
    | .""",
    re.DOTALL | re.VERBOSE,
)


def escaped(text: str) -> str:
    """Plain text escaped for LaTeX, with the paper's symbols in math mode."""
    return PIECES.sub(_piece, text)


def _piece(found: re.Match[str]) -> str:
    code, quoted, number, sign, power, order, symbol, minus = found.groups()
    if code is not None:
        return rf"\texttt{{{''.join(SPECIAL.get(c, c) for c in code)}}}"
    if quoted is not None:
        return f"``{escaped(quoted)}''"
    if number is not None:
        return ("$" if number == "1" else rf"${number} \times ") + f"10^{{{sign}{power}}}$"
    if order is not None:
        return r"$\mathcal{O}(" + re.sub(r"\b(?:nu|v)_", r"\\nu_", order) + ")$"
    if symbol is not None:
        return rf"$\{symbol}$"
    return "$-$" if minus else SPECIAL.get(found[0], found[0])


def packages(names: Sequence[str]) -> str:
    """A comment with the packages that the including document must load."""
    return rf"% needs \usepackage{{{','.join(names)}}}" + "\n"


def latex(tables: Sequence[Table], caption: str = "") -> str:
    """A file of tables to \\input; `caption` becomes a comment at the top."""
    needs = packages(["booktabs", *["longtable"] * any(t.prose for t in tables)])
    return needs + (f"% {caption}\n" if caption else "") + "\n".join(map(latex_table, tables))


def latex_table(table: Table) -> str:
    """One table; a table of sentences is a longtable, which can span pages."""
    kind = "longtable" if table.prose else "tabular"
    lines = [f"% {table.title}", rf"\begin{{{kind}}}{{{_columns(table)}}}", r"\toprule", *_groups(table)]
    lines += [" & ".join(map(escaped, table.head)) + r" \\", r"\midrule"]
    for k, row in enumerate(table.rows):
        lines += [r"\midrule"] if k in table.rules else []
        shown = " & ".join(MARKS[c.mark].format(escaped(c.text)) for c in row)
        shielded = "{}" if shown.startswith(("[", "*")) else ""  # else the \\ before takes it as an option
        lines.append(shielded + shown + r" \\")
    lines += [r"\bottomrule", rf"\end{{{kind}}}"]
    lines += [rf"\par{{\footnotesize {escaped(note)}\par}}" for note in table.notes]
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
    words = ["", *(rf"\multicolumn{{{count}}}{{c}}{{{escaped(name)}}}" for name, count in table.groups)]
    at, rules = 2, ""
    for name, count in table.groups:
        rules += rf"\cmidrule(lr){{{at}-{at + count - 1}}}" if name else ""
        at += count
    return [" & ".join(words) + r" \\", rules]
