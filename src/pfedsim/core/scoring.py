"""Models on test parts -> metrics, per client and over all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.core.client import run_to_score
from pfedsim.core.engine import Absent, refuse_if_all_failed
from pfedsim.core.hooks import hook
from pfedsim.core.job import Job, ScoreRequest, Work, Worker, samples_of
from pfedsim.core.method import Memory, Method, ServerState
from pfedsim.core.server import Coordinator, send
from pfedsim.errors import Error

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 256  # clients whose messages exist at once
BINS = 15  # of the calibration error
METRICS = ("loss", "accuracy", "balanced_accuracy", "macro_f1", "auroc", "calibration_error")


@dataclass(frozen=True, eq=False)
class ClientScore:
    """One client's model on one part of its data; metrics that its labels leave undefined are NaN."""

    client: int
    samples: int
    metrics: Mapping[str, float]
    confusion: np.ndarray
    """(true class, predicted class) counts"""
    absent: str = ""
    """why there is no score"""
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """of each sample, and `predicted` and `model`: only where a simulation asked for them"""
    predicted: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    model: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """All clients' scores on one part. `model`: "served", or "finetuned" after `epochs` plain local epochs.
    `split`: "test", "validation", or "unseen": the test parts of the clients that never train."""

    model: str
    epochs: int
    split: str
    clients: tuple[ClientScore, ...]

    @property
    def micro(self) -> float:
        """Accuracy over all samples alike: the paper's number."""
        correct, samples = (
            sum(int(np.trace(c.confusion)) for c in self.clients),
            sum(c.samples for c in self.clients),
        )
        return correct / samples if samples else float("nan")

    def mean(self, metric: str = "accuracy") -> float:
        """Mean over the clients for which the metric exists."""
        values = np.array([c.metrics[metric] for c in self.clients])
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    def summary(self) -> dict[str, Any]:
        """The figures over all clients that files and tables show."""
        accuracy = np.sort([c.metrics["accuracy"] for c in self.clients if c.samples])
        worst = float(accuracy[: max(1, len(accuracy) // 10)].mean()) if len(accuracy) else float("nan")
        means = {metric: self.mean(metric) for metric in METRICS}
        return {"micro": self.micro, "mean": means.pop("accuracy"), "worst_tenth": worst, **means}


def score(
    side: Coordinator,
    server: ServerState,
    *,
    finetune: int = 0,
    split: str = "test",
    models: bool = False,
    predictions: bool = False,
    take: Callable[[int, Tensor], None] | None = None,
    unseen: int = 0,
    lr: float | None = None,
    stays: bool = False,
) -> Scores:
    """Every client's model on its own test (or validation) part; `finetune`: after so many plain local
    epochs at `lr` (None: the learning rate that the next round would have). `models` and `predictions` come along
    from simulated clients only; `take` is given the models one
    by one in the order of clients, so that ten thousand need no room. `unseen`: instead, so many clients that
    never took part, numbered after the others, with what the method hands to one it has never met. `stays`: these are
    the final models, which clients elsewhere keep for themselves."""
    scores: list[ClientScore] = []
    clients = side.fed.clients
    everyone = range(clients, clients + unseen) if unseen else range(clients)
    request = ScoreRequest(split, finetune, models or take is not None, predictions, lr, stays)
    for first in range(0, len(everyone), CHUNK):
        for one in _scored(side, server, everyone[first : first + CHUNK], request):
            if take is not None and one.model is not None:
                take(one.client, one.model)
            scores.append(one if models else replace(one, model=None))
    name = "finetuned" if finetune else "served"
    return Scores(name, finetune, "unseen" if unseen else split, tuple(scores))


def model_of(side: Coordinator, server: ServerState, client: int) -> Tensor | None:
    """The model that this simulated client would use now; None where it cannot be had."""
    (one,) = _scored(side, server, [client], ScoreRequest(model=True))
    return one.model


def _scored(
    side: Coordinator, server: ServerState, clients: Sequence[int], request: ScoreRequest
) -> Iterator[ClientScore]:
    """Scores in the order of clients; an early one waits for its turn."""
    task, purpose = (side.method.tunes, "finetune") if request.finetune else ("score", "score")
    messages = send(side, server, clients, task)
    works = [Work(i, server.round, messages[i], purpose, request) for i in clients]
    waiting: dict[int, ClientScore] = {}
    turn = iter(clients)
    now = next(turn, None)
    absent = []
    for done in side.engine.run("score", works, side.deadline):
        if isinstance(done, Absent):
            absent.append(done)
        result = _unscored(done, side.fed.classes) if isinstance(done, Absent) else done.result
        assert isinstance(result, ClientScore)
        waiting[done.client] = result
        while now in waiting:
            yield waiting.pop(now)
            now = next(turn, None)
    if len(works) > 1 or side.fed.clients == 1:
        refuse_if_all_failed(absent, len(works))


def _unscored(absent: Absent, classes: int) -> ClientScore:
    """A client whose score could not be had: no samples, no metrics."""
    metrics, confusion = measure(np.zeros((0, classes)), np.zeros(0, dtype=np.int64))
    return ClientScore(absent.client, 0, metrics, confusion, absent=absent.why)


def score_client(worker: Worker, work: Work, memory: Memory) -> ClientScore:
    """One client's score, where the client is: counts and sums, and more only from simulated clients."""
    request = work.score or ScoreRequest()
    if (request.model or request.predictions) and not worker.simulated:
        raise Error(
            f"client {work.client} was asked for its model or predictions, but it is not simulated: only its "
            "scores leave it"
        )
    theta, job = run_to_score(worker, work, memory, request.finetune, request.lr)
    x, y = samples_of(worker, work.client, request.split)
    if len(y):
        logits = _predicted(worker.method, job, theta, worker.net.ready(x)).double().cpu().numpy()
    else:
        logits = np.zeros((0, worker.fed.classes))
    labels = y.numpy()
    metrics, confusion = measure(logits, labels)
    found = ClientScore(work.client, len(y), metrics, confusion)
    if request.predictions:
        found = replace(found, labels=labels, predicted=logits.argmax(1))
    return replace(found, model=theta.cpu()) if request.model else found


def _predicted(method: Method, job: Job, theta: Tensor, x: Tensor) -> Tensor:
    """Class scores of a served model: as the method's `begin` says, else the network's."""
    if (predict := job.start.predict) is None:
        return job.logits(theta, x)
    with hook(method, "begin", job):
        if not method.beside:
            raise TypeError("it gives `predict`, so the method must say in `beside` what that needs")
        scores = predict(theta, x)
        if tuple(scores.shape) != (len(x), job.fed.classes):
            raise TypeError(
                f"`predict` gave shape {tuple(scores.shape)}, expected {(len(x), job.fed.classes)}"
            )
    return scores


def measure(logits: np.ndarray, y: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """All metrics of these class scores, and the confusion matrix. Scores that are not finite, of a model
    that has diverged, are no probabilities: what needs them is NaN."""
    samples, classes = logits.shape
    confusion = np.zeros((classes, classes), dtype=np.int64)
    if not samples:
        return dict.fromkeys(METRICS, float("nan")), confusion
    log_p = _log_softmax(logits) if np.isfinite(logits).all() else None
    predicted = logits.argmax(1)
    np.add.at(confusion, (y, predicted), 1)
    hits, true, called = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    present = true > 0
    seen = present | (called > 0)
    return {
        "loss": float("nan") if log_p is None else float(-log_p[np.arange(samples), y].mean()),
        "accuracy": float(hits.sum() / samples),
        "balanced_accuracy": float((hits[present] / true[present]).mean()),
        "macro_f1": float((2 * hits[seen] / (true + called)[seen]).mean()),
        "auroc": float("nan") if log_p is None else _auroc(np.exp(log_p), y),
        "calibration_error": float("nan") if log_p is None else _calibration_error(np.exp(log_p), y),
    }, confusion


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(1, keepdims=True)
    log_p: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return log_p


def _auroc(p: np.ndarray, y: np.ndarray) -> float:
    """One class against the rest, mean over the classes for which both exist; ties count half."""
    areas = []
    for c in np.unique(y):
        positive = y == c
        if positive.all():
            continue
        _, place, count = np.unique(p[:, c], return_inverse=True, return_counts=True)
        rank = (np.cumsum(count) - (count - 1) / 2)[place]  # mean rank among equals
        wins = rank[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
        areas.append(wins / (positive.sum() * (~positive).sum()))
    return float(np.mean(areas)) if areas else float("nan")


def _calibration_error(p: np.ndarray, y: np.ndarray) -> float:
    """How far confidence lies from accuracy, over equal bins of the confidence, weighted by their
    samples."""
    confidence, right = p.max(1), p.argmax(1) == y
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(place, confidence, BINS) - np.bincount(place, right, BINS))
    return float(gaps.sum() / len(y))
