"""Clients that never train, scored apart at the end."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import small
from small import session, table

from pfedsim import federate, train
from pfedsim.data.federation import Federation
from pfedsim.data.partition import hold_out
from pfedsim.methods import METHODS, parse
from pfedsim.report.run_page import run_page


def held(share: float = 0.4) -> Federation:
    whole = table(train=(20, 9, 33, 14, 12))
    return Federation(whole.data, hold_out(whole.partition, share, 42))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_serves_clients_that_it_has_never_met(name: str) -> None:
    s = session(parse(name), held(), rounds=3, epochs=2)
    assert s.fed.clients == 3
    for done in small.rounds(s):
        assert {r.client for r in done.replies} <= {0, 1, 2}
        state = done.state
    assert set(state.memories) <= {0, 1, 2}
    for epochs in (0, 2):
        scores = small.score(s, state, finetune=epochs, unseen=2)
        assert ([c.client for c in scores.clients], scores.split) == ([3, 4], "unseen")
        assert all(c.samples == 10 and math.isfinite(c.metrics["loss"]) for c in scores.clients)


def test_fedavg_gives_them_the_common_model() -> None:
    s = session(federation=held(), rounds=2, buffers="shared")
    *_, last = small.rounds(s)
    scores = small.score(s, last.state, unseen=2, models=True)
    assert all(c.model is not None and c.model.equal(last.state.server.model) for c in scores.clients)


def test_a_run_reports_them_apart(tmp_path: Path) -> None:
    words = {"clients": 10, "alpha": 0.5, "minimum": 20}
    federation = federate("digits", unseen=0.2, **words)
    assert (federation.clients, federation.unseen) == (10, 2)
    run = train(federation, "fedavg", out=tmp_path / "run", rounds=2, epochs=1, join=0.5)
    assert run.summary["clients"] == 8
    assert set(run.summary["unseen"]) == {"clients", "served", "finetuned"}
    assert len(run.client_values()) == 8
    assert [len(run.client_values(model=m, split="unseen")) for m in ("served", "finetuned")] == [2, 2]
    with open(tmp_path / "run" / "clients.csv") as file:
        assert {row["client"] for row in csv.DictReader(file) if row["split"] == "unseen"} == {"8", "9"}
    trained = {i for m in run.metrics() if "clients" in m for i in m["clients"]}
    assert trained <= set(range(8))
    shown = run_page(run)
    for state, model in (("as served", "served"), ("after 1 local epoch", "finetuned")):
        assert f"<th>2 unseen clients, {state}</th>" in shown
        assert f"<td>{100 * run.summary['unseen'][model]['micro']:.2f}</td>" in shown
    mean = sum(run.client_values(split="unseen")) / 2
    assert run.summary["unseen"]["served"]["mean"] == pytest.approx(mean)
    again = train(
        federate("digits", unseen=0.2, **words), "fedavg", rounds=2, epochs=1, join=0.5, workers=1
    )
    assert again.summary == run.summary
    from pfedsim.report.tables import run_table

    assert list(run_table([run]).head[-2:]) == ["2 unseen: served", "2 unseen: fine-tuned, 1 epoch"]


def test_without_them_nothing_changes() -> None:
    whole = table()
    assert Federation(whole.data, whole.partition).unseen == 0
    assert (
        "unseen"
        not in train(federate("digits", clients=4, minimum=20), "fedavg", rounds=1, epochs=1).summary
    )
