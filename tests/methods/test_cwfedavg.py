import plain
import pytest
import small
import torch

from pfedsim.methods.cwfedavg import CwFedAvg

SIZES = [20.0, 9.0, 33.0]


def shares(s, theta):
    norms = s.fed.layout.rows(theta).norm(dim=1)
    return norms / norms.sum()


def trained(s, client, theta, lam):
    y = small.normal(s, client)[1]
    p = torch.bincount(y, minlength=3) / len(y)
    return plain.sgd(s, client, theta, penalty=lambda at: lam / 2 * (p - shares(s, at)).norm())


@pytest.mark.parametrize("part", ["all", "head"])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_three_rounds_are_the_written_ones(part, backend):
    """Class means sum_i n_i q_ic theta_i / sum_i n_i q_ic, then sum_c q_ic of them for client i."""
    s = plain.session(CwFedAvg(lam=2.0, part=part), rounds=3, backend=backend)
    layout = s.fed.layout
    where = layout.trainable if part == "all" else layout.head
    starts = [s.fed.initial] * 3
    for round in small.rounds(s):
        models = [trained(s, i, starts[i], 2.0) for i in range(3)]
        q = torch.stack([shares(s, m) for m in models])
        weight = torch.tensor(SIZES)[:, None] * q
        by_class = torch.stack(
            [sum(weight[i, c] * models[i] for i in range(3)) / weight[:, c].sum() for c in range(3)]
        )
        mean = plain.mean(models, SIZES)
        starts = [torch.where(where, q[i] @ by_class, mean) for i in range(3)]
        plain.close(round.server.model, mean, 2e-4)
        for found, expected in zip(plain.served(s, round.state), starts, strict=True):
            plain.close(found, expected, 2e-4)
    assert not starts[0][where].allclose(starts[1][where], atol=1e-4)


def test_a_client_outside_the_round_gets_the_new_means_in_its_old_shares():
    s = plain.session(CwFedAvg(), rounds=3, join=0.67)
    *_, before, last = small.rounds(s)
    (absent,) = set(range(3)) - set(last.asked)
    old, new = (r.server.extra["shares"] for r in (before, last))
    assert new[absent].equal(old[absent])
    means = torch.stack([last.server.extra["means"][c] for c in range(3)])
    expected = new[absent] @ means
    found = plain.served(s, last.state)[absent]
    plain.close(found[s.fed.layout.trainable], expected, 1e-5)


def test_with_shares_at_the_labels_the_regulariser_is_flat():
    """|p - q| has no slope where it is zero; ours is finite there."""
    s = plain.session(CwFedAvg(lam=5.0))
    job = small.job(s)
    p = torch.bincount(job.labels, minlength=3) / len(job.labels)
    theta = s.fed.initial.clone()
    rows = s.fed.layout.rows(theta)
    rows.mul_((p / rows.norm(dim=1))[:, None])
    pulled = s.method.gradient(job, theta, [job.part("train")])
    assert pulled.isfinite().all()
    free = small.job(s).grad(theta, job.part("train"))
    assert (pulled - free).norm() <= 5.0 / rows.norm(dim=1).sum() * 3
