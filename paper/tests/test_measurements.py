"""What the measurement study measures, against a few lines of its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small
import torch
from pfedsim_paper import cka, datasets, likeness, overhead, privacy, workflow
from pfedsim_paper.control import FedDynAsRun, PerFedAvgAsRun, WarmFedPer
from pfedsim_paper.protocol import Choice, words

from pfedsim.backends.torch import normalised
from pfedsim.core.layout import layout_of
from pfedsim.core.method import Memory, StartingPoint
from pfedsim.core.rows import Rows
from pfedsim.dev.conformance import check, final_models, session, small_federation, states
from pfedsim.errors import Error
from pfedsim.methods.fedap import Adaptation
from pfedsim.methods.fedavg import FedAvg
from pfedsim.methods.fedper import FedPer
from pfedsim.models import build
from pfedsim.runs.config import check as checked
from pfedsim.runs.setup import federate

RNG = np.random.default_rng(3)


def test_data_similarity_is_equation_one() -> None:
    labels = [[0, 0, 1, 2], [1, 1, 3], [2, 2]]
    counts = np.stack([np.bincount(y, minlength=4) for y in labels])
    found = likeness.of_data(counts)
    for i, j in itertools.product(range(3), repeat=2):
        both = set(labels[i]) & set(labels[j])
        together = labels[i] + labels[j]
        assert found[i, j] == pytest.approx(sum(y in both for y in together) / len(together))


def test_the_papers_four_subsets_have_these_similarities() -> None:
    """6,000 of each class, divided evenly among its owners: sizes 12, 12, 12 and 24 thousand."""
    owners = [sum(c in labels for labels in likeness.SUBSETS.values()) for c in range(10)]
    counts = np.array(
        [
            [6000 / owners[c] if c in labels else 0 for c in range(10)]
            for labels in likeness.SUBSETS.values()
        ]
    )
    assert counts.sum(1).tolist() == [12000, 12000, 12000, 24000]
    found = likeness.of_data(counts)
    assert [found[0, 1], found[0, 2], found[2, 3], found[0, 3]] == pytest.approx([1, 0.5, 1 / 3, 0])


def test_the_subsets_divide_the_data_without_a_rest() -> None:
    federation = likeness.four_subsets(checked({"data": "digits"}))
    parts = [np.concatenate([s.train, s.test]) for s in federation.partition.clients]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(federation.data.y)))
    for part, labels in zip(parts, likeness.SUBSETS.values(), strict=True):
        assert set(federation.data.y[part].tolist()) == set(labels)


def test_measures_of_two_models() -> None:
    rows = RNG.normal(size=(3, 4, 5))
    cosine = likeness.of_heads(rows)
    a, b = torch.from_numpy(rows[0]), torch.from_numpy(rows[2])
    assert cosine[0, 2] == pytest.approx(torch.nn.functional.cosine_similarity(a, b, dim=1).numpy())
    moved = RNG.normal(size=(3, 7))
    assert likeness.of_updates(moved)[0, 1] == pytest.approx(
        moved[0] @ moved[1] / np.linalg.norm(moved[0]) / np.linalg.norm(moved[1])
    )
    losses, thetas = RNG.random((3, 3)), RNG.normal(size=(3, 7))
    expected = (losses[1, 1] - losses[1, 2]) / (np.linalg.norm(thetas[1] - thetas[2]) + 1e-5)
    assert likeness.of_losses(losses, thetas)[1, 2] == pytest.approx(expected)
    assert np.diag(likeness.of_losses(losses, thetas)) == pytest.approx([0, 0, 0])


def test_wdb_weighs_as_fedap_does() -> None:
    """f-FedAP's mix is by 1 / W: its own row has the same proportions."""
    layout = layout_of(build("lenet5", (1, 16, 16), 4))
    channels = [n for _, n in layout.norms]
    layers = [RNG.random((4, 2 * n)) for n in channels]
    near = likeness.of_statistics(layers)
    whole = torch.from_numpy(np.concatenate(layers, axis=1))
    statistics = Rows(torch.zeros(whole.shape[1], dtype=torch.float64), dict(enumerate(whole)))
    row = Adaptation(mu=0.5).row(layout, statistics, 1)
    others = [j for j in range(4) if j != 1]
    assert [row[j] for j in others] == pytest.approx(list(0.5 * near[1, others] / near[1, others].sum()))


def test_cka_is_kornblith_and_does_not_see_rotation_or_scale() -> None:
    x, y = RNG.normal(size=(30, 6)), RNG.normal(size=(30, 4))
    found = cka.cka(cka.centred_gram(x), cka.centred_gram(y))
    a, b = x - x.mean(0), y - y.mean(0)
    assert found == pytest.approx(
        np.linalg.norm(a.T @ b) ** 2 / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b)
    )
    turn, _ = np.linalg.qr(RNG.normal(size=(6, 6)))
    assert cka.cka(cka.centred_gram(x), cka.centred_gram(3 * x @ turn + 1)) == pytest.approx(1)


def test_layers_outputs_are_the_networks() -> None:
    module = build("lenet5", (1, 16, 16), 4)
    layout = layout_of(module)
    x = torch.randn(7, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    theta = torch.randn(layout.size, generator=torch.Generator().manual_seed(1)).abs() * 0.1
    found = cka.outputs(module, layout.named(theta), x)
    assert list(found) == ["conv1", "conv2", "fc1", "fc2", "classifier"]
    module.load_state_dict(layout.named(theta), strict=False)
    with torch.no_grad():
        assert found["classifier"] == pytest.approx(module.eval()(x).double().numpy(), abs=1e-5)
        assert found["conv1"] == pytest.approx(module.conv1(x).flatten(1).double().numpy(), abs=1e-5)


def test_labels_are_read_where_they_are_written_and_nowhere_else() -> None:
    counts = (
        RNG.integers(0, 3, size=(40, 5)) * RNG.integers(0, 20, size=(40, 5))
        + np.eye(5, dtype=int)[np.arange(40) % 5]
    )
    shares = counts / counts.sum(1, keepdims=True)
    open_ = privacy.told(np.stack([shares, RNG.normal(size=shares.shape)], axis=2), counts)
    blind = privacy.told(RNG.normal(size=(40, 3)), counts)
    assert open_["auroc"] is not None
    assert open_["auroc"] > 0.99
    assert open_["distance"] < 0.05 < open_["guess"]
    assert blind["auroc"] is not None
    assert blind["distance"] > 0.7 * blind["guess"]
    assert 0.35 < blind["auroc"] < 0.65


def privately(method: str) -> dict[str, Any]:
    settings = words(
        "digits", method, 0.1, 42, {"rounds": 4, "epochs": 1, "score": {"every": 0, "finetune": 0}}
    )
    return privacy.measure(checked(settings), {})[0]


def test_any_classifier_that_is_sent_is_read() -> None:
    found = privately("fedavg")
    assert list(found) == ["clients", "classes", "classifier, read off", "classifier, fitted"]
    assert found["classifier, read off"]["auroc"] > 0.8  # biases of classes that a client has go up
    assert "statistics, fitted" in privately("fedap")
    said = privately("fedgen")["label counts, as sent"]
    assert (said["auroc"], said["distance"]) == (1.0, 0.0)  # nothing is left to tell
    assert said["guess"] > 0.5
    with pytest.raises(Error, match="clients of fedper send no classifier"):
        privately("fedper")


def test_the_clock_counts_every_clients_work_once() -> None:
    run = session(FedAvg(), rounds=2)
    clock = overhead.Clock()
    rounds = list(small.rounds(run.observed(clock)))
    assert [c for c, _, _ in clock.taken] == [r.client for round in rounds for r in round.replies]
    assert all(wall > 0 for _, wall, _ in clock.taken)
    assert overhead.stored(rounds[-1].server) >= 4 * int((~run.side.wire.kept).sum())


@pytest.mark.slow
def test_overhead_and_workflow_measure_a_real_run() -> None:
    words = {
        "data": "digits",
        "clients": 6,
        "minimum": 40,
        "alpha": 0.5,
        "rounds": 4,
        "epochs": 1,
        "join": 0.5,
        "workers": 1,
    }
    found, _ = overhead.measure(checked(words), {"methods": "fedavg,fedap,fedfomo,pfedsim"})
    by = found["methods"]
    assert by["pfedsim"]["bytes_down"] == by["fedavg"]["bytes_down"] == found["model_bytes"]
    assert by["fedfomo"]["bytes_down"] > by["fedavg"]["bytes_down"]
    assert (
        by["fedap"]["bytes_down"] > by["fedavg"]["bytes_down"]
    )  # a pass for statistics over all clients on top
    assert by["pfedsim"]["server_bytes"] > 3 * by["fedavg"]["server_bytes"]
    assert all(len(f["xi"]) == overhead.REPETITIONS and min(f["xi"]) > 0 for f in by.values())
    shown, _ = workflow.measure(checked({**words, "method": "pfedsim"}), {})
    assert shown["generalization"]["round"] == 2
    assert shown["personalization"]["round"] == 4
    for phase in ("generalization", "personalization"):
        for row in shown[phase]["mix"]:
            assert sum(w for _, w in row) == pytest.approx(1, abs=0.02)
        assert shown[phase]["down"] == found["model_bytes"]


def test_the_papers_data_table_is_met() -> None:
    assert [int(datasets.sizes("cifar10", a).std()) for a in (0.1, 0.5)] == [487, 170]
    assert [int(datasets.sizes("tiny-imagenet", a).std()) for a in (0.1, 0.5)] == [118, 38]
    assert sum(datasets.EMNIST) == 814_255
    assert len(datasets.EMNIST) == 62


def test_the_control_is_a_method_and_warms_up_as_fedavg() -> None:
    assert [
        r for method in (WarmFedPer(), FedDynAsRun(), PerFedAvgAsRun()) for r in check(method) if r.why
    ] == []
    federation = small_federation()

    def ends(method) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
        run = session(method, federation)
        return final_models(run, states(run)[-1])

    assert all(a.equal(b) for a, b in zip(ends(WarmFedPer(rho=1.0)), ends(FedAvg()), strict=True))
    assert all(a.equal(b) for a, b in zip(ends(WarmFedPer(rho=0.0)), ends(FedPer()), strict=True))


@pytest.mark.parametrize("far", [0.5, 20.0])
def test_the_authors_feddyn_pulls_with_a_constant_length(far: float) -> None:
    """By autograd: alpha/2 |theta - start| over what is trained, beside the loss; a memory changes nothing."""
    fed = session(FedDynAsRun()).fed
    drawn = torch.Generator().manual_seed(5)
    loss, away = torch.randn(2, fed.layout.size, generator=drawn)
    theta = (fed.initial + far * away).requires_grad_()
    trained = (theta - fed.initial)[fed.layout.trainable]
    (0.3 / 2 * trained.norm()).backward()
    job = SimpleNamespace(
        fed=fed,
        start=StartingPoint(fed.initial),
        memory=Memory(None, {"memory": away}),
        grad=lambda at, batch: loss,
    )
    found = FedDynAsRun(alpha=0.3).gradient(job, theta.detach(), [None])  # type: ignore[arg-type,list-item]
    assert theta.grad is not None
    torch.testing.assert_close(found, loss + theta.grad, rtol=1e-5, atol=1e-6)
    assert float((found - loss).norm()) == pytest.approx(0.15, rel=1e-3)


def test_the_authors_per_fedavg_leaves_the_statistics_as_they_were() -> None:
    run = session(PerFedAvgAsRun())
    last = states(run)[-1]
    statistics = run.fed.initial[run.fed.layout.buffers]
    assert last.memories
    assert all(client.kept.equal(statistics) for client in last.memories.values())
    assert not last.server.model.equal(run.fed.initial)


def test_the_authors_pixels_are_bytes_less_the_constants_for_shares() -> None:
    from pfedsim_paper.measure import varied

    federation = federate(checked({"data": "digits", "clients": 4, "minimum": 40}))
    data = federation.data
    theirs = varied(federation, {"pixels": "0..255"}).data
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (theirs.mean, theirs.std))
    expected = (data.x[:5].astype(np.float64) - data.mean[0]) / data.std[0]
    assert normalised(torch.from_numpy(data.x[:5]), mean, std).numpy() == pytest.approx(expected, rel=1e-5)
    assert theirs.digest != data.digest
    assert varied(federation, {}) is federation


def test_lengths_are_three_readings_of_twenty_iterations() -> None:
    plans = {dict(c.extra)["trained"]: c.settings() for c in cka.plan(Choice())}
    assert {k: (s["rounds"], s["epochs"], s["local_steps"], s["join"]) for k, s in plans.items()} == {
        "rounds": (20, 5, 0, 1.0),
        "epochs": (20, 1, 0, 1.0),
        "steps": (1, 1, 20, 1.0),
    }
    assert {s["clients"] for s in plans.values()} == {10}


def test_unused_paths_are_not_created(tmp_path: Path) -> None:
    from pfedsim.experiments import Store

    assert Store(tmp_path / "none").records(cka.plan(Choice())) == []
    assert not (tmp_path / "none").exists()
