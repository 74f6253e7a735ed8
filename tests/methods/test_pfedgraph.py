import numpy as np
import plain
import pytest
import small
import torch
from scipy.optimize import minimize

from pfedsim.core.method import Reply
from pfedsim.methods.pfedgraph import PFedGraph


def weights(d, p, alpha):
    """argmin_w sum_j w_j d_j + alpha sum_j (w_j - p_j)^2 over the simplex, by SLSQP."""
    return minimize(
        lambda w: w @ d + alpha * ((w - p) ** 2).sum(),
        np.full(len(p), 1 / len(p)),
        bounds=[(0, 1)] * len(p),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"maxiter": 500, "ftol": 1e-15},
    ).x


def replies_of(fed, steps, sizes):
    return [Reply(i, float(n), fed.initial + s) for i, (n, s) in enumerate(zip(sizes, steps, strict=True))]


@pytest.mark.parametrize("alpha", [0.05, 0.8, 50.0])
def test_rows_of_the_graph_solve_the_program(small_fed, alpha):
    draw = torch.Generator().manual_seed(2)
    steps = torch.randn(5, small_fed.layout.size, generator=draw)
    steps[1] = steps[0] + 0.3 * steps[1]
    steps[:, small_fed.layout.buffers] = float("nan")  # kept by the clients
    sizes = np.array([10, 30, 5, 40, 15])
    method = PFedGraph(alpha=alpha)
    server = method.init(small_fed, small_fed.initial, draw)
    graph = method.graph(small_fed, server, replies_of(small_fed, steps, sizes))
    moved = steps[:, small_fed.layout.trainable].double().numpy()
    unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    for i, row in graph.items():
        expected = weights(-unit @ unit[i], sizes / 100, alpha)
        np.testing.assert_allclose([row[j] for j in range(5)], expected, atol=2e-4)


def test_three_clients_by_hand(small_fed):
    """Directions e, e and -e, equal samples, alpha = 1: client 0 wants the projection of 1/3 + (1, 1, -1) / 2, which
    is (1/2, 1/2, 0), client 2 that of 1/3 - (1, 1, -1) / 2, which is (0, 0, 1)."""
    method, rng = PFedGraph(alpha=1.0), torch.Generator()
    server = method.init(small_fed, small_fed.initial, rng)
    e = torch.ones(small_fed.layout.size)
    replies = replies_of(small_fed, [e, 2 * e, -e], [7, 7, 7])
    graph = method.graph(small_fed, server, replies)
    assert [graph[0][j] for j in range(3)] == pytest.approx([0.5, 0.5, 0.0], abs=1e-9)
    assert [graph[2][j] for j in range(3)] == pytest.approx([0.0, 0.0, 1.0], abs=1e-9)
    after = method.aggregate(small_fed, server, "train", replies, rng)
    torch.testing.assert_close(after.personal[0], small_fed.initial + 1.5, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after.personal[2], small_fed.initial - 1, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after.personal[3], small_fed.initial + 2 / 3, rtol=1e-5, atol=1e-5)


def test_with_strong_shares_it_is_fedavgs_mean():
    ours, fedavg = plain.session(PFedGraph(alpha=1e7, lam=0.0), rounds=2), plain.session(None, rounds=2)
    (*_, a), (*_, b) = small.rounds(ours), small.rounds(fedavg)
    for i in range(3):
        plain.close(a.state.server.personal[i], b.state.server.model, 1e-4)


def test_two_rounds_are_the_written_ones():
    """Round two starts from the mixes and descends f_i - lam cos(theta, mix); served is the client's trained model."""
    s = plain.session(PFedGraph(alpha=0.3, lam=20.0), rounds=2)
    trainable = s.fed.layout.trainable
    first, second = small.rounds(s)
    models = [plain.sgd(s, i, s.fed.initial) for i in range(3)]
    for found, expected in zip(plain.served(s, first.state), models, strict=True):
        plain.close(found, expected, 1e-4)
    moved = torch.stack([(m - s.fed.initial)[trainable].double() for m in models])
    unit = (moved / moved.norm(dim=1, keepdim=True)).numpy()
    for i in range(3):
        w = weights(-unit @ unit[i], np.array([20, 9, 33]) / 62, 0.3)
        mix = sum(float(w[j]) * models[j] for j in range(3))

        def pull(theta, mix=mix):
            return -20.0 * torch.cosine_similarity(theta[trainable], mix[trainable], dim=0)

        expected = plain.sgd(s, i, mix, penalty=pull)
        plain.close(plain.served(s, second.state)[i], expected, 1e-3)
        if i == 2:  # whose nine batches feel the pull; at the mix itself it is zero
            assert (plain.sgd(s, i, mix) - expected).norm() > 0.05
