from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pfedsim
from pfedsim.core.method import Fed, Message, Method
from pfedsim.core.scoring import METRICS, measure
from pfedsim.data.federation import ClientData, Federation
from pfedsim.data.partition import load
from pfedsim.errors import Error
from pfedsim.runs import config as configs
from pfedsim.runs.execute import execute
from pfedsim.runs.execution import Progress
from pfedsim.runs.reader import Run, lines

SHORT: dict[str, Any] = {"rounds": 2, "epochs": 1, "join": 0.5, "lr": 0.05, "seed": 7, "local_steps": 2}
MAY_DIFFER = {"timings.jsonl", "manifest.json"}


def run(federation: Federation, out: Path | None = None, **settings: Any) -> Run:
    return pfedsim.train(federation, out=out, **{**SHORT, **settings})


def contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name not in MAY_DIFFER}


def rows(found: Run, **where: str) -> list[dict[str, str]]:
    return [row for row in found.clients() if all(row[key] == value for key, value in where.items())]


@pytest.mark.parametrize("method", ["pfedsim", "fedavg", "local"])
def test_equal_runs_have_equal_bytes(digits: Federation, tmp_path: Path, method: str) -> None:
    first = run(digits, tmp_path / "a", method=method, score={"every": 1})
    federation_again = pfedsim.federate(clients=6, alpha=0.5, minimum=40)
    torch.manual_seed(0)
    again = run(federation_again, tmp_path / "b", method=method, score={"every": 1})
    found = contents(first.path)
    assert found == contents(again.path)
    assert {
        "config.toml",
        "metrics.jsonl",
        "events.jsonl",
        "summary.json",
        "clients.csv",
        "partition.json",
        "models/index.json",
    } <= set(found)
    assert ("similarity/00002.safetensors" in found) == (method == "pfedsim")
    other = run(digits, tmp_path / "c", method=method, seed=8)
    assert other.summary["models_digest"] != first.summary["models_digest"]


def test_no_time_path_or_host_in_what_equal_runs_share(digits: Federation, tmp_path: Path) -> None:
    found = run(digits, tmp_path / "here")
    for name, content in contents(found.path).items():
        assert str(tmp_path).encode() not in content, name
        assert b"seconds" not in content, name


def test_a_configuration_written_by_a_run_gives_the_same_run(digits: Federation, tmp_path: Path) -> None:
    first = run(digits, tmp_path / "a", method="pfedsim:reference(rho=0.5)")
    again = execute(configs.check(configs.load(first.path / "config.toml")), tmp_path / "b")
    assert contents(first.path) == contents(again.path)


def test_other_data_than_the_configuration_states_is_refused(digits: Federation, tmp_path: Path) -> None:
    words = configs.load(run(digits, tmp_path / "a").path / "config.toml")
    with pytest.raises(Error, match=r"digests\.partition"):
        execute(configs.check({**words, "partition_seed": 1}))


@pytest.mark.parametrize("method", ["pfedsim", "fedavg"])
@pytest.mark.parametrize(("backend", "apart"), [("torch", 0.0), ("auto", 1e-5)])
def test_a_clients_model_read_back_scores_as_its_row_says(
    digits: Federation, method: str, backend: str, apart: float
) -> None:
    """Every prediction, and with torch every bit of every metric."""
    found = run(digits, method=method, backend=backend)
    index = json.loads((found.path / "models" / "index.json").read_text())
    for client, split in enumerate(digits.partition.clients):
        model = found.client(client)
        assert not model.module.training
        x = torch.from_numpy(digits.data.x[split.test]).float() / 255
        x = (x - torch.tensor(index["mean"]).reshape(-1, 1, 1)) / torch.tensor(index["std"]).reshape(
            -1, 1, 1
        )
        assert model.inputs(digits.data.x[split.test]).equal(x)
        with torch.no_grad():
            metrics, confusion = measure(model.module(x).double().numpy(), digits.data.y[split.test])
        named = np.array(model.predict(digits.data.x[split.test]))
        assert ((named == digits.data.y[split.test].astype(str)) == found.hits()[client]).all()
        stated = {
            r["metric"]: r["value"]
            for r in rows(found, round="2", client=str(client), model="served", split="test")
        }
        assert int(stated.pop("samples")) == len(split.test)
        cells = dict(cell.split(":") for cell in stated.pop("confusion").split())
        assert {f"{i}>{j}": str(confusion[i, j]) for i, j in np.argwhere(confusion)} == cells
        assert set(stated) == set(METRICS)
        for name, value in stated.items():
            assert float(value or "nan") == pytest.approx(metrics[name], abs=apart, rel=0, nan_ok=True), (
                name
            )
    with pytest.raises(Error, match="clients 0 to 5"):
        found.client(6)
    with pytest.raises(Error, match=r"this model takes \(1, 32, 32\)"):
        found.client(0).inputs(np.zeros((2, 28, 28)))


def test_train_needs_a_federation() -> None:
    with pytest.raises(Error, match="expected the federation that federate"):
        pfedsim.train("digits", "pfedsim")  # type: ignore[arg-type]


def test_the_summary_is_what_the_rows_add_up_to(digits: Federation) -> None:
    found = run(digits)
    for model in ("served", "finetuned"):
        accuracy, samples = (
            [float(r["value"]) for r in rows(found, round="2", model=model, metric=m)]
            for m in ("accuracy", "samples")
        )
        assert found.summary[model]["micro"] == pytest.approx(np.average(accuracy, weights=samples))
        assert found.summary[model]["mean"] == pytest.approx(np.mean(accuracy))
        assert found.client_values(model=model) == accuracy
    assert found.accuracy == found.summary["served"]["micro"]
    assert found.summary["finetuned"]["epochs"] == 1


@pytest.mark.parametrize(("every", "scored"), [(0, [3]), (1, [1, 2, 3]), (2, [2, 3]), (3, [3]), (7, [3])])
def test_clients_are_scored_every_k_rounds_and_at_the_end(
    digits: Federation, every: int, scored: list[int]
) -> None:
    found = run(
        digits,
        rounds=3,
        join=0.2,
        local_steps=1,
        score={"every": every, "finetune": 0},
        method="pfedsim(rho=0)",
    )
    served = [m["round"] for m in found.metrics() if m.get("model") == "served"]
    assert served == scored
    assert [int(p.stem) for p in sorted((found.path / "similarity").iterdir())] == scored
    trained = [m for m in found.metrics() if "train_loss" in m]
    assert [m["round"] for m in trained] == [1, 2, 3]


def test_scoring_more_often_changes_no_result(digits: Federation) -> None:
    often, once = (run(digits, score={"every": every}).summary for every in (1, 0))
    assert often["models_digest"] == once["models_digest"]
    assert often["served"] == once["served"]
    assert often["finetuned"] == once["finetuned"]


def test_no_second_score_where_none_is_asked_for(digits: Federation) -> None:
    found = run(digits, score={"finetune": 0})
    assert found.summary["finetuned"] is None
    assert not rows(found, model="finetuned")


def test_a_validation_part_is_scored_apart_and_changes_training(digits: Federation) -> None:
    held, plain = run(digits, validation=0.2), run(digits)
    sizes = [
        int(r["value"]) for r in rows(held, round="2", model="served", split="validation", metric="samples")
    ]
    assert sizes == [int(0.2 * len(s.train)) for s in digits.partition.clients]
    assert not rows(plain, split="validation")
    assert held.summary["models_digest"] != plain.summary["models_digest"]
    tests = [
        [r["value"] for r in rows(f, round="2", model="served", split="test", metric="samples")]
        for f in (held, plain)
    ]
    assert tests[0] == tests[1]


def test_statistics_stay_with_each_client_or_are_shared(digits: Federation) -> None:
    own, shared = (run(digits, method="fedavg", buffers=b, join=1.0) for b in ("local", "shared"))
    states = [[f.client(i).module.state_dict() for i in (0, 1)] for f in (own, shared)]
    for found, equal in zip(states, (False, True), strict=True):
        assert found[0]["conv1.weight"].equal(found[1]["conv1.weight"])
        assert found[0]["bn1.running_mean"].equal(found[1]["bn1.running_mean"]) == equal
    sent = [f.summary["bytes_up_per_client_round"] for f in (own, shared)]
    assert sent[1] - sent[0] == 4 * 44
    assert sent[0] == 4 * int(sum(p.numel() for p in own.client(0).parameters()))
    assert [p.name for p in (shared.path / "models").glob("client-*")] == []  # one model, written once


def test_nothing_travels_where_every_client_is_alone(digits: Federation) -> None:
    summary = run(digits, method="local").summary
    assert (summary["bytes_up_per_client_round"], summary["bytes_down_per_client_round"]) == (0, 0)


def test_bytes_are_counted_by_the_clients_that_train(digits: Federation) -> None:
    """f-FedAP asks all six clients for statistics once: that comes on top of what FedBN's three a round
    send, and thins nothing."""
    own, plain = (
        run(digits, method=m, score={"finetune": 0}).summary["bytes_up_per_client_round"]
        for m in ("fedap", "fedbn")
    )
    assert (
        own == plain + 6 * 4 * 44 / 6
    )  # 22 channels' means and variances from six clients; two rounds of three clients


def test_a_client_that_met_nobody_keeps_its_own_whatever_its_own_weight(digits: Federation) -> None:
    first = {"rounds": 1, "score": {"finetune": 0}}  # at the first mix nobody has met anybody
    zero, one = (
        run(digits, method=f"pfedsim(rho=0, own={own})", **first).summary["models_digest"] for own in (0, 1)
    )
    assert zero == one


def test_redrawn_batches_change_the_result(digits: Federation) -> None:
    assert run(digits, shuffle=True).summary["models_digest"] != run(digits).summary["models_digest"]


def test_the_partition_of_a_run_is_the_federations_and_can_be_run_on(
    digits: Federation, tmp_path: Path
) -> None:
    first = run(digits, tmp_path / "a")
    assert load(first.path / "partition.json", digits.data.digest, 1797).digest == digits.partition.digest
    shared = pfedsim.federate(partition=str(first.path / "partition.json"))
    assert run(shared).summary["models_digest"] == first.summary["models_digest"]


def test_a_federation_is_not_dealt_again_by_training(digits: Federation) -> None:
    with pytest.raises(Error, match=r"alpha"):
        run(digits, alpha=3.0)
    run(digits, alpha=0.5, rounds=1, local_steps=1, score={"finetune": 0})  # the same as it was dealt with


def test_accuracy_rises_on_real_images(digits: Federation) -> None:
    found = run(digits, method="fedavg", rounds=3, epochs=2, local_steps=0, buffers="shared", join=1.0)
    first, last = (
        found.metrics()[0]["train_loss"],
        [m for m in found.metrics() if "train_loss" in m][-1]["train_loss"],
    )
    assert last < first
    assert found.accuracy > 0.5


def test_a_run_that_diverges_ends_and_says_so(digits: Federation, tmp_path: Path) -> None:
    heard: list[Progress] = []
    with pytest.raises(
        Error,
        match=r"no client's reply could be used in any round: client \d, round 2: .*not finite.*; try a lower lr$",
    ):
        run(
            digits,
            tmp_path / "diverged",
            method="fedavg",
            lr=1e20,
            score={"finetune": 0},
            watch=heard.append,
        )
    assert "not finite" in heard[0].note
    events = lines(tmp_path / "diverged" / "events.jsonl")
    assert [(e["event"], e["round"]) for e in events] == [("rejected", 1)] * 3 + [("rejected", 2)] * 3
    assert "not finite" in events[0]["why"]
    with pytest.raises(Error, match="no client's reply could be used in any round"):
        run(digits, tmp_path / "alone", method="local", lr=1e20)  # nothing is sent: what is kept tells
    assert "is nan" in lines(tmp_path / "alone" / "events.jsonl")[0]["why"]


def test_a_watcher_hears_of_every_round_and_of_notices(digits: Federation) -> None:
    heard: list[Progress] = []
    words = {**SHORT, "method": "pfedsim", "join": 0.1, "score": {"every": 1, "finetune": 0}}
    found = execute(configs.check(words), federation=digits, watch=heard.append)
    assert [p.round for p in heard] == [0, 1, 2]
    assert "fewer than two clients" in heard[0].note
    assert heard[1].micro is not None
    assert heard[-1].micro == found.accuracy
    assert lines(found.path / "events.jsonl") == [{"event": "notice", "what": heard[0].note}]


def test_folders_that_cannot_be_written_or_read(digits: Federation, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(Error, match=name):
            run(digits, tmp_path / name)
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    with pytest.raises(Error, match="is not a run's folder"):
        Run(tmp_path / "full")
    (tmp_path / "full" / "config.toml").write_text("")
    with pytest.raises(Error, match="is not finished"):
        Run(tmp_path / "full")


def test_clients_given_by_the_data_with_a_table_and_a_users_network(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 120)
    np.savez(
        tmp_path / "wards.npz",
        x=draw.normal(size=(120, 6)),
        y=y,
        client=np.repeat(["a", "b", "c"], [60, 50, 10]),
    )
    wards = pfedsim.federate(str(tmp_path / "wards.npz"))
    assert wards.clients == 3
    assert wards.label_counts().sum(1).tolist() == [60, 50, 10]
    found = pfedsim.train(wards, "fedavg", model="small:Net", rounds=2, epochs=1)
    assert found.config.join == 1.0
    assert found.client(2).module(torch.zeros(4, 6)).shape == (4, 3)


def test_a_network_with_its_head_elsewhere(tmp_path: Path, digits: Federation) -> None:
    (tmp_path / "tail.py").write_text(
        "from torch import nn\n\nclass Tail(nn.Module):\n    def __init__(self, classes):\n        "
        "super().__init__()\n"
        "        self.flat, self.tail = nn.Flatten(), nn.Linear(1024, classes)\n\n"
        "    def forward(self, x):\n        return self.tail(self.flat(x))\n"
    )
    spec = f"{tmp_path / 'tail.py'}:Tail"
    assert run(digits, model=spec, head="tail").client(0).module.tail.weight.shape == (10, 1024)
    with pytest.raises(Error, match="not suitable for models without a classifier"):
        run(digits, model=spec)


def test_a_client_that_cannot_be_scored_at_the_end_gets_no_other_clients_model(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = ClientData.part

    def unreadable(samples: ClientData, client: int, name: str, validation: float = 0.0) -> object:
        if (client, name) == (2, "test"):
            raise OSError("a broken disk")
        return part(samples, client, name, validation)

    monkeypatch.setattr(ClientData, "part", unreadable)
    run = pfedsim.train(
        digits,
        "local",
        tmp_path / "run",
        rounds=1,
        join=1.0,
        local_steps=1,
        workers=1,
        score={"every": 0, "finetune": 0},
    )
    with pytest.raises(Error, match="client 2's model was unavailable"):
        run.client(2)
    run.client(1)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [(e["client"], e["why"]) for e in events if e["event"] == "unscored"] == [
        (2, "its test data cannot be read: OSError: a broken disk")
    ]


@dataclass(frozen=True)
class Forgets(Method):
    """Declares a field that no reply holds."""

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {**super().replies(fed, message), "counts": (3,)}


def test_only_training_that_diverges_is_advised_a_lower_rate(digits: Federation) -> None:
    with pytest.raises(Error, match=r"it holds \['model'\], expected \['counts', 'model'\]$"):
        pfedsim.train(digits, Forgets(), rounds=1, epochs=1, score={"finetune": 0})
