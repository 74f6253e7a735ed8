import math
from itertools import combinations

import pytest
import torch

from pfedsim.core.method import Reply, ServerState
from pfedsim.core.rows import Pairs, Rows
from pfedsim.methods import parse
from pfedsim.methods.pfedsim import Personalization, similarities, similarity


def written_out(a, b, form):
    """Eq. 3 for two lists of rows, by plain loops. `mean`: the author's order of mean and logarithm."""
    cosines = []
    for p, q in zip(a, b, strict=True):
        dot = sum(x * y for x, y in zip(p, q, strict=True))
        norms = math.sqrt(sum(x * x for x in p)) * math.sqrt(sum(y * y for y in q))
        cosines.append(dot / (norms + 1e-8))
    if form == "mean":
        cosines = [sum(cosines) / len(cosines)]
    return sum(-math.log(1 - min(max(0.0, c), 1 - 1e-6)) for c in cosines) / len(cosines)


def replies_of(fed, clients, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [
        Reply(i, 10.0, fed.initial + 0.3 * torch.randn(fed.layout.size, generator=rng)) for i in clients
    ]


@pytest.mark.parametrize(
    ("preset", "form", "own"), [("paper", "classwise", 1.0), ("reference", "mean", -math.log(1e-4))]
)
def test_weights_and_mix_by_plain_loops(small_fed, preset, form, own):
    """B8.8: weight rows without bias; clamp and logarithm in the named order; own weight 1 or -ln 1e-4;
    plain normalisation."""
    fed, layout, rng = small_fed, small_fed.layout, torch.Generator()
    method = parse(f"pfedsim:{preset}").second()
    replies = replies_of(fed, [0, 1, 3])
    before = ServerState(5, fed.initial, Rows(fed.initial))
    after = method.aggregate(fed, before, "train", replies, rng)
    rows = {r.client: layout.view(r.model, "classifier.weight").tolist() for r in replies}
    weights = {i: {j: written_out(rows[i], rows[j], form) if i != j else own for j in rows} for i in rows}
    pairs = after.extra["similarity"]
    for i in rows:
        assert pairs.row(i) == {j: pytest.approx(weights[i][j], rel=1e-5) for j in rows if j != i}
        assert all(pairs.row(i)[j] == pairs.row(j)[i] for j in rows if j != i)
    models = {r.client: r.model for r in replies}
    for i, message in method.send(fed, after, [0, 1, 3], "train").items():
        total = sum(weights[i].values())
        for k in range(layout.size):
            mixed = sum(weights[i][j] / total * float(models[j][k]) for j in rows)
            expected = float(models[i][k]) if layout.head[k] else mixed  # phi_i is its own
            assert float(message.model[k]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    scored = method.send(fed, after, [0, 1, 3], "score")
    assert all(torch.equal(scored[i].model, models[i]) for i in models)


def test_bias_plays_no_part(small_fed):
    a, b = (r.model for r in replies_of(small_fed, [0, 1]))
    moved = a.clone()
    small_fed.layout.view(moved, "classifier.bias").add_(5)
    phi = small_fed.layout.rows
    assert similarity(phi(a), phi(b)) == similarity(phi(moved), phi(b))


def test_without_own_weight_a_client_that_met_nobody_keeps_its_own(small_fed):
    """own = 0 leaves no weight at all: fails where that is divided by. Opposite classifiers weigh 0, too."""
    fed, rng, method = small_fed, torch.Generator(), Personalization(own=0.0)
    server = ServerState(5, fed.initial, Rows(fed.initial))
    one, other = replies_of(fed, [0, 1])
    opposite = Reply(1, 10.0, torch.where(fed.layout.head, -one.model, other.model))
    server = method.aggregate(fed, server, "train", [one, opposite], rng)
    assert server.extra["similarity"].row(0) == {1: 0.0}
    messages = method.send(fed, server, [0, 1, 3], "train")
    assert messages[0].model.equal(one.model)
    assert messages[1].model.equal(opposite.model)
    assert messages[3].model.equal(fed.initial)


@pytest.mark.parametrize("form", ["classwise", "mean"])
def test_clamped_at_both_ends(form):
    """B8.10: equal classifiers weigh -ln 1e-6, not infinity; opposite ones 0."""
    phi = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert similarity(phi, phi, form) == pytest.approx(-math.log(1e-6), rel=1e-3)
    assert similarity(phi, -phi, form) == 0
    assert similarity(phi, phi * 0, form) == 0


def test_clamp_is_by_class_in_the_paper_and_of_the_mean_in_the_reference():
    phi, other = torch.eye(2), torch.tensor([[1.0, 1.0], [0.0, -1.0]])
    assert similarity(phi, other, "classwise") == pytest.approx(-math.log(1 - math.sqrt(0.5)) / 2, rel=1e-6)
    assert similarity(phi, other, "mean") == 0  # (0.71 - 1) / 2 < 0


@pytest.mark.parametrize("form", ["classwise", "mean", "constant"])
@pytest.mark.parametrize("shape", [(10, 84), (10, 1280), (1, 7), (62, 3)])
def test_all_pairs_at_once_have_the_bits_of_two_alone(form, shape):
    draw = torch.Generator().manual_seed(2)
    phi = [torch.randn(shape, generator=draw) + 0.2 for _ in range(9)]
    found = similarities(phi, form)
    assert [len(row) for row in found] == list(range(8, 0, -1))
    for i, j in combinations(range(9), 2):
        a, b = phi[i].double(), phi[j].double()
        cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1) + 1e-8)
        cosine = cosine.mean(0, keepdim=True) if form == "mean" else cosine
        alone = float(-torch.log(1 - cosine.clamp(0, 1 - 1e-6)).mean())
        assert found[i][j - i - 1] == (1.0 if form == "constant" else alone)


def test_only_pairs_that_met_are_renewed(small_fed):
    """B8.9: older entries stay, pairs that never met weigh nothing, a client without neighbours keeps its
    own."""
    fed, rng, method = small_fed, torch.Generator(), Personalization()
    server = ServerState(5, fed.initial, Rows(fed.initial))
    server = method.aggregate(fed, server, "train", replies_of(fed, [0, 1], seed=1), rng)
    old = server.extra["similarity"].row(0)[1]
    server = method.aggregate(fed, server, "train", replies_of(fed, [1, 2], seed=2), rng)
    pairs = server.extra["similarity"]
    assert isinstance(pairs, Pairs)
    assert pairs.row(0) == {1: old}
    assert set(pairs.row(1)) == {0, 2}
    assert 0 not in pairs.row(2)
    messages = method.send(fed, server, [0, 3], "train")
    assert torch.equal(messages[3].model, fed.initial)
    held = server.personal
    body = ~fed.layout.head
    expected = (held[0].double() + old * held[1].double()) / (1 + old)
    torch.testing.assert_close(messages[0].model[body].double(), expected[body], rtol=1e-6, atol=1e-7)
