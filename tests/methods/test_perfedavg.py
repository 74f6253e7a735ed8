import torch
from torch.nn import functional as F

from pfedsim.client import run_to_score, train
from pfedsim.engines.serial import Serial
from pfedsim.job import Job, Work
from pfedsim.method import Client, Method, Phase, Start
from pfedsim.methods.perfedavg import PerFedAvg
from pfedsim.server import send


def test_step_is_the_first_order_definition(small_job, point, batches, gradient_of):
    """The gradient on the second batch, at the point one inner step away on the first; no derivative of that step."""
    (x, y), (x2, y2) = batches
    u = point - 0.2 * gradient_of(point, lambda t: F.cross_entropy(small_job.scores(t, x), y))
    expected = gradient_of(u, lambda t: F.cross_entropy(small_job.scores(t, x2), y2))
    step = PerFedAvg(alpha=0.2).gradient(small_job, point, batches)
    torch.testing.assert_close(step, expected, rtol=1e-12, atol=1e-14)


def test_statistics_follow_the_batches_and_a_single_batch_trains(session, rounds):
    """B6.7 a, b: fails where restoring the weights restores the statistics, or a client with one batch does no step."""
    made = session("perfedavg", clients=3, rounds=1, join=1.0, batch=500)
    (only,) = rounds(made)
    buffers, trainable = made.fed.layout.buffers, made.fed.layout.trainable
    for reply in only.replies:
        assert reply.weight <= 500  # one batch
        assert not torch.equal(reply.model[trainable], made.fed.initial[trainable])
        moved = only.state.memories[reply.client].kept != made.fed.initial[buffers]
        assert moved.all()


def test_scored_after_one_plain_epoch_at_alpha(session):
    made = session("perfedavg", clients=3)
    state, engine = made.begin(), made.engine
    assert isinstance(engine, Serial)
    message = send(made.method, made.fed, made.kept, state, [1], "score")[1]
    work = Work(1, 0, message, Client(), "score")
    scored = run_to_score(engine._site, work)
    job = Job(engine._site, work)
    job.start = Start(made.fed.initial)
    (plain,) = train(Method(), job, [Phase(made.fed.layout.trainable, 1, 0.01)])
    assert torch.equal(scored, plain)
    assert not torch.equal(scored, made.fed.initial)
