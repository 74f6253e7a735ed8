import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from pfedsim.core.client import run_client, run_to_score, train
from pfedsim.core.job import Job, Work
from pfedsim.core.method import Memory, Message, Method, Phase, StartingPoint
from pfedsim.core.server import send
from pfedsim.methods.perfedavg import PerFedAvg
from pfedsim.models.lenet5 import LeNet5


def test_step_is_the_first_order_definition(small_job, point, batches, gradient_of):
    """The gradient on the second batch, at the point one inner step away on the first; no derivative of
    that step."""
    (x, y), (x2, y2) = batches
    u = point - 0.2 * gradient_of(point, lambda t: F.cross_entropy(small_job.scores(t, x), y))
    expected = gradient_of(u, lambda t: F.cross_entropy(small_job.scores(t, x2), y2))
    step = PerFedAvg(alpha=0.2).gradient(small_job, point, batches)
    torch.testing.assert_close(step, expected, rtol=1e-12, atol=1e-14)


def test_statistics_follow_the_batches_and_a_single_batch_trains(session, rounds):
    """B6.7 a, b: fails where restoring the weights restores the statistics, or a client with one batch does
    no step."""
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
    work = Work(1, 0, send(made.side, made.begin(), [1], "score")[1], "score")
    scored, _ = run_to_score(made.worker, work, Memory())
    job = Job(made.worker, work, Memory())
    job.start = StartingPoint(made.fed.initial)
    (plain,) = train(Method(), job, [Phase(made.fed.layout.trainable, 1, 0.01)])
    assert torch.equal(scored, plain)
    assert not torch.equal(scored, made.fed.initial)


SPEC = "perfedavg(alpha=0.05, beta=0.02)"


def test_phases_take_beta_for_rounds_and_alpha_for_the_score(session):
    """Never the run's lr; the run's epochs of two batches a step, or one epoch of one batch a step."""
    made = session(SPEC, lr=0.7, epochs=3)
    for task, epochs, lr, batches in (("train", 3, 0.02, 2), ("score", 1, 0.05, 1)):
        job = Job(made.worker, Work(0, 0, Message(task, made.fed.initial), task), Memory())
        (phase,) = made.method.phases(job)
        assert (phase.epochs, phase.lr, phase.batches, phase.start) == (epochs, lr, batches, None)
        assert phase.train.equal(made.fed.layout.trainable)


def batches_of(job, size):
    x, y = job.part("train")
    return [(x[k : k + size], y[k : k + size]) for k in range(0, len(y), size) if len(y[k : k + size]) > 1]


def gradients(module, named, x, y):
    """Of the mean cross-entropy at these parameters; the module's statistics follow the batch."""
    leaves = {name: value.detach().requires_grad_() for name, value in named.items()}
    loss = F.cross_entropy(functional_call(module, leaves, (x,)), y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_a_round_of_a_client_is_the_steps_written_out(session, buffers):
    """theta <- theta - beta g(theta - alpha g(theta; B); B') over pairs of batches, the odd one out left;
    alpha, beta, lr all differ."""
    made = session(SPEC, lr=0.7, epochs=2, batch=32, backend="torch", buffers=buffers)
    layout, site = made.fed.layout, made.worker
    client = next(i for i, c in enumerate(made.federation.partition.clients) if len(c.train) > 96)
    work = Work(
        client,
        0,
        send(made.side, made.begin(), [client], "train")[client],
        "train",
    )
    reply, memory = run_client(site, work, Memory())

    module = LeNet5((1, 32, 32), 10).train()
    module.load_state_dict(layout.named(made.fed.initial), strict=False)
    theta = {name: p.detach().clone() for name, p in module.named_parameters()}
    batches = batches_of(Job(site, work, Memory()), 32)
    assert len(batches) >= 3
    for _ in range(2):
        for first, second in zip(batches[::2], batches[1::2], strict=False):
            inner = gradients(module, theta, *first)
            u = {name: theta[name] - 0.05 * inner[name] for name in theta}
            outer = gradients(module, u, *second)
            theta = {name: theta[name] - 0.02 * outer[name] for name in theta}
    expected = layout.flat({name: {**module.state_dict(), **theta}[name] for name in layout.names})
    end = reply.model.masked_scatter(made.side.wire.kept, memory.kept)
    torch.testing.assert_close(end, expected, rtol=1e-4, atol=2e-5)
    assert (end - made.fed.initial)[
        layout.trainable
    ].abs().max() > 1e-3  # a distance that the tolerance can tell
    assert reply.weight == len(made.federation.partition.clients[client].train)


def test_the_score_is_one_epoch_of_plain_steps_at_alpha_whatever_the_lr(session):
    made = session(SPEC, lr=0.7, epochs=3, batch=32, backend="torch")
    layout, site = made.fed.layout, made.worker
    work = Work(0, 0, send(made.side, made.begin(), [0], "score")[0], "score")
    module = LeNet5((1, 32, 32), 10).train()
    module.load_state_dict(layout.named(made.fed.initial), strict=False)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    for x, y in batches_of(Job(site, work, Memory()), 32):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    state = module.state_dict()
    torch.testing.assert_close(
        run_to_score(site, work, Memory())[0],
        layout.flat({n: state[n] for n in layout.names}),
        rtol=1e-4,
        atol=2e-5,
    )
