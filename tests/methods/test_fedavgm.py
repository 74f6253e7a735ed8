import plain
import pytest
import small
import torch

from pfedsim.core.method import Reply
from pfedsim.methods.fedavgm import FedAvgM

SIZES = [20.0, 9.0, 33.0]


def test_two_rounds_by_hand(small_fed):
    """Samples 10 and 30, models at +1 and +3 of the common one: the mean step is 2.5, then with beta = 0.5 and the
    models at -1 and -3 of the new one -2.5 + 1.25. Norm statistics take the mean alone."""
    fed, method, rng = small_fed, FedAvgM(beta=0.5), torch.Generator()
    server = method.init(fed, fed.initial, rng)
    expected = fed.initial
    for sign, step, plain_step in ((1, 2.5, 2.5), (-1, -1.25, -2.5)):
        before = server.model
        replies = [Reply(0, 10.0, before + sign), Reply(2, 30.0, before + 3 * sign)]
        server = method.aggregate(fed, server, "train", replies, rng)
        expected = torch.where(fed.layout.trainable, expected + step, expected + plain_step)
        torch.testing.assert_close(server.model, expected, rtol=1e-5, atol=1e-5)
    assert (server.extra["velocity"][fed.layout.buffers] == 0).all()


def test_three_rounds_of_the_loop_are_the_written_ones():
    s = plain.session(FedAvgM(beta=0.6), rounds=3)
    theta, velocity, trainable = s.fed.initial, 0.0, s.fed.layout.trainable
    for round in small.rounds(s):
        mean = plain.mean([plain.sgd(s, i, theta) for i in range(3)], SIZES)
        velocity = 0.6 * velocity + mean - theta
        theta = torch.where(trainable, theta + velocity, mean)
        plain.close(round.state.server.model, theta, 1e-4)


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_without_momentum_it_is_fedavg(buffers):
    ours, fedavg = (
        [r.state.server.model for r in small.rounds(plain.session(m, rounds=3, buffers=buffers))]
        for m in (FedAvgM(beta=0.0), None)
    )
    for a, b in zip(ours, fedavg, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)
