"""How alike two clients are, by their data (Eq. 1) and by four measures on their models: WDB, MDB, LDB and
CS (section 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pfedsim.data import Federation
from pfedsim.runs import Config

if TYPE_CHECKING:
    from torch import Tensor

    from pfedsim.runs import Session

SUBSETS = {"i": (0, 1, 2, 3, 4), "i'": (0, 1, 2, 3, 4), "j": (2, 3, 4, 5, 6), "k": (5, 6, 7, 8, 9)}
MEASURES = ("WDB", "MDB", "LDB", "CS")
SAMPLED = 200  # pairs kept for a picture


def of_data(counts: np.ndarray) -> np.ndarray:
    """1 - Eq. 1 for every pair: the share of both clients' samples whose label both have. `counts`:
    (client, class)."""
    present = counts > 0
    both = present[:, None] & present[None]
    shared = (both * (counts[:, None] + counts[None])).sum(2)
    sizes = counts.sum(1)
    similarity: np.ndarray = shared / (sizes[:, None] + sizes[None])
    return similarity


def of_heads(rows: np.ndarray) -> np.ndarray:
    """Cosine of two classifiers' rows, (client, client, class); its mean over classes is CS (Eq. 2).
    `rows`: (client, class, weight)."""
    unit = rows / np.linalg.norm(rows, axis=2, keepdims=True)
    cosine: np.ndarray = np.einsum("icw,jcw->ijc", unit, unit)
    return cosine


def of_updates(moved: np.ndarray) -> np.ndarray:
    """MDB: cosine of what training changed. `moved`: (client, parameter)."""
    unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    cosine: np.ndarray = unit @ unit.T
    return cosine


def of_statistics(layers: list[np.ndarray]) -> np.ndarray:
    """WDB: 1 / f-FedAP's distance, the sum over norm layers of the distance of (mean, deviation). Each
    layer: (client, 2 x channels)."""
    apart = sum(np.linalg.norm(layer[:, None] - layer[None], axis=2) for layer in layers)
    with np.errstate(divide="ignore"):
        near: np.ndarray = 1 / np.asarray(apart)
    return near


def of_losses(losses: np.ndarray, thetas: np.ndarray) -> np.ndarray:
    """LDB[a, b]: FedFomo's weight of b's model on a's data, (L_a(a) - L_a(b)) / (|theta_a - theta_b| +
    1e-5). `losses`: (data, model)."""
    squares = (thetas**2).sum(1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * thetas @ thetas.T, 0))
    weight: np.ndarray = (np.diag(losses)[:, None] - losses) / (apart + 1e-5)
    return weight


def four_subsets(config: Config) -> Federation:
    """The paper's four clients; a class that several own is divided evenly among them."""
    from pfedsim import data as datasets
    from pfedsim.data import partition as partitions

    data = datasets.read(config.data, config.data_dir)
    owner = np.full(len(data.y), "", dtype="<U2")
    stream = np.random.RandomState(config.partition_seed)
    for c in range(len(data.classes)):
        owners = [name for name, labels in SUBSETS.items() if c in labels]
        for name, part in zip(
            owners,
            np.array_split(stream.permutation(np.flatnonzero(data.y == c)), len(owners)),
            strict=True,
        ):
            owner[part] = name
    partition = partitions.make(
        "given",
        data.y,
        data.digest,
        clients=None,
        alpha=0.1,
        classes_each=1,
        minimum=2,
        test=config.test,
        seed=config.partition_seed,
        owner=owner,
    )
    return Federation(data, partition)


def measure(config: Config, extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All measures between all clients after each trained alone."""
    from pfedsim.runs import federate, made_with
    from pfedsim_paper import training

    four = extra["clients"] == "four"
    federation = four_subsets(config) if four else federate(config)
    session, state = training.last(config, federation)
    tables, cosines = _tables(session, federation, training.models(session, state))
    pairs = np.triu_indices(federation.clients, 1)
    both_ways = {name: (table + table.T) / 2 for name, table in tables.items()}
    found: dict[str, Any] = {
        "correlation": {m: correlations(both_ways["data"][pairs], both_ways[m][pairs]) for m in MEASURES}
    }
    if four:
        found |= {name: table.tolist() for name, table in tables.items()}
        found["cosines"] = {
            f"{a}{b}": np.round(cosines[a, b], 4).tolist() for a, b in zip(*pairs, strict=True)
        }
        found["samples"] = [len(s.train) + len(s.test) for s in federation.partition.clients]
    else:
        drawn = np.random.default_rng(config.seed).permutation(len(pairs[0]))[:SAMPLED]
        found["pairs"] = len(pairs[0])
        found["drawn"] = {
            name: [float(f"{v:.4g}") for v in both_ways[name][pairs][drawn]] for name in ("data", *MEASURES)
        }
    return found, made_with(session.config)


def _tables(
    session: Session, federation: Federation, models: list[Tensor]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    import torch

    from pfedsim.runs import one_thread

    layout, net, samples = session.fed.layout, session.worker.net, session.worker.samples
    thetas = torch.stack(models).double().numpy()
    trainable = layout.trainable.numpy()
    statistics: list[list[np.ndarray]] = [[] for _ in layout.norms]
    losses = np.zeros((len(models), len(models)))
    with one_thread():
        for a, own in enumerate(models):
            found = net.moments(own, net.ready(samples.part(a, "train")[0]))
            for layer, (_, mean, variance) in zip(statistics, found, strict=True):
                layer.append(torch.cat([mean, variance.sqrt()]).double().numpy())
            x, y = samples.part(a, "test")
            ready = net.ready(x)
            losses[a] = [net.loss(other, ready, y) for other in models]
    cosines = of_heads(np.stack([layout.rows(m).double().numpy() for m in models]))
    tables = {
        "data": of_data(federation.label_counts()),
        "WDB": of_statistics([np.stack(layer) for layer in statistics]),
        "MDB": of_updates(thetas[:, trainable] - session.fed.initial.double().numpy()[trainable]),
        "LDB": of_losses(losses, thetas[:, trainable]),
        "CS": cosines.mean(2),
    }
    np.fill_diagonal(tables["WDB"], 0.0)  # infinite: a client is at no distance from itself
    return tables, cosines


def correlations(data: np.ndarray, measure: np.ndarray) -> dict[str, float | None]:
    """Pearson's and Spearman's; None where either is constant."""
    from scipy.stats import rankdata

    def pearson(a: np.ndarray, b: np.ndarray) -> float | None:
        return None if a.std() == 0 or b.std() == 0 else round(float(np.corrcoef(a, b)[0, 1]), 4)

    return {"pearson": pearson(data, measure), "spearman": pearson(rankdata(data), rankdata(measure))}
