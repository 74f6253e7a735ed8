"""Every draw has an address of its own: client, round and purpose tell streams apart in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import small
import torch

import pfedsim
from pfedsim.core.method import Fed, Method, Reply, ServerState
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split

QUIET = {"every": 0, "finetune": 0}


def twins(train: int = 24) -> Federation:
    """Two clients with the same samples."""
    one = small.table(train=(train,), test=12)
    split = one.partition.clients[0]
    same = Partition((split, Split(split.train.copy(), split.test.copy())), {}, one.data.digest)
    return Federation(one.data, same)


def trained(**settings: Any) -> pfedsim.Run:
    words = {"rounds": 1, "join": 1.0, "epochs": 2, "batch": 8, "lr": 0.1, "backend": "torch", "workers": 1}
    return pfedsim.train(twins(), "local", **{**words, "model": "small:Net", **settings})


def equal(run: pfedsim.Run) -> bool:
    """Whether the twins' models are the same bits."""
    a, b = (run.client(i).module.state_dict() for i in range(2))
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("settings", [{"model": "small:Dropping"}, {"shuffle": True}])
def test_clients_with_the_same_samples_draw_dropout_and_batches_of_their_own(settings: Any) -> None:
    assert equal(trained(score=QUIET))  # nothing is drawn: the same bits
    assert not equal(trained(score=QUIET, **settings))


@pytest.mark.parametrize("settings", [{"model": "small:Dropping"}, {"shuffle": True}])
def test_a_score_does_not_draw_from_the_training_stream(settings: Any) -> None:
    """The epochs before the second score of a run of one round are those of a second round, but for what they
    draw."""

    def losses(**more: Any) -> tuple[float, float]:
        one = trained(rounds=1, score={"every": 0, "finetune": 2}, **more)
        two = trained(rounds=2, score=QUIET, **more)
        return one.summary["finetuned"]["loss"], two.summary["served"]["loss"]

    plain, drawn = losses(), losses(**settings)
    assert plain[0] == plain[1]
    assert drawn[0] != drawn[1]


@dataclass(frozen=True)
class Drawing(Method):
    """The server notes a number in every round."""

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        server = super().aggregate(fed, server, task, replies, rng)
        return replace(server, extra={"drawn": torch.rand(3, generator=rng)})


def test_the_server_draws_anew_in_every_round() -> None:
    s = small.session(Drawing(), rounds=3)
    drawn = [tuple(round.server.extra["drawn"].tolist()) for round in small.rounds(s)]
    assert len(set(drawn)) == 3
