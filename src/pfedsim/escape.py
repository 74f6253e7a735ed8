"""Show other people's words safely. Names of classes, clients, columns, methods and files may contain anything: codes
that move the cursor, formulas, HTML, LaTeX. Every writer passes them through the function of its format."""

from __future__ import annotations

import html as pages
import re
import unicodedata

# control and format characters (such as those that reverse the direction of text), halves of pairs, separators
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"  # between letters of some languages and parts of emoji
FORMULA = re.compile(r"\s*[=+\-@]")  # what spreadsheets evaluate
NUMBER = re.compile(r"[-+\d.,;:%()\[\] eE]*")
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


def visible(text: object, keep: str = "") -> str:
    """The text with characters that cannot be seen written as in Python: \\x1b. `keep`: characters that stay."""
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c) in HIDDEN and c not in keep + JOINERS else c for c in shown
    )


def cell(value: object) -> object:
    """A cell of a CSV file. Text that a spreadsheet would evaluate as a formula gets an apostrophe in front."""
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown


def html(text: object) -> str:
    """Text of an HTML page, also inside attributes."""
    return pages.escape(visible(text, keep="\n\t"))


def markdown(text: object) -> str:
    """Text of a Markdown page or of a cell of its tables; `code` in backticks stays code."""
    shown = re.sub(r"([\\*|])|(\])(?=\()", r"\\\g<0>", visible(text))
    return shown.replace("&", "&amp;").replace("<", "&lt;")


def latex(text: object) -> str:
    """Text of a LaTeX document, with the paper's symbols in math mode."""
    return PIECES.sub(_piece, visible(text))


def _piece(found: re.Match[str]) -> str:
    code, quoted, number, sign, power, order, symbol, minus = found.groups()
    if code is not None:
        return rf"\texttt{{{''.join(SPECIAL.get(c, c) for c in code)}}}"
    if quoted is not None:
        return f"``{latex(quoted)}''"
    if number is not None:
        return ("$" if number == "1" else rf"${number} \times ") + f"10^{{{sign}{power}}}$"
    if order is not None:
        safe = "".join(SPECIAL.get(c, c) if c not in "_^" else c for c in order)
        return r"$\mathcal{O}(" + re.sub(r"\b(?:nu|v)_", r"\\nu_", safe) + ")$"
    if symbol is not None:
        return rf"$\{symbol}$"
    return "$-$" if minus else SPECIAL.get(found[0], found[0])
