"""The clients' and the server's optimisers and the schedule: against torch.optim, and against the equations of the
papers in a few lines of NumPy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from torch.nn import functional as F

from pfedsim.core import optimisers
from pfedsim.core.client import run_client
from pfedsim.core.job import Work
from pfedsim.core.method import Memory, Message, Method
from pfedsim.core.optimisers import served
from pfedsim.core.settings import Settings
from pfedsim.engines.pool import Pool
from pfedsim.errors import Error
from pfedsim.methods import parse
from pfedsim.runs.config import check
from pfedsim.runs.state import from_tensors, to_tensors
from pfedsim.runs.unused import refuse_unused

ADAM = {"optimiser": {"rule": "adam", "betas": (0.8, 0.95), "epsilon": 1e-4}, "lr": 0.02, "decay": 0.05}
NESTEROV = {"optimiser": {"rule": "sgd", "nesterov": True}, "lr": 0.1, "momentum": 0.7, "decay": 0.05}


def in_torch(words: dict[str, Any], parameters: Any) -> torch.optim.Optimizer:
    if words["optimiser"]["rule"] == "adam":
        return torch.optim.Adam(parameters, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.05)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.7, weight_decay=0.05, nesterov=True)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("words", [ADAM, NESTEROV], ids=["adam", "nesterov"])
def test_clients_step_as_torch_does(words: dict[str, Any], backend: str) -> None:
    s = small.session(epochs=3, backend=backend, **words)
    reply, _ = run_client(s.worker, Work(2, 0, Message("train", s.fed.initial), "train"), Memory())
    x, y = small.normal(s, 2)
    module = small.module(s).train()
    optimiser = in_torch(words, module.parameters())
    for _ in range(3):
        for part in torch.arange(len(y)).split(8):
            if len(part) > 1:
                optimiser.zero_grad()
                F.cross_entropy(module(x[part]), y[part]).backward()
                optimiser.step()
    assert reply.model is not None
    travels = ~s.worker.wire.kept
    torch.testing.assert_close(reply.model[travels], small.flat(s, module)[travels], rtol=1e-4, atol=1e-5)


def test_sgd_without_nesterov_is_the_default() -> None:
    s, plain = (small.session(momentum=0.5, **words) for words in ({"optimiser": {"rule": "sgd"}}, {}))
    a, b = (list(small.rounds(one))[-1].server.model[~s.side.wire.kept] for one in (s, plain))
    assert a.equal(b)


def test_an_optimiser_does_not_outlive_its_phase() -> None:
    """Two clients' works one after another, and the same work again."""
    s = small.session(**ADAM)
    work = Work(0, 0, Message("train", s.fed.initial), "train")
    first, again = (run_client(s.worker, work, Memory())[0].model for _ in range(2))
    assert first is not None
    assert again is not None
    assert first[~s.worker.wire.kept].equal(again[~s.worker.wire.kept])


def test_schedules_in_numbers() -> None:
    cosine = Settings(rounds=10, schedule={"rule": "cosine", "floor": 0.1})  # type: ignore[arg-type]
    assert [cosine.pace(0), cosine.pace(5), cosine.pace(10), cosine.pace(15)] == pytest.approx(
        [1, 0.55, 0.1, 0.1]
    )
    assert cosine.pace(2) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 0.2)) / 2)
    step = Settings(rounds=10, schedule={"rule": "step", "every": 3, "factor": 0.5})  # type: ignore[arg-type]
    assert [step.pace(r) for r in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert Settings(lr_decay=0.9).pace(2) == 0.9**2


def test_a_scheduled_round_trains_at_its_own_rate() -> None:
    s = small.session(schedule={"rule": "step", "every": 1, "factor": 0.5}, lr=0.2)
    plain = small.session(lr=0.1)
    a, b = (
        run_client(one.worker, Work(0, r, Message("train", s.fed.initial), "train"), Memory())[0].model
        for one, r in ((s, 1), (plain, 1))
    )
    assert a is not None
    assert b is not None
    assert a[~s.worker.wire.kept].equal(b[~s.worker.wire.kept])


def by_hand(rule: str, means: list[np.ndarray], start: np.ndarray) -> list[np.ndarray]:
    """Reddi et al. 2021, Algorithm 2, and FedAvgM: `means` are the averages of the clients' steps."""
    x, m, v, found = start, 0.0, np.full_like(start, 0.05**2), []
    for step in means:
        if rule == "momentum":
            m = 0.6 * m + step
            x = x + 0.5 * m
        else:
            m = 0.7 * m + 0.3 * step
            v = 0.9 * v + 0.1 * step**2 if rule == "adam" else v - 0.1 * step**2 * np.sign(v - step**2)
            x = x + 0.5 * m / (np.sqrt(v) + 0.05)
        found.append(x)
    return found


OPTIONS = {
    "momentum": {"rule": "momentum", "lr": 0.5, "momentum": 0.6},
    "adam": {"rule": "adam", "lr": 0.5, "betas": (0.7, 0.9), "tau": 0.05},
    "yogi": {"rule": "yogi", "lr": 0.5, "betas": (0.7, 0.9), "tau": 0.05},
}


@pytest.mark.parametrize("buffers", ["local", "shared"])
@pytest.mark.parametrize("rule", OPTIONS)
def test_the_server_steps_as_the_papers_say(rule: str, buffers: str) -> None:
    s = small.session(rounds=4, server_optimiser=OPTIONS[rule], buffers=buffers)
    trainable, server, means, models = s.fed.layout.trainable, s.side.begin(), [], []
    for r in small.rounds(s, server):
        weights = np.array([reply.weight for reply in r.replies])
        sent = np.stack([reply.model[trainable].double().numpy() for reply in r.replies])  # type: ignore[index]
        means.append(weights @ sent / weights.sum() - server.model[trainable].double().numpy())
        server = r.server
        models.append(server.model[trainable].double().numpy())
        if buffers == "shared":  # statistics are means as ever
            held = s.fed.layout.buffers
            theirs = np.stack([reply.model[held].double().numpy() for reply in r.replies])  # type: ignore[index]
            np.testing.assert_allclose(
                server.model[held], weights @ theirs / weights.sum(), rtol=1e-5, atol=1e-6
            )
    wanted = by_hand(rule, means, s.fed.initial[trainable].double().numpy())
    for ours, theirs in zip(models, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", OPTIONS)
def test_a_run_goes_on_from_its_moments(rule: str) -> None:
    s = small.session(rounds=4, server_optimiser=OPTIONS[rule], optimiser={"rule": "adam"}, lr=0.01)
    whole = list(small.rounds(s))
    state = from_tensors({name: t.clone() for name, t in to_tensors(whole[1].state).items()})
    *_, rest = small.rounds(s, state)
    travels = ~s.side.wire.kept
    assert rest.server.model[travels].equal(whole[-1].server.model[travels])
    without = replace(state, server=replace(state.server, moments={}))
    *_, other = small.rounds(s, without)
    assert not other.server.model[travels].equal(whole[-1].server.model[travels])


def test_the_pool_takes_the_same_steps() -> None:
    s = small.session(server_optimiser=OPTIONS["yogi"], **ADAM)
    pool = Pool(s.worker, 2)
    try:
        *_, apart = small.rounds(s, engine=pool)
    finally:
        pool.close()
    *_, here = small.rounds(s)
    travels = ~s.side.wire.kept
    assert apart.server.model[travels].equal(here.server.model[travels])


def test_the_switch_of_two_stages_hands_on_the_servers_step() -> None:
    s = small.session(parse("pfedsim(rho=0.5)"), rounds=2, server_optimiser=OPTIONS["momentum"])
    first, last = small.rounds(s)
    travels = ~s.side.wire.kept
    assert first.server.personal is not None
    assert first.server.personal.default[travels].equal(first.server.model[travels])
    assert last.server.model[travels].equal(first.server.model[travels])


def test_where_there_is_no_common_model_it_has_no_effect() -> None:
    s = small.session(parse("fedfomo"), rounds=1, server_optimiser=OPTIONS["adam"])
    (only,) = small.rounds(s)
    assert [e["why"] for e in only.events] == [
        "FedFomo.aggregate leaves the common model as it is, so server_optimiser.rule has no effect"
    ]


def test_a_step_that_diverges_is_named_and_no_client_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr(optimisers, "served", lambda *given: steps.append(1) or served(*given))
    s = small.session(Method(), rounds=1, server_optimiser={"rule": "momentum", "lr": 1e60})
    with pytest.raises(
        Error, match=r"server_optimiser.rule = 'momentum': after its step its model is not finite"
    ):
        list(small.rounds(s))
    assert len(steps) == 1  # not again without one client after the other


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            {"optimiser": {"rule": "adam"}, "momentum": 0.9},
            "momentum has no effect on the optimiser 'adam'",
        ),
        ({"optimiser": {"rule": "sgd", "nesterov": True}}, "nesterov has no effect without momentum"),
        ({"schedule": {"rule": "cosine"}, "lr_decay": 0.9}, "exclude each other"),
        ({"optimiser": {"rule": "adan"}}, "optimiser.rule = 'adan'"),
        ({"optimiser": {}}, "optimiser needs optimiser.rule"),
        ({"server_optimiser": {"rule": "adam", "tauu": 1}}, "did you mean 'server_optimiser.tau'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(words: dict[str, Any], why: str) -> None:
    with pytest.raises(Error, match=why):
        check(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            {"optimiser": {"rule": "sgd", "epsilon": 1e-3}},
            "optimiser.epsilon has no effect on the rule 'sgd'",
        ),
        ({"schedule": {"rule": "cosine", "every": 3}}, "schedule.every has no effect on the rule 'cosine'"),
        (
            {"server_optimiser": {"rule": "yogi", "momentum": 0.5}},
            "momentum has no effect on the rule 'yogi'",
        ),
        (
            {"server_optimiser": {"rule": "yogi"}, "method": "local"},
            "no effect on local: there is no common model",
        ),
    ],
)
def test_settings_without_effect_are_refused(words: dict[str, Any], why: str) -> None:
    with pytest.raises(Error, match=why):
        refuse_unused(words, check(words))


def test_defaults_leave_no_mark_in_a_configuration(tmp_path: Path) -> None:
    words = check({"method": "fedavg"}).plain()
    assert not {"optimiser", "schedule", "server_optimiser"} & words.keys()
