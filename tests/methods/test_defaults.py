"""Every option's default, as the papers and the protocol have it, written out; and that options reach what
they govern."""

import math
from dataclasses import asdict, replace

import pytest
import torch

from pfedsim.core.method import Reply
from pfedsim.methods import METHODS, make, parse

DEFAULTS = {
    "local": {},
    "fedavg": {"weights": "samples"},
    "fedprox": {"weights": "uniform", "mu": 1.0},
    "feddyn": {"weights": "uniform", "alpha": 0.01, "clip": 10.0},
    "fedgen": {
        "weights": "samples",
        "alpha": 10.0,
        "beta": 10.0,
        "fade": 0.98,
        "noise": 32,
        "hidden": 32,
        "steps": 5,
        "batch": 32,
        "lr": 3e-4,
        "labels": "all",
    },
    "fedbn": {"weights": "samples"},
    "perfedavg": {"weights": "uniform", "alpha": 0.01, "beta": 0.001},
    "fedper": {"weights": "samples"},
    "fedrep": {"weights": "samples", "body_epochs": 1},
    "fedfomo": {"validation": 0.2, "models": 5, "baseline": "current"},
    "fedap": {"weights": "samples", "rho": 0.5, "mu": 0.5},
    "pfedsim": {"rho": 0.5, "warmup": "fedavg", "similarity": "classwise", "own": 1.0},
    "fedavgft": {"weights": "samples", "part": "all", "tune_epochs": 5},
    "fedavgm": {"weights": "samples", "beta": 0.9},
    "scaffold": {"weights": "uniform", "eta_g": 1.0},
    "ditto": {"weights": "samples", "lam": 1.0},
    "apfl": {"weights": "uniform", "alpha": 0.5, "adaptive": True},
    "fedbabu": {"weights": "samples", "tune_epochs": 5},
    "fedala": {"weights": "samples", "part": "head", "eta": 1.0, "share": 0.8, "threshold": 0.1},
    "fedpac": {"weights": "samples", "lam": 1.0, "head_epochs": 1, "head_lr": 0.1},
    "fedamp": {"lam": 1.0, "alpha": 1.0, "sigma": 1.0},
    "pfedgraph": {"alpha": 0.8, "lam": 0.01},
    "moon": {"weights": "samples", "mu": 1.0, "temperature": 0.5},
    "fedrod": {"weights": "samples", "gamma": 1.0},
    "fedcp": {"weights": "samples", "lam": 5.0},
    "gpfl": {"weights": "samples", "lam": 0.01, "mu": 0.1},
    "feddbe": {"weights": "samples", "kappa": 50.0},
    "cwfedavg": {"weights": "samples", "part": "all", "lam": 10.0},
    "knnper": {"weights": "samples", "k": 7, "lam": 0.5, "scale": 1.0},
}


def test_every_method_has_its_row():
    assert list(DEFAULTS) == list(METHODS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_protocols(name):
    assert asdict(parse(name)) == DEFAULTS[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_tuning_tries_are_valid_options_and_hold_the_default(name):
    for option, values in METHODS[name].search.items():
        assert len({*values}) == len(values) > 1
        for value in values:
            assert getattr(make(METHODS[name], {option: value}), option) == value
        assert DEFAULTS[name][option] in values


@pytest.mark.parametrize(
    ("preset", "form", "own"),
    [("paper", "classwise", 1.0), ("reference", "mean", 9.210340371976182), ("uniform", "constant", 1.0)],
)
def test_presets_set_form_and_own_weight_and_nothing_else(preset, form, own):
    assert asdict(parse(f"pfedsim:{preset}")) == {
        **DEFAULTS["pfedsim"],
        "similarity": form,
        "own": pytest.approx(own, rel=1e-12),
    }
    assert parse(f"pfedsim:{preset}").second() == type(parse("pfedsim").second())(
        form, parse(f"pfedsim:{preset}").own
    )


def test_the_forms_of_authors_and_benchmark_have_presets():
    assert asdict(parse("fedgen:reference")) == {**DEFAULTS["fedgen"], "labels": "own"}
    assert asdict(parse("fedfomo:authors")) == {**DEFAULTS["fedfomo"], "baseline": "before"}


def replies_of(fed, weights, seed=0):
    """{client: train samples} -> replies with models around the initial one."""
    rng = torch.Generator().manual_seed(seed)
    return [
        Reply(i, float(w), fed.initial + torch.randn(fed.layout.size, generator=rng))
        for i, w in weights.items()
    ]


@pytest.mark.parametrize(
    ("spec", "uniform"),
    [
        ("fedavg", False),
        ("fedprox", True),
        ("perfedavg", True),
        ("fedbn", False),
        ("fedper", False),
        ("fedrep", False),
        ("pfedsim", False),
        ("fedap", False),
        ("fedap(weights=uniform)", True),
        ("fedavg(weights=uniform)", True),
        ("fedprox(weights=samples)", False),
        ("pfedsim(warmup=fedprox)", True),
        ("pfedsim(warmup=fedprox(weights=samples))", False),
    ],
)
def test_the_mean_is_by_samples_or_uniform(small_fed, spec, uniform):
    """One round of the server, for two-stage methods of the warm-up; norm statistics count by samples
    either way."""
    method, fed = (
        parse(spec),
        replace(small_fed, settings=small_fed.settings.model_copy(update={"epochs": 2})),
    )
    replies = replies_of(fed, {0: 1, 2: 3, 3: 6})
    server = method.aggregate(
        fed, method.init(fed, fed.initial, torch.Generator()), "train", replies, torch.Generator()
    )
    first, second, third = (r.model.double() for r in replies)
    by_samples, alike = (first + 3 * second + 6 * third) / 10, (first + second + third) / 3
    expected = torch.where(fed.layout.buffers, by_samples, alike) if uniform else by_samples
    torch.testing.assert_close(server.model.double(), expected, rtol=1e-6, atol=1e-6)


def test_pfedsim_uniform_is_the_plain_mean_of_oneself_and_all_ever_met(small_fed):
    fed, method, rng = small_fed, parse("pfedsim:uniform(rho=0)"), torch.Generator()
    server, models, met = method.init(fed, fed.initial, rng), {}, {i: {i} for i in range(4)}
    for number, together in enumerate(([0, 1], [1, 2], [0, 1])):
        replies = replies_of(fed, dict.fromkeys(together, 5), seed=number)
        server = replace(method.aggregate(fed, server, "train", replies, rng), round=number + 1)
        for reply in replies:
            models[reply.client] = reply.model.tolist()
            met[reply.client] |= set(together)
    assert met == {0: {0, 1}, 1: {0, 1, 2}, 2: {1, 2}, 3: {3}}
    models[3] = fed.initial.tolist()  # never took part
    for i, message in method.send(fed, server, range(4), "train").items():
        for k, value in enumerate(message.model.tolist()):
            mean = sum(models[j][k] for j in met[i]) / len(met[i])
            assert value == pytest.approx(models[i][k] if fed.layout.head[k] else mean, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("rho", "rounds", "warm"),
    [
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.5, 200, 100),
        (0.5, 5, 2),
        (0.3, 10, 3),
        (0.99, 10, 9),
        (0, 4, 0),
        (1, 4, 4),
        (0.1, 5, 0),
    ],
)
@pytest.mark.parametrize("name", ["pfedsim", "fedap"])
def test_warm_rounds_are_the_floor_of_rho_times_all(small_fed, name, rho, rounds, warm):
    """0.29 * 100 is 28.999... in floating point: 29 rounds all the same."""
    method, rng = parse(f"{name}(rho={rho})"), torch.Generator()
    fed = replace(small_fed, settings=small_fed.settings.model_copy(update={"rounds": rounds}))
    server, stages = method.init(fed, fed.initial, rng), []
    for number in range(rounds):
        stages.append(method.send(fed, server, [0], "train")[0].stage)
        replies = replies_of(fed, {0: 5, 1: 5}, seed=number)
        common = server.personal is None
        server = replace(method.aggregate(fed, server, "train", replies, rng), round=number + 1)
        if common and server.personal is not None:  # at the switch every client gets the common model
            assert server.personal.ids == []
            assert server.personal[3].equal(server.model)
    assert stages == ["warm"] * warm + [""] * (rounds - warm)


def distance(a, b, channels):
    """Over the layers, the root of the squared distances of means and deviations."""
    total, at = 0.0, 0
    for c in channels:
        total += math.sqrt(
            sum(
                (float(p) - float(q)) ** 2
                for p, q in zip(a[at : at + 2 * c], b[at : at + 2 * c], strict=True)
            )
        )
        at += 2 * c
    return total


@pytest.mark.parametrize(("spec", "mu"), [("fedap(rho=0, mu=0.9)", 0.9), ("fedap(rho=0)", 0.5)])
def test_fedap_mixes_with_its_mu_end_to_end(session, rounds, spec, mu):
    """Through the real loop: own share mu, the rest by nearness of the statistics that clients gave."""
    made = session(spec, rounds=2)
    server = rounds(made)[-1].state.server
    statistics, channels, sent = (
        server.extra["statistics"],
        [c for _, c in made.fed.layout.norms],
        ~made.side.wire.kept,
    )
    for i, message in made.method.send(made.fed, server, range(4), "score").items():
        near = {j: 1 / distance(statistics[i], statistics[j], channels) for j in range(4) if j != i}
        others = sum(w / sum(near.values()) * server.personal[j].double() for j, w in near.items())
        expected = mu * server.personal[i].double() + (1 - mu) * others
        torch.testing.assert_close(message.model[sent].double(), expected[sent], rtol=1e-5, atol=1e-6)


def test_fedap_uniform_warms_up_uniformly_end_to_end(session, rounds):
    """The common model after the warm-up is the plain mean of what clients sent, and not the mean by
    samples."""
    made = session("fedap(rho=0.5, weights=uniform)", rounds=2)
    first = rounds(made)[0]
    models, weights = [r.model.double() for r in first.replies], [r.weight for r in first.replies]
    assert len(set(weights)) > 1
    sent = ~made.side.wire.kept
    plain = sum(models) / len(models)
    by_samples = sum(w * m for w, m in zip(weights, models, strict=True)) / sum(weights)
    torch.testing.assert_close(first.state.server.model[sent].double(), plain[sent], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(plain[sent], by_samples[sent], atol=1e-5)
