import math

import plain
import pytest
import small
import torch

from pfedsim.core.rows import Rows
from pfedsim.methods.fedamp import FedAMP


def test_attention_of_three_clients_by_hand(small_fed):
    """Client 1 is at squared distance 2 from client 0, client 2 at 8; sigma = 4 and alpha = 1. Norm statistics are no
    distance."""
    fed = small_fed
    here = fed.layout.trainable.nonzero()[:2, 0]
    models = {i: fed.initial.clone() for i in range(3)}
    models[1][here] += 1.0
    models[2][here] += 2.0
    models[2][fed.layout.buffers] += 100.0
    xi = FedAMP(alpha=1.0, sigma=4.0).attention(fed, Rows(fed.initial, models), 0)
    near, far = math.exp(-2 / 4) / 4, math.exp(-8 / 4) / 4
    assert xi == {1: pytest.approx(near), 2: pytest.approx(far), 0: pytest.approx(1 - near - far)}


@pytest.mark.parametrize(("times", "expected"), [(0.1, [0.8, 0.1, 0.1]), (3.0, [0.0, 0.5, 0.5])])
def test_with_a_wide_kernel_all_others_count_alike(small_fed, times, expected):
    """sigma to infinity, alpha = times sigma: others weigh `times` each, together at most 1."""
    draw = torch.Generator().manual_seed(1)
    rows = Rows(
        small_fed.initial, {i: torch.randn(small_fed.layout.size, generator=draw) for i in range(3)}
    )
    xi = FedAMP(alpha=times * 1e9, sigma=1e9).attention(small_fed, rows, 0)
    assert [xi[i] for i in range(3)] == pytest.approx(expected, abs=1e-6)


def test_with_a_narrow_kernel_nobody_else_counts(small_fed):
    rows = Rows(small_fed.initial, {i: small_fed.initial + i for i in range(3)})
    assert FedAMP(sigma=1e-3).attention(small_fed, rows, 1) == {0: 0.0, 2: 0.0, 1: 1.0}


def test_three_rounds_are_the_written_ones():
    """u_i mixed from the models of the last round; then f_i(w) + lam / (2 alpha) |w - u_i|^2 from one's own w_i."""
    lam, alpha, sigma = 0.6, 2.0, 20.0
    s = plain.session(FedAMP(lam=lam, alpha=alpha, sigma=sigma), rounds=3)
    trainable = s.fed.layout.trainable
    models, met = [s.fed.initial] * 3, False
    for round in small.rounds(s):
        clouds = list(models)
        for i in range(3) if met else ():
            xi = {}
            for j in range(3):
                squared = float(((models[i] - models[j])[trainable].double() ** 2).sum())
                xi[j] = alpha * math.exp(-squared / sigma) / sigma if i != j else 0.0
            clouds[i] = (1 - sum(xi.values())) * models[i] + sum(xi[j] * models[j] for j in range(3))
            assert 0.02 < sum(xi.values()) < 1
        models = [
            plain.sgd(
                s,
                i,
                models[i],
                penalty=lambda w, u=clouds[i]: lam / (2 * alpha) * ((w - u)[trainable] ** 2).sum(),
            )
            for i in range(3)
        ]
        met = True
        for found, expected in zip(plain.served(s, round.state), models, strict=True):
            plain.close(found, expected, 2e-4)


def test_without_the_pull_it_is_training_alone():
    from pfedsim.methods import parse

    ours, alone = (plain.session(m, rounds=3) for m in (FedAMP(lam=0.0), parse("local")))
    (a, b) = (plain.served(s, list(small.rounds(s))[-1].state) for s in (ours, alone))
    for x, y in zip(a, b, strict=True):
        plain.close(x, y, 1e-6)
