"""Reads made-up tables of one to three parties: none may end in a traceback, and no message may show a cell.

    python benchmarks/raw_tables.py --examples 500 --out benchmarks/raw_tables.json

hypothesis makes the files: separators, encodings, signs for missing cells, numbers, dates, words, ids, ragged rows,
bytes that are no text, labels that are missing or all different. Each table goes the whole way: reading, the list of
problems, the profile, the federation with its recipe, and the recipe applied to another made-up file, as `predict`
does. Every word, number and date of a cell carries a mark by which it is found in a message. The first case that fails
is printed."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import pfedsim
from pfedsim.data.tables import sheets
from pfedsim.data.tables.problems import Problems
from pfedsim.data.tables.table import Asked
from pfedsim.errors import Error
from pfedsim.export.rows import rows_of
from pfedsim.report.profile import profile

MARKS = ("qzx", "91827", "1987", "1387")  # in every word, number and date; in no count of rows
NAMES = ("age", "sex", "dose", "seen", "patient_id", "größe", "a b", "x", "", "Age", "label", "client")
GONE = ("", "?", "NA", "-", "n/a", "NULL", "nan", " ")
WORDS = ("Qzx", "qzx", "qzxé", "=qzx", "qzx\u202e", "<b>qzx</b>", "yes qzx", "\x1b[31mqzx")
NUMBERS = (
    "91827",
    "91827.5",
    "-91827",
    "91827,25",
    "91827e3",
    "91827e40",
    "+91827.",
    "918.271.827",
    "918,271",
)
DATES = (
    "1987-03-04",
    "4.3.1987",
    "03/04/1987",
    "31/12/1987",
    "12/31/1987",
    "4 Mar 1987",
    "5.6.1387",
    "1987-13-45",
)
BOOLEANS = ("yes", "no", "TRUE", "false", "0", "1")

words = st.sampled_from(WORDS) | st.integers(0, 40).map(lambda k: f"qzx{k}")
kinds = {
    "number": st.sampled_from(NUMBERS[:3]) | st.integers(0, 99).map(lambda k: f"91827{k:02}"),
    "comma": st.integers(0, 99).map(lambda k: f"91827,{k}"),
    "any number": st.sampled_from(NUMBERS),
    "category": st.sampled_from(WORDS[:3]),
    "words": words,
    "date": st.sampled_from(DATES[:1]) | st.integers(1, 28).map(lambda d: f"1987-05-{d:02}"),
    "any date": st.sampled_from(DATES),
    "boolean": st.sampled_from(BOOLEANS),
    "id": st.integers(0, 10**6).map(lambda k: f"91827{k:07}"),
    "gone": st.sampled_from(GONE),
    "anything": words | st.sampled_from((*NUMBERS, *DATES, *GONE, *BOOLEANS)),
    "text": st.text(max_size=6).map(lambda t: f"qzx{t}"),
}
labels = {
    "two": st.sampled_from(("qzx", "qzy91827")),
    "numbers": st.sampled_from(("918270", "918271", "918272.0")),
    "gaps": st.sampled_from(("qzx", "qzxy", "")),
    "one": st.just("qzx"),
    "all different": st.integers(0, 10**6).map(lambda k: f"qzx{k}"),
}


@st.composite
def file(draw: st.DrawFn, heading: list[tuple[str, str]], tidy: bool) -> bytes:
    """One file with these columns and kinds."""
    if not tidy and draw(st.integers(0, 20)) == 0:
        return draw(st.binary(max_size=60))
    count = draw(st.integers(8, 40) if tidy else st.integers(0, 40))
    separator = draw(st.sampled_from(",,,;;\t|"))
    columns = []
    for name, kind in heading:
        cells = labels[kind] if name == "label" else st.just("") if kind == "empty" else kinds[kind]
        cells = st.sampled_from(("north", "south", "west")) if name == "client" else cells
        if kind not in ("id", "text") and name not in ("label", "client") and draw(st.booleans()):
            cells = st.one_of(*[cells] * 9, st.sampled_from(GONE))
        columns.append(draw(st.lists(cells, min_size=count, max_size=count)))
    rows = [list(row) for row in zip(*columns, strict=True)]
    if not tidy and rows and draw(st.integers(0, 6)) == 0:
        rows[0] = [*rows[0], "qzx"]
    lines = [[name for name, _ in heading], *rows]
    text = "\n".join(separator.join(_quoted(cell, separator) for cell in line) for line in lines)
    return text.encode(
        draw(st.sampled_from(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))), "replace"
    )


def _quoted(cell: str, separator: str) -> str:
    special = any(c in cell for c in (separator, '"', "\n", "\r"))
    return '"' + cell.replace('"', '""') + '"' if special else cell


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[bytes], dict[str, Any]]:
    """The files of a table, and how it is asked for."""
    tidy = draw(st.integers(0, 3)) > 0
    names = draw(
        st.lists(st.sampled_from(NAMES[:8] if tidy else NAMES), min_size=1, max_size=5, unique=True)
    )
    plain = st.sampled_from(("number", "comma", "category", "date", "boolean", "id", "gone"))
    heading = [
        (name, draw(plain if tidy else st.sampled_from(list(kinds)))) for name in names if name != "label"
    ]
    if tidy or draw(st.integers(0, 9)):
        heading.append(("label", draw(st.sampled_from(("two", "gaps") if tidy else tuple(labels)))))
    files = []
    for _ in range(draw(st.integers(1, 4))):  # the last is for predictions
        mine = [(n, k) for n, k in heading if tidy or draw(st.integers(0, 15))]
        files.append(draw(file(mine or heading, tidy)))
    how = {
        "missing": draw(st.sampled_from(("mean", "mean", "refuse"))),
        "na": draw(st.sampled_from(((), ("91827",)))),
    }
    if draw(st.integers(0, 5)) == 0:
        how["types"] = {
            draw(st.sampled_from(NAMES)): draw(st.sampled_from(("number", "category", "date", "boolean")))
        }
    return files, how


def outcome(folder: Path, files: list[bytes], how: dict[str, Any]) -> list[str]:
    """What becomes of a table: "made" or "refused", and what is wrong with the messages on the way."""
    paths = [folder / f"{'abcd'[k]}.csv" for k in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    train, new = (paths[:-1], paths[-1]) if len(paths) > 1 else (paths, paths[0])
    said: list[str] = []
    result, recipe = "refused", None
    try:
        found = profile([sheets.read(path) for path in train], Asked(**how), "table")
        said += found.problems
    except Error as error:
        said.append(str(error))
    try:
        one = {} if len(train) > 1 else {"clients": 2, "partition": "iid", "minimum": 2}
        federation = pfedsim.federate(train, **how, **one)
        result, recipe = "made", federation.data.recipe
        said += federation.data.said
        assert federation.data.x.shape == (len(federation.data.y), len(federation.data.mean))
        assert min(federation.data.std) > 0
    except Problems as error:
        said += error.each
    except Error as error:
        said.append(str(error))
    if recipe is not None:
        try:
            said += rows_of(sheets.read(new), recipe, {}).warnings
        except Error as error:
            said.append(str(error))
    shown = [m for m in said if any(mark in m.casefold() for mark in MARKS)]
    broken = [m for m in said if "\n" in m or not m]
    return [result, *shown, *broken]


def measure(examples: int, number: int) -> dict[str, Any]:
    """All cases; raises what the first failing one raises."""
    counts: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(tables())
    def each(case: tuple[list[bytes], dict[str, Any]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            result, *wrong = outcome(Path(folder), *case)
        assert not wrong, wrong
        counts[result] += 1

    each()
    return {"examples": examples, "seed": number, "outcomes": dict(sorted(counts.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    text = json.dumps(measure(asked.examples, asked.seed), indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
