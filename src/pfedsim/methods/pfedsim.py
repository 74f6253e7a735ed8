"""pFedSim. Tan et al., pFedSim: Similarity-aware model aggregation towards personalized federated learning,
2023 (arXiv 2305.15706).

The first floor(rho T) rounds train a common model (generalization). After that (personalization), every client keeps
its own classifier phi_i and gets a feature extractor omega_i mixed from the clients with similar classifiers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pfedsim.core.method import AtLeastZero, Fed, Message, Method, Reply, ServerState, Share
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.seeds import per_round
from pfedsim.errors import Notice
from pfedsim.methods.two_stage import TwoStage

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Form = Literal["classwise", "mean", "constant"]


def similarity(phi_i: Tensor, phi_j: Tensor, form: Form = "classwise") -> float:
    """Eq. 3 for two classifiers, one row per class. `mean`: the logarithm of the mean cosine, as in the author's
    code. `constant`: a control that compares nothing."""
    return similarities([phi_i, phi_j], form)[0][0]


def similarities(classifiers: Sequence[Tensor], form: Form = "classwise") -> list[list[float]]:
    """Eq. 3 for each classifier but the last, with every one after it."""
    import torch

    phi = torch.stack(tuple(classifiers)).double()
    norms = phi.norm(dim=2)
    found = []
    for i in range(len(phi) - 1):
        cosine = (phi[i] * phi[i + 1 :]).sum(2) / (norms[i] * norms[i + 1 :] + 1e-8)
        if form == "mean":
            cosine = cosine.mean(1, keepdim=True)
        # the clamp gives equal classifiers -ln 1e-6 instead of infinity
        like = -torch.log(1 - cosine.clamp(0, 1 - 1e-6)).mean(1)
        found.append([1.0] * len(like) if form == "constant" else like.tolist())
    return found


@dataclass(frozen=True)
class Personalization(Method):
    """Algorithm 2 from round T_g on."""

    form: Form = "classwise"
    own: float = 1.0

    def resembling(self, server: ServerState, client: int) -> dict[int, float]:
        """The weights of Eq. 4 before normalisation: from whose extractors this client's is mixed. Clients that it
        never met have weight 0."""
        phi = server.extra.get("similarity", Pairs())
        assert isinstance(phi, Pairs)
        return {**phi.row(client), client: self.own}

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        personal = server.personal
        assert isinstance(personal, Rows)
        if task == "score":  # the client's model after its last training
            return {i: Message(task, personal[i]) for i in clients}
        weights = {i: self.resembling(server, i) for i in clients}
        omega = personal.mixes({i: w for i, w in weights.items() if any(w.values())})  # Eq. 4
        for i, mixed in omega.items():
            mixed[fed.layout.head] = personal[i][fed.layout.head]  # phi_i stays the client's own
        return {i: Message(task, omega[i] if i in omega else personal[i]) for i in clients}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        assert server.personal is not None
        phi = {r.client: fed.layout.rows(r.model) for r in replies if r.model is not None}
        values = {}  # only pairs that met in this round are updated
        met = similarities(list(phi.values()), self.form) if len(phi) > 1 else []
        for (i, j), value in zip(combinations(phi, 2), chain.from_iterable(met), strict=True):
            values[i, j] = values[j, i] = value
        known = server.extra.get("similarity", Pairs())
        assert isinstance(known, Pairs)
        personal = server.personal.put({r.client: r.model for r in replies if r.model is not None})
        return replace(server, personal=personal, extra={**server.extra, "similarity": known.put(values)})


@dataclass(frozen=True)
class PFedSim(TwoStage):
    """A warm-up with a common model, then feature extractors mixed by the similarity of classifiers."""

    title = "pFedSim"
    tunes = "train"  # the second score tunes a fresh mix of extractors, as the next round would
    paper = "Tan et al. 2023, Algorithm 2, Eq. 3 and 4; appendix A.5: rho = 0.5"
    elsewhere = (
        "The author's code takes the logarithm of the mean cosine where Eq. 3 takes the mean of logarithms, and "
        "gives a client's own extractor the weight -ln 1e-4 = 9.21 where the paper has 1 (preset `reference`). "
        "Without a clamp, equal classifiers give log 0."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"similarity": "classwise", "own": 1.0},
        "reference": {"similarity": "mean", "own": -math.log(1e-4)},
        "uniform": {"similarity": "constant", "own": 1.0},
    }

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"rho": (0.3, 0.5, 0.7)}
    rho: Annotated[Share, "share of rounds in the warm-up"] = 0.5
    warmup: Annotated[str, "method of the warm-up"] = "fedavg"
    similarity: Annotated[
        Form, "Eq. 3 class by class, Eq. 3 of the mean cosine, or the same for all clients met"
    ] = "classwise"
    own: Annotated[AtLeastZero, "weight of the client's own extractor in its mix"] = 1.0

    def first(self) -> Method:
        from pfedsim.methods import parse

        return parse(self.warmup)

    def second(self) -> Personalization:
        return Personalization(self.similarity, self.own)

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        if per_round(fed.clients, fed.settings.join) < 2:
            warnings.warn(
                "pFedSim: with fewer than two clients per round, no classifiers can be compared",
                Notice,
                stacklevel=2,
            )
        return super().init(fed, theta, rng)
