import plain
import pytest
import small
import torch
from torch.nn import functional as F

from pfedsim.errors import Error
from pfedsim.methods import parse
from pfedsim.methods.fedrod import FedRoD

SIZES = [20.0, 9.0, 33.0]


def trained(s, client, theta, own, gamma):
    """Two epochs: generic model down -log n_y^gamma e^g_y / sum_c n_c^gamma e^g_c; own weight and bias down the
    cross-entropy of generic (detached) plus personal scores, at the same features."""
    layout = s.fed.layout
    counts = torch.bincount(small.normal(s, client)[1], minlength=3).float()
    w, b = (t.clone().requires_grad_() for t in own)
    for x, y in plain.batches(s, client) * 2:
        module = small.module(s, theta).train()
        z = torch.relu(module.bn(module.hidden(x)))
        g = module.classifier(z)
        weighted = counts**gamma * g.exp()
        balanced = -(weighted.gather(1, y[:, None])[:, 0] / weighted.sum(1)).log().mean()
        balanced.backward()
        loss = F.cross_entropy(g.detach() + z.detach() @ w.T + b, y)
        by_w, by_b = torch.autograd.grad(loss, (w, b))
        theta = small.flat(s, module)
        for name, parameter in module.named_parameters():
            layout.view(theta, name).sub_(0.1 * parameter.grad)
        w, b = ((t - 0.1 * g).detach().requires_grad_() for t, g in ((w, by_w), (b, by_b)))
    return theta, (w.detach(), b.detach())


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_three_rounds_follow_both_risks(backend, gamma):
    s = plain.session(FedRoD(gamma=gamma), rounds=3, backend=backend)
    theta, own = s.fed.initial, [(torch.zeros(3, 8), torch.zeros(3))] * 3
    for round in small.rounds(s):
        pairs = [trained(s, i, theta, own[i], gamma) for i in range(3)]
        own, theta = [p[1] for p in pairs], plain.mean([p[0] for p in pairs], SIZES)
        plain.close(round.server.model, theta, 2e-4)
        x = small.normal(s, 0, "test")[0]
        for i, found in enumerate(plain.served(s, round.state)):
            generic = small.module(s, theta).eval()
            z = torch.relu(generic.bn(generic.hidden(x)))
            both = generic(x) + z @ own[i][0].T + own[i][1]
            plain.close(small.module(s, found).eval()(x), both, 1e-3)


def test_a_client_without_a_class_does_not_move_its_row():
    """Its prior is zero: the balanced softmax gives it no probability."""
    s = plain.session(FedRoD())
    counts = [torch.bincount(small.normal(s, i)[1], minlength=3) for i in range(3)]
    one = small.job(s, 1)
    keep = one.part("train").y != 0
    one._parts["train"] = type(one.part("train"))(*(t[keep] for t in one.part("train")))
    assert counts[1][0]
    one.start = s.method.begin(one)
    one.phase = s.method.phases(one)[0]
    one._statistics = one.phase.start[..., s.fed.layout.statistics]
    step = s.method.gradient(one, one.phase.start, [one.part("train")])
    assert step.isfinite().all()
    assert s.fed.layout.rows(step[0])[0].abs().max() < 1e-20
    assert s.fed.layout.rows(step[0])[1].abs().max() > 1e-3
    assert s.fed.layout.rows(step[1])[0].any()  # the personal classifier learns that the class is rare
    assert not step[1][~s.fed.layout.head].any()


def test_a_client_that_never_took_part_is_served_the_generic_model():
    s = plain.session(FedRoD(), rounds=1, join=0.34)
    (round,) = small.rounds(s)
    for i in range(3):
        served = plain.served(s, round.state)[i]
        assert served.equal(round.server.model) == (i not in round.state.memories)


def test_the_personal_classifier_never_leaves_the_client():
    *_, last = small.rounds(plain.session(FedRoD(), rounds=2))
    for reply in last.replies:
        assert not reply.extra
        assert not reply.models
        assert reply.model.ndim == 1


@pytest.mark.parametrize("method", ["fedrod", "feddbe"])
def test_a_classifier_of_several_layers_is_refused_in_a_sentence(method):
    s = plain.session(parse(method), model="deep:Deep")
    with pytest.raises(
        Error, match=r"^Fed\w+ needs a classifier that is one linear layer; .*'classifier.0.weight'"
    ):
        list(small.rounds(s))
    s = plain.session(parse(method), model="deep:NoBias")
    with pytest.raises(
        Error, match=r"^Fed\w+ needs a classifier with a bias; 'classifier.weight' has none"
    ):
        list(small.rounds(s))
