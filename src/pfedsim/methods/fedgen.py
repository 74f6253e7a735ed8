"""FedGen. Zhu et al., Data-free knowledge distillation for heterogeneous federated learning, ICML 2021.

The server trains a generator G of features on whose classes the clients' classifiers agree; clients also train on
these features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from pfedsim.core.method import (
    AtLeastZero,
    Count,
    Fed,
    Memory,
    Message,
    Method,
    Positive,
    Reply,
    ServerState,
    Share,
    Weights,
)
from pfedsim.methods.generator import Generator

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.core.job import Batch, Job


@dataclass(frozen=True)
class FedGen(Method):
    """FedAvg whose clients also train on generated features, which are made without any client's data. Clients send
    their label counts, and every client is sent the classes of all clients that have replied so far."""

    title = "FedGen"
    paper = "Zhu et al. 2021, Algorithm 1; alpha, beta, fade and sizes as in the pFedSim paper"
    elsewhere = (
        "The pFedSim author's benchmark fits the generator to the server's own classifier (when the paper was "
        "written, a random one that was never updated) instead of the uploaded ones, and leaves the generator in "
        "train mode at the clients, which makes its statistics drift. One library drops the KL term. The FedGen "
        "authors draw the labels of generated features from those of all clients; the benchmark draws them from "
        "the client's own, which costs much accuracy on small data (preset `reference`, which the reproduction of "
        "Table 3 uses). The FedGen authors distribute the set of all labels before the first round; here the "
        "server sends the classes named in replies so far."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {"labels": "own"}}

    search: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.1, 1.0, 10.0)}
    weights: Weights = "samples"
    alpha: Annotated[AtLeastZero, "weight of the classifier's loss on generated features"] = 10.0
    beta: Annotated[
        AtLeastZero, "weight of the pull towards the classifier's predictions on generated features"
    ] = 10.0
    fade: Annotated[Share, "alpha, beta and lr are multiplied by this after every round"] = 0.98
    noise: Annotated[Count, "width of the generator's noise"] = 32
    hidden: Annotated[Count, "width of the generator's hidden layer"] = 32
    steps: Annotated[Count, "training steps of the generator in a round"] = 5
    batch: Annotated[int, Ge(2), "generated features in a step"] = 32
    lr: Annotated[Positive, "the generator's learning rate"] = 3e-4
    labels: Annotated[
        Literal["all", "own"], "classes of generated features: those of all clients, or the client's own"
    ] = "all"

    def generator(self, fed: Fed) -> Generator:
        layout = fed.layout
        into_head = next(
            s[1]
            for s, at in zip(layout.shapes, layout.starts, strict=True)
            if len(s) == 2 and layout.head[at]
        )
        return Generator(fed.classes, self.noise, self.hidden, into_head)

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        known = {"known": theta.new_zeros(fed.classes)} if self.labels == "all" else {}
        return ServerState(0, theta, extra={**self.generator(fed).start(rng), **known})

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        names = ("g", "statistics", "known") if task == "train" else ()
        extra = {name: server.extra[name] for name in names if name in server.extra}
        return {i: Message(task, server.model, extra) for i in clients}

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        from torch.nn import functional as F

        if job.round == 0 or not len(classes := self._classes(job)):  # G is not trained yet
            return super().gradient(job, theta, batches)
        make, y = self.generator(job.fed), batches[0].y
        faded = max(1e-5, self.fade**job.round)
        said = job.head(theta, make(job.message.extra, y, job.rng)).softmax(1)
        # CE(f(x), y) + beta KL(said || f(x)), up to a constant
        targets = F.one_hot(y, job.fed.classes) + self.beta * faded * said
        drawn = _draw(classes, self.batch, job.rng)
        generated = make(job.message.extra, drawn, job.rng)
        on_generated, _ = job.head_grad(theta, generated, drawn)  # CE(phi(G(y')), y')
        ratio = self.batch / job.fed.settings.batch
        return job.grad(theta, batches[0], targets) + ratio * self.alpha * faded * on_generated

    def _classes(self, job: Job) -> Tensor:
        """The classes from which y' is drawn."""
        counts = job.labels.bincount() if self.labels == "own" else job.message.extra["known"]
        return counts.nonzero()[:, 0]

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        labels = job.labels.bincount(minlength=job.fed.classes).float()
        return job.reply(ends[-1], labels=labels), job.remember(ends[-1])

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "labels": (fed.classes,)}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        import torch
        from torch.nn import functional as F

        counts = torch.stack([r.extra["labels"] for r in replies])
        shares, qualified = counts / counts.sum(0), counts.sum(0).nonzero()[:, 0]
        # the teachers are this round's classifiers phi_i; entries that stay at the client are NaN
        teachers = [r.model.where(r.model.isfinite(), fed.initial) for r in replies if r.model is not None]
        make, state = self.generator(fed), dict(server.extra)
        if self.labels == "all":
            state["known"] = ((state["known"] + counts.sum(0)) > 0).float()
        for _ in range(self.steps):
            y = _draw(qualified, self.batch, rng)
            weights = [F.one_hot(y, fed.classes) * share[y, None] for share in shares]

            def by_features(z: Tensor, weights: list[Tensor] = weights) -> Tensor:
                """The gradient of sum_i c_i(y) / sum_j c_j(y) CE(phi_i(z), y)."""
                pairs = zip(teachers, weights, strict=True)
                return torch.stack([fed.net.head_grad(phi, z, w)[1] for phi, w in pairs]).sum(0)

            state = {**state, **make.step(state, y, rng, by_features, self.lr * self.fade**server.round)}
        return replace(server, model=self.mean(fed, server, replies), extra=state)


def _draw(labels: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw `count` of these labels uniformly."""
    import torch

    return labels[torch.randint(len(labels), (count,), generator=rng).to(labels.device)]
