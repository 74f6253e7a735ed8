"""The page of a run: whole, self-contained, and with the run's own numbers."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import small

import pfedsim
from pfedsim.data.federation import Federation
from pfedsim.report import page
from pfedsim.report.run_page import run_page, write
from pfedsim.runs.reader import Run


@pytest.fixture(scope="module")
def done(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pfedsim.train(
        digits, "pfedsim", tmp_path_factory.mktemp("page") / "run", rounds=3, epochs=1, join=1.0
    )


class Reader(HTMLParser):
    """Collects headings, links and pictures, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        for name, value in attributes:
            assert value is not None
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "srcset"):
                (self.links if name == "href" else self.pictures).append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    return reader


def test_a_runs_page_fetches_nothing_and_holds_everything(done: Run) -> None:
    text = run_page(done)
    reader = read(text)
    for heading in (
        "What ran",
        "Over the rounds",
        "Each client",
        "Similarity of clients",
        "Bytes",
        "Time",
        "Configuration",
        "Environment",
    ):
        assert heading in reader.text
    assert sorted(reader.links) == sorted(f"#{name}" for name in reader.ids)
    assert (
        len(reader.pictures) == 10
    )  # accuracy, loss, clients, similarities, time; each for wide and for narrow screens
    for picture in reader.pictures:
        kind, _, content = picture.partition(",")
        assert kind == "data:image/svg+xml;base64"
        ElementTree.fromstring(base64.b64decode(content))
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    served, after = (f"{100 * done.summary[model]['micro']:.2f}" for model in ("served", "finetuned"))
    assert f"accuracy, all samples{served}{after}" in reader.text
    accuracies = zip(done.client_values(), done.client_values(model="finetuned"), strict=True)
    for client, (before, later) in enumerate(accuracies):
        samples = int(done.client_values("samples")[client])
        assert f"{client}{samples}{100 * before:.2f}{100 * later:.2f}" in reader.text
    assert (done.path / "config.toml").read_text() in reader.text
    assert done.summary["models_digest"] in reader.text


def test_a_run_without_similarities_or_second_score_has_a_page_too(
    digits: Federation, tmp_path: Path
) -> None:
    plain = pfedsim.train(digits, "fedavg", tmp_path / "run", rounds=1, epochs=1, score={"finetune": 0})
    (plain.path / "events.jsonl").write_text(
        '{"event": "rejected", "round": 0, "client": 2, "why": "a <value> & more"}\n'
    )
    small.listed(plain.path)
    path = write([Run(plain.path)], tmp_path / "elsewhere")
    assert path == tmp_path / "elsewhere" / "report.html"
    reader = read(path.read_text())
    assert "Similarity of clients" not in reader.text
    assert "local epoch" not in reader.text
    assert "round 0, client 2, why a <value> & more" in reader.text


def test_words_cannot_become_markup() -> None:
    made = page.page(
        "<b>",
        [
            (
                "<i>",
                page.paragraph("<u>")
                + page.table(["<s>"], [["<q>"]])
                + page.folded("<a>", page.preformatted("<p>")),
            )
        ],
    )
    assert read(made).text.count("<") == 9  # the title and the section's name twice
