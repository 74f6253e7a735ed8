"""How well a server can read a client's label distribution: from its classifier, and from f-FedAP's
statistics (Table 1's privacy row)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.core import Rows
from pfedsim.errors import Error
from pfedsim.experiments import Cell, Store
from pfedsim.report import Document, Entry, Section, Table, entries
from pfedsim.runs import Config
from pfedsim_paper import pictures
from pfedsim_paper.forms import StudyCell
from pfedsim_paper.grid import dealt, decimal, set_name, title
from pfedsim_paper.protocol import Choice, words

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.core import Layout

Head = tuple[np.ndarray, np.ndarray]

FOLDS = 5
METHODS = ("fedavg", "fedfomo", "fedap", "fedgen", "pfedsim")  # FedAvg: the control; the others: Table 1
HOW = (
    "The server tries to infer each client's label distribution from the last thing the client sent. "
    "'Read off' needs no fitting: the change of each class's bias relative to the common classifier "
    "counts as the share of that class, because training raises the biases of the classes that a client"
    " has. The common classifier is that of the round's model or, for personal models, that of the last"
    " common one. 'Fitted' is a ridge regression trained on four fifths of the clients, as if the "
    "server knew their labels, and tested on the other fifth, five times. AUROC: how well the score "
    "separates present from absent classes (0.5: not at all, 1: perfectly). Distance: total variation "
    "between the true and the inferred distribution (0: equal), next to that of guessing the mean of "
    "the known clients. FedAvg is the control, because its clients send a model, too. Clients of "
    "f-FedAP send their classifiers and statistics, those of FedGen their label counts. The two fits "
    "are not equally strong: for classifiers one regression serves all classes, while for statistics "
    "there is one sample per client."
)


def plan(choice: Choice) -> list[Cell]:
    choice = choice.of(methods=METHODS, alphas=(0.1,))
    quiet = {"score": {"every": 0, "finetune": 0}}
    return [
        StudyCell(
            words(data, method, alpha, seed, {**quiet, **choice.settings}, full=choice.full),
            "privacy",
            (("method", method),),
        )
        for data in choice.data
        for alpha in choice.alphas
        for seed in choice.seeds
        for method in choice.methods
    ]


def measure(config: Config, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every way of reading that this method's messages allow."""
    from pfedsim.runs import federate, made_with
    from pfedsim_paper import training

    federation = federate(config)
    sent: dict[int, tuple[Head, Head]] = {}
    labels: dict[int, np.ndarray] = {}
    for session, before, round in training.rounds(config, federation):
        personal = before.personal
        common = head(session.fed.layout, before.model if personal is None else personal.default)
        sent |= {
            r.client: (head(session.fed.layout, r.model), common)
            for r in round.replies
            if r.model is not None
        }
        labels |= {
            r.client: r.extra["labels"].double().numpy() for r in round.replies if "labels" in r.extra
        }
        statistics = round.server.extra.get("statistics")
    if not sent or any(np.isnan(weight).any() for (weight, _), _ in sent.values()):
        raise Error(f"clients of {config.method} send no classifier: there is nothing to read")
    ids = sorted(sent)
    parts = [federation.partition.clients[i].train for i in ids]
    counts = np.stack(
        [np.bincount(federation.data.y[part], minlength=session.fed.classes) for part in parts]
    )
    features, bias = (
        np.stack(several) for several in zip(*(head_features(*sent[i]) for i in ids), strict=True)
    )
    found: dict[str, Any] = {
        "clients": len(counts),
        "classes": int(counts.shape[1]),
        "classifier, read off": {"auroc": _auroc(counts > 0, bias)},
        "classifier, fitted": told(features, counts),
    }
    if isinstance(statistics, Rows):  # each client's own
        found["statistics, fitted"] = told(np.stack([statistics[i].double().numpy() for i in ids]), counts)
    if labels:
        found["label counts, as sent"] = compared(np.stack([labels[i] for i in ids]), counts)
    return found, made_with(session.config)


def head(layout: Layout, theta: Tensor) -> Head:
    """The classifier's rows and biases, one for each class."""
    weight, place = layout.rows(theta).double().numpy(), layout.last.replace("weight", "bias")
    return weight, layout.view(theta, place).double().numpy() if place in layout.names else np.zeros(
        len(weight)
    )


def head_features(mine: Head, common: Head) -> tuple[np.ndarray, np.ndarray]:
    """Of every class: what its row and bias are and how they differ from the common ones; and the bias's
    change alone."""
    (weight, bias), (start, start_bias) = mine, common
    change, norm = bias - start_bias, np.linalg.norm(weight, axis=1)
    cosine = (weight * start).sum(1) / norm / np.linalg.norm(start, axis=1)
    features = np.stack(
        [bias, change, norm, np.linalg.norm(weight - start, axis=1), cosine, weight.mean(1)], axis=1
    )
    return features, change - change.mean()


def told(features: np.ndarray, counts: np.ndarray) -> dict[str, float | None]:
    """A ridge regression from features to label shares, on clients that it was not fitted on. Features per
    client, or per client and class: then one regression serves all classes."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    shares = counts / counts.sum(1, keepdims=True)
    score = np.zeros_like(shares)
    for known, asked in _folds(len(shares)):
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 7)))
        if features.ndim == 3:
            model.fit(features[known].reshape(-1, features.shape[2]), shares[known].ravel())
            score[asked] = model.predict(features[asked].reshape(-1, features.shape[2])).reshape(
                asked.sum(), -1
            )
        else:
            model.fit(features[known], shares[known])
            score[asked] = model.predict(features[asked])
    return compared(score, counts)


def _folds(clients: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Who is known and who is asked."""
    fold = np.arange(clients) % min(FOLDS, clients)
    for k in np.unique(fold):
        yield fold != k, fold == k


def compared(score: np.ndarray, counts: np.ndarray) -> dict[str, float | None]:
    """How near a score for each client and class comes to the truth, beside guessing the mean of the known
    clients."""
    shares = counts / counts.sum(1, keepdims=True)
    guess = np.zeros_like(shares)
    for known, asked in _folds(len(shares)):
        guess[asked] = shares[known].mean(0)
    return {
        "auroc": _auroc(counts > 0, score),
        "distance": _distance(_as_shares(score), shares),
        "guess": _distance(guess, shares),
    }


def _as_shares(score: np.ndarray) -> np.ndarray:
    clipped = np.clip(score, 1e-9, None)
    shares: np.ndarray = clipped / clipped.sum(1, keepdims=True)
    return shares


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Mean total variation distance."""
    return round(float(np.abs(a - b).sum(1).mean() / 2), 4)


def _auroc(present: np.ndarray, score: np.ndarray) -> float | None:
    from sklearn.metrics import roc_auc_score

    if present.all() or not present.any():
        return None
    return round(float(roc_auc_score(present.ravel(), score.ravel())), 4)


def report(store: Store, choice: Choice) -> Document:
    sections = [Section("How it is measured", [HOW])]
    rows: dict[str, list[list[Entry]]] = {}
    for cell in plan(choice):
        record = store.find(cell)
        where = (
            f"{set_name(str(cell.words['data']))}, {dealt(cell.words['alpha'])}, seed {cell.words['seed']}"
        )
        lines = rows.setdefault(where, [])
        method = title(str(cell.words["method"]))
        if record is None:
            lines.append(entries(method, "not measured yet", "-", "-", "-"))
            continue
        for way, got in record.found.items():
            if isinstance(got, dict):
                lines.append(
                    entries(method, way, *(decimal(got.get(k)) for k in ("auroc", "distance", "guess")))
                )
    for where, lines in rows.items():
        head = ["method", "from", "AUROC, classes present", "distance told", "distance guessed"]
        table = Table(
            f"privacy-{len(sections)}", "What the server can tell of its clients' labels", head, lines
        )
        sections.append(Section(where, [table, *pictures.readings(table, where)]))
    return Document("privacy", "What a server can infer about its clients' labels", sections)
