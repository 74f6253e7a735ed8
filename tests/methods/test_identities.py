"""Equalities between methods that must hold to the bit, through the real loop."""

from functools import cache

import pytest
import torch

import pfedsim


@pytest.fixture(scope="module")
def finals():
    """Every client's final model of a short run; a run that was made is not made again."""

    @cache
    def run(method, clients=4, rounds=2, join=0.5, epochs=1, buffers="local"):
        federation = pfedsim.federate("digits", clients=clients, alpha=0.5)
        settings = {"rounds": rounds, "join": join, "epochs": epochs, "buffers": buffers, "batch": 64}
        done = pfedsim.train(federation, method, score={"every": 0, "finetune": 0}, **settings)
        return [done.client(i).module.state_dict() for i in range(clients)]

    return run


def same(a, b):
    return all(torch.equal(p[name], q[name]) for p, q in zip(a, b, strict=True) for name in p)


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_fedprox_without_pull_is_fedavg(finals, buffers):
    assert same(
        finals("fedprox(mu=0, weights=samples)", buffers=buffers), finals("fedavg", buffers=buffers)
    )


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_a_whole_run_of_warm_up_is_the_warm_up(finals, buffers):
    fedavg, fedbn = finals("fedavg", buffers=buffers), finals("fedbn", buffers=buffers)
    assert same(finals("pfedsim(rho=1)", buffers=buffers), fedavg)
    assert same(finals("fedap(rho=1)", buffers=buffers), fedbn)
    assert not same(fedavg, fedbn)  # else the equalities would say nothing


def test_local_only_shares_nothing_whatever_is_shared(finals):
    """Fails where only trained entries are kept, so that shared norm statistics would be averaged."""
    assert same(finals("local", buffers="shared"), finals("local", buffers="local"))


def test_pfedsim_with_one_client_a_round_is_training_alone(finals):
    alone = finals("local", join=0.25, rounds=4)
    assert same(finals("pfedsim(rho=0)", join=0.25, rounds=4), alone)
    assert same(finals("pfedsim:reference(rho=0)", join=0.25, rounds=4), alone)


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedper", "fedap", "pfedsim"])
def test_one_client_trains_alone_by_any_method(finals, method):
    assert same(
        finals(method, clients=1, rounds=2, join=1.0), finals("local", clients=1, rounds=2, join=1.0)
    )


@pytest.mark.parametrize(
    "method", ["fedprox", "feddyn", "fedgen", "perfedavg", "fedrep", "fedfomo", "fedap"]
)
@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_no_nan_of_a_kept_entry_reaches_a_final_model(finals, method, buffers):
    models = finals(method, epochs=2 if method == "fedrep" else 1, buffers=buffers)
    assert all(t.isfinite().all() for state in models for t in state.values())


def test_a_method_without_a_common_model_cannot_warm_up(finals):
    with pytest.raises(
        pfedsim.Error, match="FedFomo cannot be the warm-up, because it has no common model"
    ):
        finals("pfedsim(warmup=fedfomo)")
