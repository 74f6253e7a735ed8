import numpy as np
import plain
import small
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

from pfedsim.core.method import Message, Reply
from pfedsim.methods.fedpac import FedPAC

SIZES = (20, 9, 33)


def features(s, theta, client):
    """The network's features in eval mode, and the labels."""
    module = small.module(s, theta).eval()
    seen = []
    module.classifier.register_forward_hook(lambda m, given, out: seen.append(given[0].detach()))
    x, y = small.normal(s, client)
    module(x)
    return seen[0].double().numpy(), y.numpy()


def statistics(z, y):
    """Eq. 9 sample by sample: h_c = p_c mu_c; v = (sum_c p_c tr E[z z'] - sum_c |p_c mu_c|^2) / n."""
    h, v = np.zeros((3, z.shape[1])), 0.0
    for c in range(3):
        if (y == c).any():
            p, mu = (y == c).mean(), z[y == c].mean(0)
            h[c] = p * mu
            v += p * np.trace(z[y == c].T @ z[y == c] / (y == c).sum()) - p**2 * mu @ mu
    return h, v / len(y)


def weights(i, hs, vs):
    """Eq. 10: least sum_j a_j^2 v_j + sum_c |h_ic - sum_j a_j h_jc|^2 on the simplex, by SLSQP."""
    n = len(hs)

    def cost(a):
        return sum(a**2 * vs) + ((hs[i] - np.tensordot(a, hs, 1)) ** 2).sum()

    return minimize(
        cost,
        np.full(n, 1 / n),
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        options={"maxiter": 500, "ftol": 1e-15},
    ).x


def test_two_rounds_are_the_written_ones():
    s = plain.session(FedPAC(lam=3.0, head_lr=0.2), rounds=2)
    layout = s.fed.layout
    starts, centroids = [s.fed.initial] * 3, None
    for round in small.rounds(s):
        measured = [statistics(*features(s, starts[i], i)) for i in range(3)]
        hs, vs = np.stack([h for h, _ in measured]), np.array([v for _, v in measured])
        models = []
        for i in range(3):
            theta = plain.sgd(s, i, starts[i], epochs=1, lr=0.2, moves=layout.head)
            models.append(aligned(s, i, theta, centroids, 3.0))
        for reply, model in zip(round.replies, models, strict=True):
            plain.close(reply.model, model, 1e-3)
        parts = [features(s, m, i) for i, m in enumerate(models)]
        z, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        centroids = torch.tensor(np.stack([z[y == c].mean(0) for c in range(3)]), dtype=torch.float32)
        torch.testing.assert_close(round.state.server.extra["centroids"], centroids, rtol=1e-3, atol=1e-3)
        mean = plain.mean(models, list(map(float, SIZES)))
        starts = []
        for i in range(3):
            a = weights(i, hs, vs)
            head = sum(float(a[j]) * models[j] for j in range(3))
            starts.append(torch.where(layout.head, head, mean))
        for found, expected in zip(plain.served(s, round.state), starts, strict=True):
            plain.close(found, expected, 5e-3)


def aligned(s, client, theta, centroids, lam):
    """Two epochs of the body down cross-entropy + lam mse(features, centroid of the class)."""
    layout = s.fed.layout
    theta = theta.clone()
    for x, y in plain.batches(s, client) * 2:
        at = theta.clone().requires_grad_()
        out, named = plain.scores(s, at, x)
        hidden = F.batch_norm(
            x @ named["hidden.weight"].T + named["hidden.bias"],
            None,
            None,
            named["bn.weight"],
            named["bn.bias"],
            training=True,
        ).relu()
        loss = F.cross_entropy(out, y)
        if centroids is not None:
            loss = loss + lam * F.mse_loss(hidden, centroids[y])
        (g,) = torch.autograd.grad(loss, at)
        theta = theta - 0.1 * g.where(layout.body, 0)
        for name in named:
            if "running" in name:
                layout.view(theta, name).copy_(named[name])
    return theta


def test_weights_of_three_clients_by_hand():
    """Equal h and variances 1, 2, 4: in proportion to 1, 1/2, 1/4. A client whose h is far keeps its own."""
    method, h = FedPAC(), torch.ones(2, 2)

    def reply(i, h, v):
        return Reply(i, 1.0, None, {"h": h, "v": torch.tensor([v])})

    alike = [reply(i, h, v) for i, v in enumerate((1.0, 2.0, 4.0))]
    np.testing.assert_allclose(method.mixes(alike), np.tile(np.array([4, 2, 1]) / 7, (3, 1)), atol=1e-9)
    far = [*alike[:2], reply(2, 1000 * h, 0.1)]
    np.testing.assert_allclose(method.mixes(far)[2], [0, 0, 1], atol=1e-3)


def test_features_of_a_class_without_a_centroid_are_not_pulled():
    s = plain.session(FedPAC(lam=1e6))
    size = s.fed.layout.rows(s.fed.initial).shape
    job = small.job(s)
    job.message = Message("train", s.fed.initial, {"centroids": torch.ones(size), "counts": torch.zeros(3)})
    job.start, job.phase = s.method.begin(job), s.method.phases(job)[1]
    pulled = s.method.gradient(job, s.fed.initial, [job.batch(torch.arange(8))])
    torch.testing.assert_close(pulled, small.job(s).grad(s.fed.initial, job.batch(torch.arange(8))))


def test_a_client_outside_the_round_keeps_its_classifier():
    s = plain.session(FedPAC(), rounds=4, join=0.67)
    before = None
    for round in small.rounds(s):
        heads = round.state.server.extra["heads"]
        if before is not None:
            for i in before.ids:
                assert heads[i].equal(before[i]) == (i not in round.asked)
        before = heads
    assert before.ids == [0, 1, 2]


def test_one_client_gets_its_own_classifier_back():
    s = plain.session(FedPAC(), (20,), rounds=2)
    (*_, last) = small.rounds(s)
    assert last.state.server.extra["heads"][0].equal(last.replies[0].model[s.fed.layout.head])
