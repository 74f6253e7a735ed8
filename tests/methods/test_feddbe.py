from dataclasses import replace

import plain
import pytest
import small
import torch
from torch.nn import functional as F

from pfedsim.engines.dropouts import Dropouts, Dropping
from pfedsim.methods.feddbe import FedDBE

SIZES = [20.0, 9.0, 33.0]
KAPPA = 3.0


def split(s, theta):
    """A module that knows nothing of the vector p, and p."""
    tensors = {k: v.clone() for k, v in s.fed.layout.named(theta).items()}
    p = tensors.pop("classifier.own")
    module = small.Net((small.FEATURES,), small.CLASSES)
    module.load_state_dict(tensors, strict=False)
    return module, p


def features(module, x):
    return torch.relu(module.bn(module.hidden(x)))


def trained(s, client, theta, p, mean):
    """Two epochs down cross-entropy of head(z + p) + kappa MSE(mean of z, common mean), with autograd."""
    theta = theta.clone()
    for x, y in plain.batches(s, client) * 2:
        module, _ = split(s, theta)
        z, at = features(module.train(), x), p.clone().requires_grad_()
        loss = F.cross_entropy(module.classifier(z + at), y)
        if mean is not None:
            loss = loss + KAPPA * F.mse_loss(z.mean(0), mean)
        loss.backward()
        state = {**module.state_dict(), "classifier.own": p}
        theta = s.fed.layout.flat({name: state[name] for name in s.fed.layout.names})
        for name, parameter in module.named_parameters():
            s.fed.layout.view(theta, name).sub_(0.1 * parameter.grad)
        p = p if mean is None else p - 0.1 * at.grad
    return theta, p


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_two_rounds_follow_algorithm_1(backend):
    """Means before the first round; then p and the common model, and what is served."""
    s = plain.session(FedDBE(kappa=KAPPA), rounds=2, backend=backend)
    theta, none = s.fed.initial, torch.zeros(8)
    means = []
    for i in range(3):
        module, _ = split(s, trained(s, i, theta, none, None)[0])
        means.append(features(module.eval(), small.normal(s, i)[0]).mean(0))
    mean, own = plain.mean(means, SIZES).detach(), [none] * 3
    kept = s.method.keeps(s.fed.layout)
    for round in small.rounds(s):
        plain.close(round.server.extra["mean"], mean, 1e-4)
        pairs = [trained(s, i, theta, own[i], mean) for i in range(3)]
        own, theta = [p[1] for p in pairs], plain.mean([p[0] for p in pairs], SIZES)
        assert round.server.model[kept].isnan().all()
        plain.close(round.server.model[~kept], theta[~kept], 2e-4)
        x = small.normal(s, 0, "test")[0]
        for i, found in enumerate(plain.served(s, round.state)):
            common = split(s, theta)[0].eval()
            expected = common.classifier(features(common, x) + own[i])
            plain.close(split(s, found)[0].eval()(x), expected, 1e-3)
            plain.close(round.state.memories[i].kept, own[i], 2e-4)
    assert all(p.abs().max() > 1e-3 for p in own)


def test_the_wave_of_means_leaves_nothing_but_the_mean():
    """Every client is asked, also those outside the first round, and none has taken part thereby."""
    s = plain.session(FedDBE(), rounds=1, join=0.34)
    (round,) = small.rounds(s)
    assert [i for i, m in round.state.memories.items() if m.kept is not None] == sorted(round.asked)
    assert len(round.asked) == 1


def test_without_the_regulariser_and_the_vector_it_is_fedavg():
    class Still(FedDBE):
        def phases(self, job):
            return [replace(p, train=p.train & ~self.keeps(job.fed.layout)) for p in super().phases(job)]

    s, fedavg = plain.session(Still(kappa=0), rounds=2), plain.session(None, rounds=2)
    (*_, a), (*_, b) = small.rounds(s), small.rounds(fedavg)
    kept = s.method.keeps(s.fed.layout)
    plain.close(a.server.model[~kept], b.server.model, 1e-6)


def test_if_nobody_answers_before_the_first_round_nothing_is_regularised():
    s = plain.session(FedDBE(kappa=1e6), rounds=1)
    silent = s.method.aggregate(s.fed, s.side.begin(), "mean", [], torch.Generator())
    assert not len(silent.extra["mean"])
    (round,) = small.rounds(s, silent)
    assert round.server.model[~s.method.keeps(s.fed.layout)].isfinite().all()
    s = plain.session(FedDBE(kappa=1.0), rounds=2)
    engine = Dropping(s.engine, Dropouts(never_clients=(2,)), s.fed.settings.seed)
    *_, last = small.rounds(s, engine=engine)
    assert last.server.extra["mean"].isfinite().all()
