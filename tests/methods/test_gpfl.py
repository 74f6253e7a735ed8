import plain
import small
import torch
from torch.nn import functional as F

from pfedsim.methods.gpfl import GPFL

SIZES = [20.0, 9.0, 33.0]
LAM, MU = 0.4, 0.3
EMBEDDINGS = "classifier.embeddings.weight"


def block(t, name, c):
    """Linear, ReLU, layer norm."""
    out = F.linear(c, t[f"classifier.{name}.0.weight"], t[f"classifier.{name}.0.bias"]).relu()
    return F.layer_norm(out, (8,), t[f"classifier.{name}.2.weight"], t[f"classifier.{name}.2.bias"])


def valve(t, z, c):
    return ((block(t, "gamma", c) + 1) * z + block(t, "beta", c)).relu()


def own_head(t, z):
    return F.linear(z, t["classifier.own.weight"], t["classifier.own.bias"])


def features(t, x, train):
    h = F.linear(x, t["hidden.weight"], t["hidden.bias"])
    mean, var = t["bn.running_mean"], t["bn.running_var"]
    return F.batch_norm(h, mean, var, t["bn.weight"], t["bn.bias"], training=train).relu()


def condition(s, client, embeddings):
    y = small.normal(s, client)[1]
    return torch.stack([embeddings[int(c)] for c in y]).mean(0)


def trained(s, client, theta):
    t = {k: v.clone() for k, v in s.fed.layout.named(theta).items()}
    frozen = t[EMBEDDINGS].clone()
    personal, generic = condition(s, client, frozen), frozen.mean(0)
    moving = [k for k in t if "running" not in k and "condition" not in k]
    shared = [k for k in moving if any(part in k for part in ("gamma", "beta", "embeddings"))]
    assert len(shared) == 9
    for x, y in plain.batches(s, client) * 2:
        for k in moving:
            t[k].requires_grad_()
        z = features(t, x, True)
        loss = F.cross_entropy(own_head(t, valve(t, z, personal)), y)
        guided = valve(t, z, generic)
        cosines = torch.stack([F.cosine_similarity(guided, e[None]) for e in t[EMBEDDINGS]], dim=1)
        loss = loss - (cosines.gather(1, y[:, None])[:, 0] - cosines.exp().sum(1).log()).mean()
        loss = (
            loss
            + LAM
            * torch.stack([(g - frozen[int(c)]).norm() for g, c in zip(guided, y, strict=True)]).mean()
        )
        slopes = torch.autograd.grad(loss, [t[k] for k in moving])
        for k, g in zip(moving, slopes, strict=True):
            decay = MU * t[k].detach() if k in shared else 0
            t[k] = t[k].detach() - 0.1 * (g + decay)
    return s.fed.layout.flat({k: v.detach() for k, v in t.items()})


def test_two_rounds_are_the_written_ones():
    s = plain.session(GPFL(lam=LAM, mu=MU), rounds=2)
    kept = s.method.keeps(s.fed.layout)
    theta, own = s.fed.initial, [s.fed.initial] * 3
    for round in small.rounds(s):
        own = [trained(s, i, torch.where(kept, own[i], theta)) for i in range(3)]
        theta = plain.mean(own, SIZES)
        assert round.server.model[kept].isnan().all()
        plain.close(round.server.model[~kept], theta[~kept], 1e-3)
        x = small.normal(s, 0, "test")[0]
        for i, found in enumerate(plain.served(s, round.state)):
            t = s.fed.layout.named(torch.where(kept, own[i], theta))
            expected = own_head(t, valve(t, features(t, x, False), condition(s, i, t[EMBEDDINGS])))
            plain.close(s.fed.net.logits(found, x), expected, 2e-3)


def test_what_tells_the_labels_stays_at_the_client():
    """The personal condition is the shares of the labels times the embeddings: who has both knows the shares."""
    s = plain.session(GPFL(), rounds=1)
    (round,) = small.rounds(s)
    where = s.fed.layout.inside("classifier.condition")
    assert all(reply.model[where].isnan().all() for reply in round.replies)
    conditions = [served[where] for served in plain.served(s, round.state)]
    assert not conditions[0].allclose(conditions[1])
