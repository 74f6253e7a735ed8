import torch
from torch.nn import functional as F

from pfedsim.core.method import Reply, ServerState
from pfedsim.methods.fedprox import FedProx


def test_step_is_the_gradient_of_the_written_loss(small_job, point, batches, gradient_of):
    """B6.3: fails where the norm is not squared."""
    x, y = batches[0]
    trainable = small_job.fed.layout.trainable

    def loss(theta):
        return (
            F.cross_entropy(small_job.scores(theta, x), y)
            + 0.7 / 2 * ((theta - small_job.start.theta)[trainable] ** 2).sum()
        )

    step = FedProx(mu=0.7).gradient(small_job, point, batches)
    torch.testing.assert_close(step[trainable], gradient_of(point, loss)[trainable], rtol=1e-12, atol=1e-14)


def test_clients_count_alike_but_statistics_that_travel_count_by_samples(small_fed):
    """B8.12: the mean over clients is not weighted. design.md 4: shared statistics are averaged by samples
    in every method."""
    models = [torch.full((small_fed.layout.size,), value) for value in (1.0, 4.0)]
    replies = [
        Reply(i, weight, model) for i, (weight, model) in enumerate(zip((30.0, 10.0), models, strict=True))
    ]
    server = ServerState(0, small_fed.initial)
    mean = FedProx().mean(small_fed, server, replies)
    assert (mean[small_fed.layout.trainable] == 2.5).all()
    assert (mean[small_fed.layout.buffers] == 1.75).all()
    assert (FedProx(weights="samples").mean(small_fed, server, replies) == 1.75).all()
