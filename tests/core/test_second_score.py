"""The score after local epochs starts from the served model, or from what a method answers to the task that it
names in `tunes`: by a plain torch loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import small
import torch
from torch import Tensor
from torch.nn import functional as F

from pfedsim.core.job import Job
from pfedsim.core.method import Fed, Message, Method, Phase, ServerState, StartingPoint
from pfedsim.core.rows import Rows
from pfedsim.core.server import State
from pfedsim.methods import parse
from pfedsim.runs.setup import Session

CLIENTS, EPOCHS = range(4), 3


@dataclass(frozen=True)
class Doubled(Method):
    """FedAvg whose clients serve twice the model, trained for an epoch more at the method's own rate."""

    def begin(self, job: Job) -> StartingPoint:
        scored = 2.0 if job.message.task == "score" else 1.0
        return StartingPoint(job.mine(job.message.model) * scored)

    def phases(self, job: Job) -> list[Phase]:
        if job.message.task == "score":
            return [Phase(job.fed.layout.trainable, 1, 0.03)]
        return super().phases(job)


@dataclass(frozen=True)
class Halved(Doubled):
    """The same; what the second score tunes is half the model."""

    tunes = "tune"

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        return {i: Message(task, server.model * (0.5 if task == "tune" else 1.0)) for i in clients}


def finished(spec: str | Method, **settings: Any) -> tuple[Session, State]:
    """A short run through the real loop; with half the clients a round, client by client not the same
    ones."""
    method = parse(spec) if isinstance(spec, str) else spec
    s = small.session(method, **{"rounds": 6, "join": 0.5, "epochs": 2, **settings})
    *_, last = small.rounds(s)
    return s, last.state


def tuned(s: Session, state: State) -> list[Tensor]:
    found = small.score(s, state, finetune=EPOCHS, models=True)
    return [c.model for c in found.clients if c.model is not None]


def own(s: Session, state: State, client: int, model: Tensor) -> Tensor:
    """A model with this client's own entries of what stays at home."""
    memory = state.memories.get(client)
    mine = (
        s.fed.initial
        if memory is None or memory.kept is None
        else s.fed.initial.masked_scatter(s.side.wire.kept, memory.kept)
    )
    return torch.where(s.side.wire.kept, mine, model)


def by_sgd(s: Session, client: int, start: Tensor, lr: float | None = None, epochs: int = EPOCHS) -> Tensor:
    """torch.optim.SGD on an ordinary module, over slices of the stored order; a batch of one is skipped."""
    module = small.module(s, start).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=lr or s.fed.settings.lr)
    x, y = small.normal(s, client)
    for _ in range(epochs):
        for k in range(0, len(y), s.fed.settings.batch):
            if len(y[k : k + s.fed.settings.batch]) > 1:
                optimiser.zero_grad()
                F.cross_entropy(
                    module(x[k : k + s.fed.settings.batch]), y[k : k + s.fed.settings.batch]
                ).backward()
                optimiser.step()
    return small.flat(s, module)


def mixed(s: Session, state: State, client: int) -> Tensor:
    """pFedSim's hand-out written out: extractors by similarity with own weight 1, the classifier the
    client's own."""
    personal, weights = state.server.personal, {**state.server.extra["similarity"].row(client), client: 1.0}
    assert isinstance(personal, Rows)
    total = sum(w * personal[j].double() for j, w in weights.items()) / sum(weights.values())
    assert isinstance(total, Tensor)
    return torch.where(s.fed.layout.head, personal[client], total.float())


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_pfedsim_starts_from_its_fresh_mix_and_the_clients_own_statistics(buffers: str) -> None:
    s, state = finished("pfedsim", buffers=buffers)
    assert state.server.personal is not None
    handed = s.method.send(s.fed, state.server, CLIENTS, "train")
    served = s.method.send(s.fed, state.server, CLIENTS, "score")
    apart = 0
    for client, model in enumerate(tuned(s, state)):
        start = own(s, state, client, handed[client].model)
        torch.testing.assert_close(
            start, own(s, state, client, mixed(s, state, client)), rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(model, by_sgd(s, client, start), rtol=1e-5, atol=1e-6)
        used = own(s, state, client, served[client].model)
        if not torch.allclose(start, used, atol=1e-3):  # who met no one is handed its own
            apart += 1
            assert not torch.allclose(model, by_sgd(s, client, used), atol=1e-4)
    assert apart >= 2


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_fedavg_starts_from_the_common_model(buffers: str) -> None:
    s, state = finished("fedavg", buffers=buffers)
    for client, model in enumerate(tuned(s, state)):
        torch.testing.assert_close(
            model, by_sgd(s, client, own(s, state, client, state.server.model)), rtol=1e-5, atol=1e-6
        )


def test_the_second_score_counts_in_epochs_even_where_rounds_count_in_steps() -> None:
    s, state = finished("fedavg", local_steps=1)
    for client, model in enumerate(tuned(s, state)):
        start = own(s, state, client, state.server.model)
        torch.testing.assert_close(model, by_sgd(s, client, start), rtol=1e-5, atol=1e-6)


def test_the_second_score_takes_the_learning_rate_that_the_next_round_would_have() -> None:
    s, state = finished("fedavg", lr_decay=0.8)
    for client, model in enumerate(tuned(s, state)):
        start = own(s, state, client, state.server.model)
        torch.testing.assert_close(
            model, by_sgd(s, client, start, s.fed.settings.lr * 0.8**6), rtol=1e-5, atol=1e-6
        )


def test_what_is_served_is_tuned() -> None:
    """Also where a method serves another model than it sends for training, after steps of its own."""
    s, state = finished(Doubled())
    for client, model in enumerate(tuned(s, state)):
        start = 2 * own(s, state, client, state.server.model)
        served = by_sgd(s, client, start, 0.03, epochs=1)
        torch.testing.assert_close(model, by_sgd(s, client, served), rtol=1e-4, atol=1e-5)


def test_a_method_may_answer_a_task_of_its_own_with_the_model_to_tune() -> None:
    s, state = finished(Halved())
    for client, model in enumerate(tuned(s, state)):
        start = own(s, state, client, state.server.model / 2)
        torch.testing.assert_close(model, by_sgd(s, client, start), rtol=1e-5, atol=1e-6)


def test_the_second_score_has_a_learning_rate_of_its_own_which_nothing_decays() -> None:
    s, state = finished("fedavg", lr_decay=0.8)
    found = small.score(s, state, finetune=EPOCHS, models=True, lr=0.02)
    for client, one in enumerate(found.clients):
        assert one.model is not None
        start = own(s, state, client, state.server.model)
        torch.testing.assert_close(one.model, by_sgd(s, client, start, 0.02), rtol=1e-5, atol=1e-6)


def test_local_only_goes_on_from_its_own_model() -> None:
    s, state = finished("local")
    for client, model in enumerate(tuned(s, state)):
        torch.testing.assert_close(
            model, by_sgd(s, client, own(s, state, client, s.fed.initial)), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("spec", ["fedprox(mu=3)", "feddyn(alpha=0.5)", "perfedavg(alpha=0.3, beta=0.05)"])
def test_methods_with_steps_of_their_own_get_the_same_plain_epochs(spec: str) -> None:
    """No pull, no memory, no rate of the method's: plain steps at the run's lr from the common model."""
    s, state = finished(spec)
    for client, model in enumerate(tuned(s, state)):
        torch.testing.assert_close(
            model, by_sgd(s, client, own(s, state, client, state.server.model)), rtol=1e-5, atol=1e-6
        )


def test_the_second_score_leaves_no_trace() -> None:
    """Served scores and memories are the same before and after it."""
    s, state = finished("pfedsim")
    before = small.score(s, state, models=True)
    first, second = tuned(s, state), tuned(s, state)
    after = small.score(s, state, models=True)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    for a, b in zip(before.clients, after.clients, strict=True):
        assert a.model is not None
        assert b.model is not None
        assert a.model.equal(b.model)


@pytest.mark.parametrize("name", ["fedala", "fedbabu"])
def test_what_is_drawn_for_the_served_model_is_drawn_again_before_it_is_tuned(name: str) -> None:
    """FedALA learns its mix on random samples, FedBABU tunes in a random order: the tuned model starts at the very
    model that is served."""
    s = small.session(parse(name), rounds=2, shuffle=True)
    state = list(small.rounds(s))[-1].state
    served = small.score(s, state, models=True).clients
    tuned = small.score(s, state, models=True, finetune=1, lr=1e-30).clients
    entries = s.fed.layout.trainable
    for a, b in zip(served, tuned, strict=True):
        assert a.model is not None
        assert b.model is not None
        assert a.model[entries].equal(b.model[entries])
