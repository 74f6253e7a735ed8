"""Robust means against statements of their own in plain NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st

import pfedsim
from pfedsim.core import robust
from pfedsim.core.method import Method, Reply, ServerState
from pfedsim.core.robust import RULES, defended, objection
from pfedsim.core.rows import weighted_mean
from pfedsim.core.settings import Defence
from pfedsim.errors import Error
from pfedsim.methods import METHODS, parse
from pfedsim.runs.config import check
from pfedsim.runs.unused import NO_MEAN, refuse_unused

KEPT = 2  # entries at the end of a model that stay at the clients


def naive(
    rule: str, share: float, sent: np.ndarray, weights: list[float], models: np.ndarray
) -> np.ndarray:
    """The rules as their papers state them, over rows of models without kept entries."""
    n, f = len(models), int(share * len(models) + 1e-9)
    if rule == "median":
        return np.median(models, 0)
    if rule == "trimmed-mean":
        return np.stack([np.sort(column)[f : n - f].mean() for column in models.T])
    if rule == "norm-clipping":
        steps = models - sent
        bound = np.median(np.linalg.norm(steps, axis=1))
        clipped = [step * min(1.0, bound / max(np.linalg.norm(step), 1e-300)) for step in steps]
        return sent + np.average(clipped, axis=0, weights=weights)
    scores = []
    for i in range(n):
        others = sorted(np.sum((models[i] - models[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(others[: max(1, n - f - 2)]))
    best = sorted(range(n), key=lambda i: (scores[i], i))
    if rule == "krum":
        return models[best[0]]
    chosen = sorted(best[: n - f])
    return np.average(models[chosen], axis=0, weights=[weights[i] for i in chosen])


@given(
    st.sampled_from(list(RULES)),
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.2, 0.45]),
    st.integers(0, 99),
)
def test_every_rule_is_what_its_paper_says(rule: str, n: int, width: int, share: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    models = draw.normal(size=(n, width)).astype(np.float32)
    models[: n // 4] *= 50
    sent, weights = (
        draw.normal(size=width).astype(np.float32),
        draw.integers(1, 40, n).astype(float).tolist(),
    )
    nan = torch.full((KEPT,), float("nan"))
    terms = [(w, torch.cat([torch.from_numpy(m), nan])) for w, m in zip(weights, models, strict=True)]
    found = weighted_mean(
        defended(Defence(rule=rule, share=share), torch.cat([torch.from_numpy(sent), nan]), terms)
    )  # type: ignore[arg-type]
    want = naive(rule, share, sent.astype(float), weights, models.astype(float))
    np.testing.assert_allclose(found[:width].numpy(), want, rtol=2e-5, atol=1e-5)
    assert found[width:].isnan().all()


@pytest.mark.parametrize("rule", RULES)
def test_pieces_of_a_long_model_make_no_difference(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(1)
    terms = [(1.0, torch.randn(50, generator=draw)) for _ in range(5)]
    defence = Defence(rule=rule)  # type: ignore[arg-type]
    whole = weighted_mean(defended(defence, torch.zeros(50), terms))
    monkeypatch.setattr(robust, "PIECE", 7)
    assert weighted_mean(defended(defence, torch.zeros(50), terms)).allclose(whole)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_one_hostile_reply_in_five_hardly_moves_the_mean(rule: str, weights: str) -> None:
    s = small.session(federation=small.table((20, 9, 33, 4, 7)), defence={"rule": rule})
    method = replace(parse("fedavg"), weights=weights)  # type: ignore[call-arg]
    server = ServerState(0, s.fed.initial)
    draw = torch.Generator().manual_seed(3)
    steps = [0.01 * torch.randn(s.fed.layout.size, generator=draw) for _ in range(5)]
    steps[2] = torch.full((s.fed.layout.size,), -40.0)
    replies = [Reply(i, 10.0, s.fed.initial + step) for i, step in enumerate(steps)]
    moved = (method.mean(s.fed, server, replies) - s.fed.initial).abs().max()
    plain = (method.mean(small.session().fed, server, replies) - s.fed.initial).abs().max()
    assert moved < 0.1
    assert plain > 7


def test_without_a_defence_the_mean_is_the_weighted_mean() -> None:
    s = small.session()
    replies = [Reply(i, float(i + 1), s.fed.initial + i) for i in range(3)]
    mean = Method().mean(s.fed, ServerState(0, s.fed.initial), replies)
    assert mean.equal(weighted_mean([(r.weight, r.model) for r in replies]))  # type: ignore[misc]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NO_MEAN])
def test_every_method_that_takes_a_mean_takes_the_defence(name: str) -> None:
    """Krum hands on one client's model, which no mean of four would be."""
    from pfedsim.dev.conformance import session

    options = {"rho": 1.0} if name in ("pfedsim", "fedap") else {}
    method = replace(parse(name), **options)
    rounds = [
        list(s.rounds(s.begin()))
        for s in (
            session(method, rounds=1, join=1.0),
            session(method, rounds=1, join=1.0, defence={"rule": "krum"}),
        )
    ]
    plain, defended_ = (found[-1].server.model for found in rounds)
    assert not plain.nan_to_num(0).equal(defended_.nan_to_num(0))
    if name not in ("feddyn", "fedavgm"):  # which move the mean by h, and the model by the mean step
        replies = rounds[1][-1].replies
        assert any(
            defended_.nan_to_num(0).equal(r.model.nan_to_num(0)) for r in replies if r.model is not None
        )


@pytest.mark.parametrize("name", NO_MEAN)
def test_a_defence_without_effect_is_refused(name: str) -> None:
    given = {"method": name, "defence": {"rule": "krum"}}
    with pytest.raises(Error, match=rf"defence.rule = 'krum' has no effect on {name}: no mean"):
        refuse_unused(given, check(given))


def test_a_strength_without_effect_is_refused() -> None:
    given = {"attack": {"kind": "label-flip", "share": 0.1, "strength": 2.0}}
    with pytest.raises(Error, match=r"attack\.strength has no effect on the attack 'label-flip'"):
        refuse_unused(given, check(given))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"defence": {"rule": "mean"}}, "defence.rule = 'mean': must be 'median'"),
        ({"defence": {"rule": "krum", "share": 0.5}}, "defence.share = 0.5: must be below 0.5"),
        ({"defence": {"share": 0.1}}, "defence.rule"),
        ({"attack": {"kind": "bribe"}}, "attack.kind = 'bribe': must be 'sign-flip'"),
        ({"attack": {"kind": "noise", "strength": 0}}, "attack.strength = 0: must be above 0"),
        ({"attack": {"kind": "noise"}}, "attack: nobody attacks: set share or clients"),
    ],
)
def test_wrong_settings_are_named(words: dict[str, object], says: str) -> None:
    with pytest.raises(Error, match=says.replace(".", r"\.")):
        check(words)


@pytest.mark.parametrize("rule", ["trimmed-mean", "krum", "multi-krum"])
def test_a_share_of_less_than_one_reply_is_refused(rule: str) -> None:
    words = {"rounds": 1, "join": 1.0, "model": "small:Net", "backend": "torch"}
    with pytest.raises(Error, match="20% of a round's 4 replies are less than one; raise join"):
        pfedsim.train(small.table(), "fedavg", defence={"rule": rule}, **words)


def test_krum_needs_enough_replies() -> None:
    assert objection(Defence(rule="krum", share=0.4), 10).startswith("Krum needs more than 10 replies")
    assert not objection(Defence(rule="krum", share=0.3), 10)
    assert not objection(Defence(rule="median"), 3)
