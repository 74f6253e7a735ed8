import plain
import small
import torch
from torch.nn import functional as F

from pfedsim.methods.fedcp import FedCP, discrepancy

SIZES = [20.0, 9.0, 33.0]
LAM = 0.7


def scores(t, z, context):
    """r and s = 1 - r are a softmax of two; one linear layer, layer norm and ReLU give what it is of."""
    a = F.linear(z * context, t["classifier.policy.0.weight"], t["classifier.policy.0.bias"])
    a = F.layer_norm(a, (16,), t["classifier.policy.1.weight"], t["classifier.policy.1.bias"]).relu()
    r = a[:, :8].exp() / (a[:, :8].exp() + a[:, 8:].exp())
    own = F.linear(r * z, t["classifier.own.weight"], t["classifier.own.bias"])
    return own + F.linear((1 - r) * z, t["classifier.common.weight"], t["classifier.common.bias"])


def features(t, x, train):
    h = F.linear(x, t["hidden.weight"], t["hidden.bias"])
    mean, var = t["bn.running_mean"], t["bn.running_var"]
    return F.batch_norm(h, mean, var, t["bn.weight"], t["bn.bias"], training=train).relu()


def kernels(a, b):
    """The mean over all pairs of four Gaussian kernels, pair by pair."""
    pairs = [
        sum(torch.exp(-((p - q) ** 2).sum() / (2 * w)) for w in (10, 15, 20, 50)) for p in a for q in b
    ]
    return torch.stack(pairs).mean()


def context_of(own):
    v = own.sum(0)
    return v / v.norm()


def trained(s, client, theta):
    """Two epochs of everything but the common head, which is frozen like the context."""
    layout = s.fed.layout
    start = {k: v.clone() for k, v in layout.named(theta).items()}
    t, context = {k: v.clone() for k, v in start.items()}, context_of(start["classifier.own.weight"])
    moving = [k for k in t if "running" not in k and "common" not in k and "context" not in k]
    for x, y in plain.batches(s, client) * 2:
        for k in moving:
            t[k].requires_grad_()
        z, fixed = features(t, x, True), features(start, x, False)
        apart = kernels(z, z) + kernels(fixed, fixed) - 2 * kernels(z, fixed)
        loss = F.cross_entropy(scores(t, z, context), y) + LAM * apart
        slopes = torch.autograd.grad(loss, [t[k] for k in moving])
        for k, g in zip(moving, slopes, strict=True):
            t[k] = t[k].detach() - 0.1 * g
    return {k: v.detach() for k, v in t.items()}


def test_two_rounds_are_the_written_ones():
    s = plain.session(FedCP(lam=LAM), rounds=2)
    layout, kept = s.fed.layout, s.method.keeps(s.fed.layout)
    named = layout.named(s.fed.initial)
    assert named["classifier.own.weight"].equal(named["classifier.common.weight"])
    theta, own = s.fed.initial, [s.fed.initial] * 3
    for round in small.rounds(s):
        starts = [torch.where(kept, own[i], theta) for i in range(3)]
        ends = [trained(s, i, starts[i]) for i in range(3)]
        own = [layout.flat(t) for t in ends]
        sent = []
        for i, t in enumerate(ends):
            mine = {
                f"classifier.common.{k}": (t[f"classifier.own.{k}"] + t[f"classifier.common.{k}"]) / 2
                for k in ("weight", "bias")
            }
            sent.append(layout.flat({**t, **mine}))
            plain.close(round.replies[i].model[~kept], sent[i][~kept], 1e-3)
            assert round.replies[i].model[kept].isnan().all()
        theta = plain.mean(sent, SIZES)
        plain.close(round.server.model[~kept], theta[~kept], 1e-3)
        x = small.normal(s, 0, "test")[0]
        for i, found in enumerate(plain.served(s, round.state)):
            t = layout.named(torch.where(kept, own[i], theta))
            expected = scores(t, features(t, x, False), context_of(t["classifier.own.weight"]))
            plain.close(s.fed.net.logits(found, x), expected, 2e-3)


def test_the_discrepancy_is_zero_for_equal_batches_and_positive_for_others():
    a = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    assert abs(float(discrepancy(a, a))) < 1e-6
    assert float(discrepancy(a, a + 4)) > 1


def test_the_context_of_a_deep_head_is_that_of_the_product_of_its_weights():
    s = plain.session(FedCP(), model="deep:Deep")
    job = small.job(s)
    t = s.fed.layout.named(s.method.begin(job).theta)
    product = t["classifier.own.2.weight"] @ t["classifier.own.0.weight"]
    plain.close(t["classifier.context.v"], context_of(product), 1e-6)
    (*_, last) = small.rounds(s)
    assert all(model.isfinite().all() for model in plain.served(s, last.state))
