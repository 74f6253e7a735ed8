"""Names that contain escape codes, formulas, HTML, Markdown and LaTeX, in every place where names are shown."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedsim import escape
from pfedsim.cli.app import app
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.data.readers import folders, npz
from pfedsim.errors import Error
from pfedsim.export.card import card
from pfedsim.export.config import ExportConfig, Input
from pfedsim.report.document import Document, Section, Table, csv_text, entries, html, markdown
from pfedsim.report.latex import latex_table
from pfedsim.report.predictions import Predictions

NASTY = [
    "\x1b[31mred",
    "=1+1",
    "@SUM(A1)",
    "<b>bold</b>",
    "a|b",
    "$x^$",
    "\\input{x}",
    "two\nlines",
    "\u202eback",
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本", "plain é 日本"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("\udce9", "\\udce9"),
        ("\x9b31m", "\\x9b31m"),
        ("می\u200cشود", "می\u200cشود"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert escape.visible(text) == shown


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        (" =1", "' =1"),
        ("@x", "'@x"),
        ("-x", "'-x"),
        ("\t=1", "\\t=1"),
        ("-1.5", "-1.5"),
        ("+1.2 [0.3, 2.0]", "+1.2 [0.3, 2.0]"),
        ("-", "-"),
        ("a=b", "a=b"),
        (-1, -1),
        (-1.5, -1.5),
    ],
)
def test_cells_are_no_formulas(value: object, cell: object) -> None:
    assert escape.cell(value) == cell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>", "&lt;script>"),
        ("a|b", "a\\|b"),
        ("**x**", "\\*\\*x\\*\\*"),
        ("[x](http://y)", "[x\\](http://y)"),
        ("[1.0, 2.0]", "[1.0, 2.0]"),
        ("`code`", "`code`"),
    ],
)
def test_markdown(text: str, shown: str) -> None:
    assert escape.markdown(text) == shown


def test_latex_has_no_commands_of_others() -> None:
    assert escape.latex("\\input{x}") == r"\textbackslash{}input\{x\}"
    assert escape.latex(r"O(\input{x})") == r"$\mathcal{O}(\textbackslash{}input\{x\})$"
    assert escape.latex("100% $x^$ &_#") == r"100\% \$x\textasciicircum{}\$ \&\_\#"


def test_html() -> None:
    assert escape.html('<b a="\'">\x1b') == "&lt;b a=&quot;&#x27;&quot;&gt;\\x1b"


@pytest.fixture
def table() -> Table:
    return Table("t", "title \x1b[0m", ["name \x1b", *NASTY], [entries("=row", *NASTY)])


def test_a_table_in_every_format(table: Table) -> None:
    document = Document("d", "a title", [Section("a heading", [table])])
    for text in (markdown(document), html(document), latex_table(table), csv_text([table])):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "<b>bold</b>" not in html(document).partition("<body>")[2]
    assert "<b>bold" not in markdown(document)
    rows = [line for line in markdown(document).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(NASTY) + 2}
    assert "\\input" not in latex_table(table)
    cells = list(csv.reader(io.StringIO(csv_text([table]))))
    assert [row[4] for row in cells[1:]][1:3] == ["'=1+1", "'@SUM(A1)"]
    assert {row[2] for row in cells[1:]} == {"'=row"}


def test_a_card() -> None:
    run = {
        "client": 1,
        "name": NASTY[0],
        "method": "<i>m</i>",
        "data": "**d**",
        "clients": 2,
        "rounds": 1,
        "seed": 1,
    }
    config = ExportConfig(
        network="mlp",
        arguments={},
        head="classifier",
        classes=NASTY,
        input=Input(shape=[1], dtype="float32", mean=[0.0], std=[1.0], fill=None, columns=None),
        test={},
        run=run,
        checked={},
        files={},
    )
    text = card(config)
    assert "\x1b" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "\\*\\*d\\*\\*" in text
    assert text.count("\n## ") == 4  # no heading of others


def test_predictions() -> None:
    classes = NASTY[:3]
    made = Predictions(["=file.png", "b"], classes, [[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]], [classes[0], "x"])
    rows = list(csv.reader(io.StringIO(made.csv())))
    assert rows[1][:3] == ["'=file.png", "\\x1b[31mred", "\\x1b[31mred"]
    assert rows[2][2] == "'=1+1"
    assert rows[0][-3] == "p(\\x1b[31mred)"
    assert "\x1b" not in made.csv()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data set whose classes and clients have such names."""
    count = 18 * len(NASTY)
    path = tmp_path / "nasty.npz"
    words = np.array(NASTY)
    y, client = words[np.arange(count) % len(NASTY)], words[np.arange(count) // (count // 3)]
    x = np.random.default_rng(0).normal(size=(count, 3, 12)).astype(np.float32)
    np.savez(path, x=x, y=y, client=client)
    return path


def test_data_show(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "shown"
    done = CliRunner().invoke(app, ["data", "show", str(data), "--out", str(out)], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\\x1b[31mred" in done.output
    assert (out / "labels.svg").is_file()
    heading = next(csv.reader((out / "labels.csv").open(encoding="utf-8")))
    assert "'=1+1" in heading
    assert "'@SUM(A1)" in heading
    assert "\x1b" not in (out / "clients.csv").read_text(encoding="utf-8")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    os.makedirs(os.fsencode(tmp_path) + b"/photos/caf\xe9")
    with pytest.raises(Error, match=r"photos/caf\udce9 is not UTF-8; rename it"):
        folders.read("pets", tmp_path / "photos")
    for words in (np.array(["a", "\udce9"]), np.array([b"a", b"\xe9"])):
        np.savez(tmp_path / "a.npz", x=np.ones((2, 2), np.float32), y=words)
        with pytest.raises(Error, match=r"not a valid \.npz file"):
            npz.read(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2), np.float32), y=np.array([b"a", b"b"]))
    assert npz.read(tmp_path / "a.npz").classes == ("a", "b")


def test_a_notebook(data: Path) -> None:
    found = npz.read(data)
    parts = tuple(Split(np.arange(k, len(found.y), 3), np.arange(0)) for k in range(3))
    shown = Federation(found, Partition(parts, {"names": NASTY[:3]}, found.digest))._repr_html_()
    assert "<b>" not in shown
    assert "\x1b" not in shown


def test_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pfedsim", "run", "--data", "\x1b[31mred.npz"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "\\x1b[31mred.npz" in done.stderr
