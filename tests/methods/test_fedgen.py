from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfedsim.core.method import Message, Reply
from pfedsim.methods.fedgen import FedGen

METHOD = FedGen(noise=2, hidden=6, batch=8, steps=1)


def module_of(state, method, classes, features):
    """The generator as an ordinary module."""
    wide = method.noise + classes
    net = nn.Sequential(
        nn.Linear(wide, method.hidden),
        nn.BatchNorm1d(method.hidden),
        nn.ReLU(),
        nn.Linear(method.hidden, features),
    )
    nn.utils.vector_to_parameters(state["g"], net.parameters())
    net[1].running_mean.data, net[1].running_var.data = state["statistics"].clone().split(method.hidden)
    return net.to(state["g"].dtype)


@pytest.fixture
def quiet(small_fed):
    """A generator in float64 that does not heed its noise and has statistics of its own."""
    state = METHOD.generator(small_fed).start(torch.Generator().manual_seed(0))
    g, statistics = state["g"].double(), torch.linspace(0.5, 2, 12, dtype=torch.float64)
    g[: 6 * 5].view(6, 5)[:, :2] = 0
    return {"g": g, "statistics": statistics}


def test_the_generator_is_as_large_as_reported(session):
    """Noise 32, ten classes, hidden 32, LeNet5's 84 features: 4,212 weights."""
    made = session("fedgen")
    assert len(made.begin().extra["g"]) == 4212


@pytest.mark.parametrize("number", [1, 40, 2000])
def test_step_is_the_gradient_of_the_written_loss(small_job, point, batches, quiet, gradient_of, number):
    """B8.14: fails where G is in train mode, the KL target is not detached, the coefficients have no floor,
    or y' comes from classes that the client does not have."""
    job, (x, y) = small_job, batches[0]
    job.round, job.labels = number, torch.tensor([2, 2, 2])
    job.message = Message("train", job.message.model, quiet)
    generator = module_of(quiet, METHOD, 3, 4).eval()

    def generated(labels):
        inputs = torch.cat([torch.zeros(len(labels), 2), F.one_hot(labels, 3)], 1).double()
        return generator(inputs).detach()

    coefficient = max(1e-4, 10 * 0.98**number)

    def loss(theta):
        log_f = job.scores(theta, x).log_softmax(1)
        target = job.head(point, generated(y)).softmax(1)
        drawn = torch.full((8,), 2)
        ce = F.nll_loss(log_f, y)
        kl = F.kl_div(log_f, target, reduction="batchmean")
        return (
            ce
            + coefficient * kl
            + 8 / 32 * coefficient * F.cross_entropy(job.head(theta, generated(drawn)), drawn)
        )

    step = METHOD.gradient(job, point, batches)
    torch.testing.assert_close(step, gradient_of(point, loss), rtol=1e-10, atol=1e-12)


def test_round_0_is_plain(small_job, point, batches):
    """B8.14: no regularisation while G has learnt nothing."""
    assert torch.equal(METHOD.gradient(small_job, point, batches), small_job.grad(point, batches[0]))


def replies_of(fed):
    """Two clients with classifiers far apart; class 1 is nobody's. What they keep is NaN."""
    models = [fed.initial + sign * torch.linspace(-2, 2, fed.layout.size) for sign in (1, -1)]
    counts = torch.tensor([[6.0, 0.0, 1.0], [2.0, 0.0, 3.0]])
    return [
        Reply(i, 9.0, model.masked_fill(fed.layout.buffers, float("nan")), {"labels": c})
        for i, (model, c) in enumerate(zip(models, counts, strict=True))
    ]


def ensemble_loss(features, y, replies, layout, heads):
    """sum_i mean over the batch of c_i[y] / sum_j c_j[y] * CE(phi_i(G(y)), y), written sample by sample."""
    total = 0.0
    for reply, head in zip(replies, heads, strict=True):
        named = layout.named(head)
        for z, label in zip(features, y.tolist(), strict=True):
            share = reply.extra["labels"][label] / sum(r.extra["labels"][label] for r in replies)
            scores = named["classifier.weight"] @ z + named["classifier.bias"]
            total = total + share * (scores.logsumexp(0) - scores[label]) / len(y)
    return total


def draws(method, classes, rng):
    """Labels and inputs of one generator step: a class with a sample among the replies, each alike, and
    normal noise."""
    y = torch.tensor([0, 2])[torch.randint(2, (method.batch,), generator=rng)]
    return y, torch.cat([torch.randn(method.batch, method.noise, generator=rng), F.one_hot(y, classes)], 1)


def test_generator_learns_from_the_uploaded_classifiers(small_fed):
    """B6.5, B8.14: fails where the teacher is the initial, the global or the averaged classifier."""
    fed, layout = small_fed, small_fed.layout
    replies = replies_of(fed)
    server = METHOD.init(fed, fed.initial, torch.Generator().manual_seed(0))
    after = METHOD.aggregate(fed, server, "train", replies, torch.Generator().manual_seed(7))
    found = after.extra["adam"][0] / 0.1  # Adam's first moment after its first step

    def gradient(heads):
        generator = module_of(server.extra, METHOD, 3, 4).train()
        y, inputs = draws(METHOD, 3, torch.Generator().manual_seed(7))
        ensemble_loss(generator(inputs), y, replies, layout, heads).backward()
        return torch.cat([p.grad.flatten() for p in generator.parameters()])

    torch.testing.assert_close(found, gradient([r.model for r in replies]), rtol=1e-4, atol=1e-6)
    for wrong in (fed.initial, after.model):
        assert (found - gradient([wrong, wrong])).norm() > 0.1 * found.norm()


def test_five_steps_are_torch_s_adam(small_fed, small_job):
    """Weights, norm statistics and the learning rate of round 3, against torch.optim.Adam on an ordinary
    module, in float64: the bias before the norm layer has no gradient, and Adam would blow up its
    rounding."""
    method = FedGen(noise=2, hidden=6, batch=8, lr=0.01)
    fed = replace(small_fed, net=small_job, initial=small_fed.initial.double())
    replies = replies_of(fed)
    server = method.init(fed, fed.initial, torch.Generator().manual_seed(0))
    server = replace(server, round=3, extra={name: t.double() for name, t in server.extra.items()})
    after = method.aggregate(fed, server, "train", replies, torch.Generator().manual_seed(7)).extra
    generator = module_of(server.extra, method, 3, 4).train()
    adam, rng = (
        torch.optim.Adam(generator.parameters(), lr=0.01 * 0.98**3),
        torch.Generator().manual_seed(7),
    )
    for _ in range(5):
        y, inputs = draws(method, 3, rng)
        adam.zero_grad()
        ensemble_loss(
            generator(inputs.double()), y, replies, fed.layout, [r.model for r in replies]
        ).backward()
        adam.step()
    torch.testing.assert_close(after["g"], nn.utils.parameters_to_vector(generator.parameters()).detach())
    torch.testing.assert_close(
        after["statistics"], torch.cat([generator[1].running_mean, generator[1].running_var])
    )
    assert float(after["adam_steps"]) == 5


def test_a_run_sends_the_generator_and_gets_label_counts(session, rounds):
    made = session("fedgen")
    first, second = rounds(made)
    assert not first.events
    assert not second.events
    for reply in second.replies:
        labels = made.federation.data.y[made.federation.partition.clients[reply.client].train]
        assert reply.extra["labels"].tolist() == [int((labels == c).sum()) for c in range(10)]
    assert float(second.state.server.extra["adam_steps"]) == 10
    assert not made.method.send(made.fed, second.state.server, [0], "score")[0].extra
    size, travels = 4 * (4212 + 64), 4 * int((~made.side.wire.kept).sum())
    assert all(down == travels + size for down, _ in second.traffic.values())
