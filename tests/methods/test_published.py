"""What others have published is complete enough to be run again."""

import tomllib
from importlib.resources import files

from pfedsim.methods import METHODS

PUBLISHED = tomllib.loads((files("pfedsim.methods") / "published.toml").read_text())
NONE_FOUND = {"fedpac", "cwfedavg", "moon"}  # no table at hand that names its protocol
OURS = {
    "fedavgft",
    "fedavgm",
    "scaffold",
    "ditto",
    "apfl",
    "fedbabu",
    "fedala",
    "fedamp",
    "pfedgraph",
    "knnper",
    "fedrod",
    "fedcp",
    "gpfl",
    "feddbe",
}


def test_every_number_names_a_method_and_a_protocol_and_is_a_percentage():
    seen = set()
    for number in PUBLISHED["number"]:
        assert number["method"] in METHODS
        assert 0 < number["accuracy"] <= 100
        protocol = PUBLISHED["protocol"][number["protocol"]]
        assert protocol["source"]
        assert protocol["data"]
        assert protocol["partition"]
        assert protocol["scored"]
        seen.add((number["method"], number["protocol"]))
    assert len(seen) == len(PUBLISHED["number"])


def test_the_methods_beside_the_papers_have_one_each():
    assert {number["method"] for number in PUBLISHED["number"]} >= OURS
    assert not {number["method"] for number in PUBLISHED["number"]} & NONE_FOUND
