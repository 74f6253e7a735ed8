import pytest
import torch
from torch.nn import functional as F

from pfedsim.core.method import Memory, Reply, ServerState
from pfedsim.methods.feddyn import FedDyn


def test_step_is_the_gradient_of_the_written_loss(small_job, point, batches, gradient_of):
    """B6.4 b, c and today's version: fails where the linear term has no gradient, the norm is not squared,
    or alpha theta is missing."""
    x, y = batches[0]
    trainable = small_job.fed.layout.trainable
    v = torch.linspace(-1, 1, len(point), dtype=torch.float64)
    small_job.memory = Memory(None, {"memory": v})

    def loss(theta):
        apart = (theta - small_job.start.theta)[trainable]
        return (
            F.cross_entropy(small_job.scores(theta, x), y)
            - (v * theta)[trainable].sum()
            + 0.3 / 2 * (apart**2).sum()
        )

    step = FedDyn(alpha=0.3).gradient(small_job, point, batches)
    torch.testing.assert_close(step[trainable], gradient_of(point, loss)[trainable], rtol=1e-12, atol=1e-14)


def test_only_the_loss_gradient_is_clipped(small_job, point, batches):
    """B6.4 e: fails without clipping, or where memory and penalty are clipped too."""
    small_job.memory = Memory(None, {"memory": torch.full_like(point, 100.0)})
    g = small_job.grad(point, batches[0])
    limit = float(g.norm()) / 4
    step = FedDyn(alpha=0.3, clip=limit).gradient(small_job, point, batches)
    torch.testing.assert_close(step, g / 4 - 100 + 0.3 * (point - small_job.start.theta))


def test_memory_is_the_client_s_own_and_from_its_last_weights(session, rounds):
    """B6.4 a, d: fails where one memory serves all clients, or it misses the last step."""
    made = session("feddyn", clients=3, rounds=2, join=0.7)  # 2 of 3
    trainable = made.fed.layout.trainable
    first, second = rounds(made)
    start = made.fed.initial
    for reply in first.replies:
        memory = first.state.memories[reply.client].extra["memory"]
        torch.testing.assert_close(
            memory[trainable], -0.01 * (reply.model - start)[trainable], rtol=0, atol=1e-9
        )
        assert (memory[made.fed.layout.buffers] == 0).all()
    assert len({float(c.extra["memory"].norm()) for c in first.state.memories.values()}) == 2
    for reply in second.replies:
        before = first.state.memories.get(reply.client, Memory()).extra.get(
            "memory", torch.zeros(len(start))
        )
        moved = reply.model - first.state.server.model
        after = second.state.memories[reply.client].extra["memory"]
        torch.testing.assert_close(after[trainable], (before - 0.01 * moved)[trainable], rtol=0, atol=1e-9)
        assert after.isfinite().all()
    assert second.state.server.model[trainable].isfinite().all()


@pytest.mark.parametrize("statistics", ["kept", "shared"])
def test_server_state_is_its_definition(small_fed, statistics):
    """B8.13: h runs over all n clients and the mean over the round's; fails where h is divided by |S|.
    Statistics are not corrected."""
    layout = small_fed.layout
    alpha, n, size = 0.25, small_fed.clients, layout.size
    rng = torch.Generator().manual_seed(0)
    method = FedDyn(alpha=alpha)
    server = method.init(small_fed, small_fed.initial, rng)
    h, theta = [0.0] * size, small_fed.initial.tolist()
    for _ in range(3):
        models = [server.model + torch.randn(size, generator=rng) for _ in range(2)]
        if statistics == "kept":
            models = [model.masked_fill(layout.buffers, float("nan")) for model in models]
        server = method.aggregate(
            small_fed, server, "train", [Reply(1, 10.0, models[0]), Reply(3, 30.0, models[1])], rng
        )
        for k in range(size):
            a, b = float(models[0][k]), float(models[1][k])
            if layout.trainable[k]:
                h[k] -= alpha / n * ((a - theta[k]) + (b - theta[k]))
                theta[k] = (a + b) / 2 - h[k] / alpha
            else:
                theta[k] = (10 * a + 30 * b) / 40
        torch.testing.assert_close(server.model, torch.tensor(theta), equal_nan=True, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            server.extra["h"], torch.tensor(h, dtype=torch.float64), rtol=1e-5, atol=1e-6
        )


def test_two_quadratics_meet_at_the_optimum_of_their_sum(small_fed):
    """The method's promise: clients f_i = k_i/2 |w - c_i|^2 that minimise exactly end where sum f_i is
    least, not at a mean of theirs."""
    fed, alpha = small_fed, 0.5
    fed = type(fed)(2, fed.classes, fed.layout, fed.net, fed.initial, fed.settings)
    method, rng = FedDyn(alpha=alpha), torch.Generator()
    (k1, c1), (k2, c2) = quadratics = [(1.0, -1.0), (3.0, 2.0)]
    v = [torch.zeros(fed.layout.size) for _ in quadratics]
    server = ServerState(0, fed.initial.clone(), extra=method.init(fed, fed.initial, rng).extra)
    for _ in range(200):
        # argmin of f_i(w) - <v_i, w> + alpha/2 |w - theta|^2
        models = [
            (k * c + v[i] + alpha * server.model) / (k + alpha) for i, (k, c) in enumerate(quadratics)
        ]
        v = [v[i] - alpha * (models[i] - server.model) for i in range(2)]
        server = method.aggregate(
            fed, server, "train", [Reply(i, 1.0, model) for i, model in enumerate(models)], rng
        )
    best = (k1 * c1 + k2 * c2) / (k1 + k2)
    trained = server.model[fed.layout.trainable]
    torch.testing.assert_close(trained, torch.full_like(trained, best), rtol=1e-4, atol=1e-4)
