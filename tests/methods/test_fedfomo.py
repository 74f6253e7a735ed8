import pytest
import torch
from torch.nn import functional as F

from pfedsim.core.job import Batch, Job, Work
from pfedsim.core.method import Memory, Message, Reply, ServerState
from pfedsim.core.rows import Pairs, Rows
from pfedsim.methods.fedfomo import FedFomo


@pytest.fixture
def offer(small_job):
    """A client whose own model is 0 and who is offered four, with their losses on its validation part in a
    table."""
    layout = small_job.fed.layout
    here = layout.trainable.nonzero()[0, 0]
    models = torch.zeros(4, layout.size)
    models[:, here] = torch.tensor([1.0, 2.0, -4.0, 0.5])  # so far apart from its own
    models[:, layout.buffers] = 1000.0  # statistics do not count as distance
    losses = {0.0: 1.0, 1.0: 0.5, 2.0: 0.8, -4.0: 3.0, 0.5: 1.0}
    small_job.message = Message("train", torch.zeros(layout.size), models={"offered": models})
    small_job.loss_on = lambda theta, part: losses[float(theta[here])] if part == "validation" else None
    small_job.part = lambda name: Batch(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))
    return small_job, here


def test_weights_of_a_case_worked_by_hand(offer):
    """w = (1 - 0.5)/1, (1 - 0.8)/2, (1 - 3)/4, 0/0.5 = 0.5, 0.1, -0.5, 0; the start is (0.5 * 1 + 0.1 * 2)
    / 0.6 = 7/6, without its own."""
    job, here = offer
    start = FedFomo().begin(job)
    torch.testing.assert_close(
        start.notes["affinity"], torch.tensor([0.5, 0.1, -0.5, 0.0]), rtol=2e-5, atol=0
    )
    assert float(start.theta[here]) == pytest.approx(7 / 6, rel=1e-5)


@pytest.mark.parametrize("why", ["nothing better", "no validation part", "nothing offered"])
def test_own_model_where_none_is_better(offer, why):
    job, here = offer
    if why == "nothing better":
        job.loss_on = lambda theta, part: float(theta[here] ** 2)
    elif why == "no validation part":
        job.part = lambda name: Batch(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    else:
        job.message = Message(
            "train", job.message.model, models={"offered": torch.zeros(0, job.fed.layout.size)}
        )
    start = FedFomo().begin(job)
    assert torch.equal(start.theta, job.message.model)
    assert len(start.notes["affinity"]) == len(job.message.models["offered"])


def test_affinity_adds_up_raw_and_ranks_last_round_s_clients():
    """Negative weights count too; only clients of the last round are offered; its own entry is 1 and takes
    a place, unsent."""
    affinity = Pairs().put({(0, 2): 0.4, (0, 3): -1.0, (0, 5): 9.0, (0, 6): 2.0})
    server = ServerState(
        3,
        torch.zeros(1),
        Rows(torch.zeros(1)),
        {"affinity": affinity, "last": torch.tensor([0, 1, 2, 3, 6])},
    )
    assert FedFomo(models=5).offered(server, 0) == [6, 2, 1, 3]
    assert FedFomo(models=3).offered(server, 0) == [6, 2]
    replies = [Reply(0, 1.0, torch.ones(1), {"affinity": torch.tensor([0.25, -0.5])})]
    after = FedFomo(models=3).aggregate(None, server, "train", replies, torch.Generator())
    assert after.extra["affinity"].row(0) == {2: pytest.approx(-0.1), 3: -1.0, 5: 9.0, 6: 2.25}
    assert after.extra["last"].tolist() == [0]


def test_validation_part_is_fixed_and_never_trained_on(session, rounds):
    """B6.10: fails where it is redrawn, so that validation samples leak into training over rounds."""
    made = session("fedfomo")
    site = made.worker
    stored = made.federation.partition.clients[2].train
    for number in range(2):
        job = Job(site, Work(2, number, Message("train", made.fed.initial), "train"), Memory())
        held_back = int(0.2 * len(stored))
        x = torch.from_numpy(made.federation.data.x[stored])
        assert torch.equal(job.part("validation").x, site.net.ready(x[:held_back]))
        assert torch.equal(job.part("train").x, site.net.ready(x[held_back:]))
        assert job.reply(None).weight == len(stored) - held_back


def test_loss_is_the_mean_over_the_samples(session):
    """B6.10: fails where batch means are summed and divided by the samples, 32 times too small."""
    made = session("fedfomo")
    job = Job(made.worker, Work(2, 0, Message("train", made.fed.initial), "train"), Memory())
    x, y = job.part("validation")
    each = [
        float(F.cross_entropy(job.logits(made.fed.initial, x[k : k + 1]), y[k : k + 1]))
        for k in range(len(y))
    ]
    assert job.loss_on(made.fed.initial, "validation") == pytest.approx(sum(each) / len(each), rel=1e-5)


def test_offers_follow_the_rounds_and_own_models_are_scored(session, rounds):
    """Round 0 offers nothing, later rounds the last one's clients; scored is the model as it left its last
    training."""
    made = session("fedfomo", clients=5, rounds=3, join=0.6)
    all_rounds = rounds(made)
    assert all(not round.events for round in all_rounds)
    servers = [made.begin(), *(round.server for round in all_rounds)]
    for number, (server, round) in enumerate(zip(servers, all_rounds, strict=False)):
        messages = made.method.send(made.fed, server, made.schedule[number], "train")
        for i, message in messages.items():
            others = sorted(set(made.schedule[number - 1]) - {i}) if number else []
            assert len(message.models["offered"]) == len(others)
            sent = {tuple(m[:5].tolist()) for m in message.models["offered"]}
            assert sent == {tuple(server.personal[j][:5].tolist()) for j in others}
        trainable = made.fed.layout.trainable
        scored = made.method.send(made.fed, round.server, range(5), "score")
        assert all(
            torch.equal(scored[r.client].model[trainable], r.model[trainable]) for r in round.replies
        )
        assert all(not m.extra and not m.models for m in scored.values())
