from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics as known

from pfedsim.core.scoring import METRICS, ClientScore, Scores, measure

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, samples: int, classes: int, present: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    y = draw.choice(draw.permutation(classes)[:present], samples)
    logits = draw.normal(0, 2, (samples, classes)) + 2 * np.eye(classes)[y] * draw.random((samples, 1))
    if ties and classes == 2:
        logits = np.round(logits) * [
            1,
            0,
        ]  # equal scores give equal probabilities however they are computed
    return logits, y


@given(SEEDS, st.integers(1, 60), st.sampled_from([2, 2, 3, 5, 7]), st.data())
def test_metrics_are_scikit_learns(seed: int, samples: int, classes: int, data: st.DataObject) -> None:
    logits, y = drawn(seed, samples, classes, data.draw(st.integers(1, classes)), data.draw(st.booleans()))
    found, confusion = measure(logits, y)
    predicted = logits.argmax(1)
    p = softmax(logits, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about labels that are predicted but absent
        assert found["accuracy"] == pytest.approx(known.accuracy_score(y, predicted))
        assert found["balanced_accuracy"] == pytest.approx(known.balanced_accuracy_score(y, predicted))
        assert found["macro_f1"] == pytest.approx(known.f1_score(y, predicted, average="macro"))
        assert found["loss"] == pytest.approx(known.log_loss(y, p, labels=range(classes)))
        assert confusion.tolist() == known.confusion_matrix(y, predicted, labels=range(classes)).tolist()
        areas = [known.roc_auc_score(y == c, p[:, c]) for c in np.unique(y) if len(np.unique(y)) > 1]
    if areas:
        assert found["auroc"] == pytest.approx(np.mean(areas))
    else:
        assert math.isnan(found["auroc"])


@given(SEEDS, st.integers(3, 7))
def test_auroc_is_scikit_learns_one_against_rest_where_all_classes_are_there(
    seed: int, classes: int
) -> None:
    logits, y = drawn(seed, 60, classes, classes, False)
    y[:classes] = range(classes)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert measure(logits, y)[0]["auroc"] == pytest.approx(known.roc_auc_score(y, p, multi_class="ovr"))


@given(SEEDS, st.integers(1, 80), st.integers(2, 5))
def test_calibration_error_by_a_plain_loop(seed: int, samples: int, classes: int) -> None:
    logits, y = drawn(seed, samples, classes, classes, False)
    error = 0.0
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for k in range(15):
        inside = [
            i
            for i in range(samples)
            if k / 15 <= p[i].max() < (k + 1) / 15 or (k == 14 and p[i].max() == 1)
        ]
        if inside:
            confidence = sum(p[i].max() for i in inside) / len(inside)
            accuracy = sum(p[i].argmax() == y[i] for i in inside) / len(inside)
            error += len(inside) / samples * abs(confidence - accuracy)
    assert measure(logits, y)[0]["calibration_error"] == pytest.approx(error, abs=1e-9)


def test_certainty_and_large_scores_are_measured_without_overflow() -> None:
    found, _ = measure(np.array([[1e4, 0.0], [0.0, 1e4]]), np.array([0, 1]))
    assert found == {
        "loss": 0,
        "accuracy": 1,
        "balanced_accuracy": 1,
        "macro_f1": 1,
        "auroc": 1,
        "calibration_error": 0,
    }
    assert measure(np.array([[1e4, 0.0]]), np.array([1]))[0]["loss"] == 1e4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_has_diverged_is_scored_all_the_same(bad: float) -> None:
    logits = np.array([[0.0, 1.0, 0.0], [bad, bad, bad]])
    found, confusion = measure(logits, np.array([1, 2]))
    assert found["accuracy"] == 0.5
    assert confusion.sum() == 2
    assert all(math.isnan(found[name]) for name in ("loss", "auroc", "calibration_error"))


@pytest.mark.filterwarnings("error")
def test_no_sample_leaves_every_metric_undefined() -> None:
    found, confusion = measure(np.zeros((0, 3)), np.zeros(0, np.int64))
    assert set(found) == set(METRICS)
    assert all(math.isnan(v) for v in found.values())
    assert confusion.sum() == 0
    nobody = Scores("served", 0, "validation", (ClientScore(0, 0, found, confusion),))
    assert all(math.isnan(v) for v in nobody.summary().values())


def _client(i: int, right: int, samples: int) -> ClientScore:
    logits = np.where(np.arange(samples)[:, None] < right, [[1.0, 0.0]], [[0.0, 1.0]])
    metrics, confusion = measure(logits, np.zeros(samples, np.int64))
    return ClientScore(i, samples, metrics, confusion)


@given(
    st.lists(
        st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
        min_size=1,
        max_size=30,
    )
)
def test_micro_counts_samples_and_mean_counts_clients(clients: list[tuple[int, int]]) -> None:
    scores = Scores(
        "served", 0, "test", tuple(_client(i, right, n) for i, (right, n) in enumerate(clients))
    )
    summary = scores.summary()
    each = sorted(right / n for right, n in clients)
    assert summary["micro"] == pytest.approx(
        sum(right for right, _ in clients) / sum(n for _, n in clients)
    )
    assert summary["mean"] == pytest.approx(sum(each) / len(each))
    worst = each[: max(1, len(each) // 10)]
    assert summary["worst_tenth"] == pytest.approx(sum(worst) / len(worst))


def test_clients_without_samples_do_not_count() -> None:
    empty = ClientScore(1, 0, *measure(np.zeros((0, 2)), np.zeros(0, np.int64)))
    scores = Scores("served", 0, "test", (_client(0, 3, 4), empty))
    assert (scores.micro, scores.mean(), scores.summary()["worst_tenth"]) == (0.75, 0.75, 0.75)


@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_every_client_is_scored_on_its_own_test_part(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfedsim.core.scoring.CHUNK", chunk)
    s = small.session()
    scores = small.score(s, s.begin())
    assert [(c.client, c.samples) for c in scores.clients] == [(i, 10) for i in range(4)]
    module = small.module(s).eval()
    for c in scores.clients:
        x, y = small.normal(s, c.client, "test")
        with torch.no_grad():
            assert c.metrics["accuracy"] == pytest.approx(float((module(x).argmax(1) == y).float().mean()))
