"""A loss written for autograd against an autograd loop of its own; a network that a method changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim.backends.base import AutogradNet
from pfedsim.core.client import run_client
from pfedsim.core.job import Batch, Job, Work
from pfedsim.core.layout import Layout
from pfedsim.core.method import Memory, Message, Method
from pfedsim.errors import Error, HookError
from pfedsim.methods import parse
from pfedsim.runs.config import check
from pfedsim.runs.execute import execute
from pfedsim.runs.setup import prepare


@dataclass(frozen=True)
class Plainly(Method):
    """FedAvg through autograd."""

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        return F.cross_entropy(net(batch.x), batch.y)


@dataclass(frozen=True)
class Pulled(Method):
    """Every verb in the middle of a loss: other models' features and scores, the norm of a parameter."""

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        z = net.features(batch.x)
        common = job.mine(job.message.model)
        far = job.features(2 * common, batch.x)
        soft = job.logits(common, batch.x).softmax(1)
        size = sum(p.square().sum() for p in net.module.parameters())
        return F.cross_entropy(net.head(z), soft) + 0.3 * F.mse_loss(z, far) + 0.01 * size


@dataclass(frozen=True)
class Wrong(Method):
    """Returns what is no loss."""

    what: str = "vector"

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Any:
        scores = net(batch.x)
        return {"vector": scores, "constant": torch.tensor(1.0), "number": 1.0}[self.what]


class TwoHeads(nn.Module):
    """A common head, and one that stays at home."""

    def __init__(self, common: nn.Linear):
        super().__init__()
        self.common, self.own = common, nn.Linear(common.in_features, common.out_features)

    def forward(self, z: Tensor) -> Tensor:
        scores: Tensor = self.common(z) + self.own(z)
        return scores


@dataclass(frozen=True)
class Doubled(Method):
    """A second head at every client."""

    def network(self, net: nn.Module, head: str) -> nn.Module:
        common = net.get_submodule(head)
        assert isinstance(common, nn.Linear)
        setattr(net, head, TwoHeads(common))
        return net

    def keeps(self, layout: Layout) -> Tensor:
        return layout.inside("classifier.own")

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        z = net.features(batch.x)
        head = net.module.classifier
        assert isinstance(head, TwoHeads)
        return F.cross_entropy(head.common(z), batch.y) + F.cross_entropy(net.head(z.detach()), batch.y)


@dataclass(frozen=True)
class Beheaded(Method):
    """A network that gives no class scores."""

    def network(self, net: nn.Module, head: str) -> nn.Module:
        return nn.Sequential(net, nn.Linear(3, 2))


def trained(method: Method, **settings: Any) -> tuple[Any, Tensor]:
    s = small.session(method, epochs=2, **settings)
    work = Work(0, 0, Message("train", s.fed.initial), "train")
    reply, _ = run_client(s.worker, work, Memory())
    assert reply.model is not None
    return s, reply.model


def test_cross_entropy_by_autograd_is_the_default_step() -> None:
    s, ours = trained(Plainly(), momentum=0.5, decay=0.1)
    _, plain = trained(Method(), momentum=0.5, decay=0.1)
    torch.testing.assert_close(ours, plain, equal_nan=True, rtol=1e-6, atol=1e-6)
    assert s.fed.net.grad_of is not None


def test_a_loss_trains_as_a_loop_of_its_own() -> None:
    s, ours = trained(Pulled())
    x, y = small.normal(s, 0)
    net, common, far = small.module(s).train(), small.module(s).eval(), small.module(s).eval()
    with torch.no_grad():
        for tensor in [*far.parameters(), far.bn.running_mean, far.bn.running_var]:  # type: ignore[union-attr]
            tensor.mul_(2)  # type: ignore[operator]

    def features(module: Any, x: Tensor) -> Tensor:
        return torch.relu(module.bn(module.hidden(x)))

    optimiser = torch.optim.SGD(net.parameters(), lr=s.fed.settings.lr)
    for _ in range(2):
        for part in torch.arange(len(y)).split(s.fed.settings.batch):
            z = features(net, x[part])
            soft, other = common(x[part]).softmax(1).detach(), features(far, x[part]).detach()
            loss = F.cross_entropy(net.classifier(z), soft) + 0.3 * F.mse_loss(z, other)  # type: ignore[operator]
            loss = loss + 0.01 * sum(p.square().sum() for p in net.parameters())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    travels = ~s.worker.wire.kept
    torch.testing.assert_close(ours[travels], small.flat(s, net)[travels], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["vector", "constant", "number"])
def test_what_is_no_loss_is_refused_by_name(what: str) -> None:
    with pytest.raises(
        HookError, match=r"Wrong.loss failed for client 0 in round 1.*the loss is .*expected one number"
    ):
        trained(Wrong(what))


def test_the_native_backend_is_refused_in_a_sentence() -> None:
    words = {"method": "fedavg", "backend": "native", "model": "small:Net", "rounds": 1}
    with pytest.raises(
        Error, match=r"^backend = native: Plainly has a loss written for autograd, which needs"
    ):
        prepare(check(words), small.table(), Plainly())
    auto = prepare(check({**words, "backend": "auto"}), small.table(), Plainly())
    assert auto.config.backend == "torch"
    assert "written for autograd" in auto.notice


def test_parameters_that_a_method_adds_are_entries_like_others() -> None:
    s = small.session(Doubled(), join=1.0)
    assert "classifier.own.weight" in s.fed.layout.names
    base = small.session()
    common = [n for n in s.fed.layout.names if not n.startswith("classifier.")]
    for name in common:  # the network is drawn before what the method adds
        assert s.fed.layout.view(s.fed.initial, name).equal(base.fed.layout.view(base.fed.initial, name))
    *_, done = small.rounds(s)
    own = s.fed.layout.inside("classifier.own")
    assert done.server.model[own].isnan().all()
    kept = [memory.kept for memory in s.side.snapshot(done.server).memories.values()]
    assert len({k.sum().item() for k in kept if k is not None}) == 4
    models = [c.model for c in small.score(s, done.server, models=True).clients]
    assert all(m is not None and m.isfinite().all() for m in models)


def test_a_run_with_a_changed_network_gives_its_models_back(tmp_path: Path) -> None:
    words = {"method": "test_loss:Doubled", "model": "small:Net", "rounds": 1, "join": 1.0, "workers": 1}
    run = execute(check({**words, "epochs": 1, "batch": 8}), tmp_path / "run", federation := small.table())
    x, y = (a[federation.partition.clients[1].test] for a in (federation.data.x, federation.data.y))
    hits = (run.client(1).scores(x).argmax(1).numpy() == y).mean()
    (row,) = [
        r
        for r in run.clients()
        if (r["client"], r["model"], r["split"], r["metric"]) == ("1", "served", "test", "accuracy")
    ]
    assert hits == pytest.approx(float(row["value"]))


def test_a_network_that_is_no_classifier_is_refused() -> None:
    with pytest.raises(
        HookError, match=r"Beheaded.network failed.*returns \(2, 2\) for two samples, expected"
    ):
        prepare(check({"method": "fedavg", "model": "small:Net"}), small.table(), Beheaded())


def test_a_warm_up_keeps_its_loss_and_its_network_is_refused() -> None:
    moon = parse("pfedsim(warmup=test_loss:Plainly)")
    assert moon.autograd()
    assert not parse("pfedsim").autograd()
    s = small.session(moon, rounds=2)
    assert [r.server.round for r in small.rounds(s)] == [1, 2]
    with pytest.raises(Error, match="Doubled cannot be the warm-up, because it changes the network"):
        small.session(parse("pfedsim(warmup=test_loss:Doubled)")).begin()


def test_phases_decide_what_a_loss_moves() -> None:
    @dataclass(frozen=True)
    class HeadOnly(Plainly):
        def phases(self, job: Job) -> Sequence[Any]:  # type: ignore[override]
            from pfedsim.core.method import Phase

            return [Phase(job.fed.layout.head, 1, 0.1)]

    s, model = trained(HeadOnly())
    changed = model != s.fed.initial
    body = s.fed.layout.body & ~s.worker.wire.kept
    assert not changed[body].any()
    assert changed[s.fed.layout.head].all()
