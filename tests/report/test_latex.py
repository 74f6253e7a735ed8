"""Tables for papers: that LaTeX takes them, and that they have the paper's layout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pfedsim.escape import latex as escaped
from pfedsim.report.document import Entry, Table
from pfedsim.report.latex import latex, latex_table

NASTY = '<a> ^ ~ {b} \\c `d_e` "f" & % # $ | [*] ` g_h −1 †'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a < b > c", r"a \textless{} b \textgreater{} c"),
        (r"^~\{}", r"\textasciicircum{}\textasciitilde{}\textbackslash{}\{\}"),
        ("`pfedsim run_it`", r"\texttt{pfedsim run\_it}"),
        ("a lone `", r"a lone \`{}"),
        ('he said "50%"', r"he said ``50\%''"),
        ("-1.1e-03 and 1e-4 s", r"$-1.1 \times 10^{-3}$ and $10^{-4}$ s"),
        ("O(v_m + v_g)", r"$\mathcal{O}(\nu_m + \nu_g)$"),
        ("rho = 0.5, xi_p", r"$\rho$ = 0.5, $\xi_p$"),
        ("-0.53 of 0-4, f-FedAP -", r"$-$0.53 of 0-4, f-FedAP -"),
    ],
)
def test_words_are_printed_as_they_are_meant(text: str, code: str) -> None:
    assert escaped(text) == code


def tables() -> list[Table]:
    rows = [[Entry("[a]"), Entry(NASTY, "best")], [Entry("*"), Entry("2", "second")]]
    plain = Table(
        "t", "T & %", ["x_1", "y^2"], rows, groups=[("{g}", 1)], rules=[1], notes=["† why <"], bars=[1]
    )
    return [plain, Table("p", "P", ["a", "b"], [[Entry("[x]"), Entry(NASTY)]], prose=True)]


def test_a_file_says_which_packages_it_needs() -> None:
    assert latex(tables()).startswith("% needs \\usepackage{booktabs,longtable}\n")
    assert latex(tables()[:1]).startswith("% needs \\usepackage{booktabs}\n")


def test_bars_stand_before_their_columns_and_sentences_wrap() -> None:
    assert r"\begin{tabular}{l|p{0.3\textwidth}}" in latex_table(tables()[0])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_latex_takes_whatever_stands_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.tex").write_text(latex(tables()))
    around = (
        r"\documentclass{article}\usepackage{booktabs,longtable}\begin{document}\input{t.tex}\end{document}"
    )
    (tmp_path / "all.tex").write_text(around)
    made = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path,
        capture_output=True,
    )
    assert made.returncode == 0, made.stdout[-2000:].decode(errors="replace")
