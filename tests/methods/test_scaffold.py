import plain
import pytest
import small
import torch

from pfedsim.core.method import Reply
from pfedsim.methods.scaffold import Scaffold

SIZES = (20, 9, 33)
STEPS = (6, 2, 8)  # two epochs of batches of 8; a last batch of one sample is left out


def test_three_rounds_are_algorithm_1_with_option_two():
    """Controls of its own in the test, which travel whole: y <- y - eta (g - c_i + c),
    c_i <- c_i - c + (x - y) / (K eta), c <- c + sum of changes / N."""
    s = plain.session(Scaffold(weights="uniform", eta_g=0.5), SIZES, rounds=3)
    trainable = s.fed.layout.trainable
    x, c = s.fed.initial, torch.zeros(s.fed.layout.size)
    own = [torch.zeros_like(c) for _ in SIZES]
    for round in small.rounds(s):
        models, changes = [], []
        for i, steps in enumerate(STEPS):
            y = plain.sgd(s, i, x, penalty=lambda at, shift=c - own[i]: (shift * at)[trainable].sum())
            new = (own[i] - c + (x - y) / (steps * 0.1)).where(trainable, 0)
            changes.append(new - own[i])
            models.append(y)
            own[i] = new
        by_samples, alike = plain.mean(models, list(SIZES)), plain.mean(models, [1.0] * 3)
        x = torch.where(trainable, x + 0.5 * (alike - x), by_samples)
        c = c + sum(changes) / 3
        plain.close(round.state.server.model, x, 1e-4)
        torch.testing.assert_close(round.state.server.extra["c"].float(), c, rtol=1e-3, atol=1e-4)
        for i, memory in round.state.memories.items():
            torch.testing.assert_close(memory.extra["c_i"], own[i], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lr_decay", [1.0, 0.5])
def test_c_stays_the_mean_of_all_controls_though_few_take_part(lr_decay):
    """The controls of clients that were not asked count with what they had; kept statistics have none."""
    s = small.session(
        Scaffold(), small.table((20, 9, 33, 12)), rounds=4, join=0.5, lr_decay=lr_decay, batch=8
    )
    *_, last = small.rounds(s)
    held = {i: m.extra["c_i"] for i, m in last.state.memories.items() if "c_i" in m.extra}
    mean = sum(held.values()) / 4
    torch.testing.assert_close(last.state.server.extra["c"].float(), mean, rtol=1e-4, atol=1e-5)
    assert mean.norm() > 0.01
    assert (mean[s.fed.layout.buffers] == 0).all()


def test_the_first_round_is_fedavgs():
    (ours,), (fedavg,) = (
        list(small.rounds(plain.session(m, rounds=1))) for m in (Scaffold(weights="samples"), None)
    )
    assert ours.state.server.model.equal(fedavg.state.server.model)


def test_three_clients_by_hand(small_fed):
    """Models at -1, -2 and -6 of the common one after K eta = 0.5, 1 and 2: gradients 2, 2 and 3 on average. With
    four clients in all and c = 1: c + ((2 - 1) + (2 - 1) + (3 - 1)) / 4 = 2."""
    fed, method, rng = small_fed, Scaffold(), torch.Generator()
    server = method.init(fed, fed.initial, rng)
    trainable = fed.layout.trainable
    server = type(server)(0, server.model, extra={"c": trainable.double()})
    replies = [
        Reply(i, 5.0, server.model - moved, {"pace": torch.tensor([pace])})
        for i, (moved, pace) in enumerate(((1.0, 0.5), (2.0, 1.0), (6.0, 2.0)))
    ]
    after = method.aggregate(fed, server, "train", replies, rng)
    torch.testing.assert_close(after.extra["c"], 2 * trainable.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after.model, server.model - 3, rtol=1e-5, atol=1e-5)


def test_a_client_that_takes_no_step_changes_no_control():
    s = small.session(Scaffold(), small.table((20, 1)), rounds=2, batch=8)
    for round in small.rounds(s):
        assert "c_i" not in round.state.memories[1].extra
        mean = round.state.memories[0].extra["c_i"] / 2
        torch.testing.assert_close(round.state.server.extra["c"].float(), mean, rtol=1e-4, atol=1e-6)


def test_a_reply_is_one_number_larger_than_fedavgs():
    """Not as large as two models: the control follows from the model and K eta."""
    sent = [next(small.rounds(plain.session(m, rounds=1))).traffic[0] for m in (Scaffold(), None)]
    size = plain.session(None).fed.layout.size
    assert sent[0][1] == sent[1][1] + 4
    assert sent[0][0] == sent[1][0] + 4 * size
