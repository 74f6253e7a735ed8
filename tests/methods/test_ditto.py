import plain
import pytest
import small

from pfedsim.methods import parse
from pfedsim.methods.ditto import Ditto


def test_the_personal_models_minimise_the_written_loss():
    """Three rounds: the common model is FedAvg's to the bit; v_i follows f_i + lam/2 |v - theta|^2 with the theta
    that was received, and is served."""
    s = plain.session(Ditto(lam=0.7), rounds=3)
    theta, trainable = s.fed.initial, s.fed.layout.trainable
    own = [s.fed.initial] * 3
    fedavg = small.rounds(plain.session(None, rounds=3))
    for round, other in zip(small.rounds(s), fedavg, strict=True):
        for i in range(3):
            own[i] = plain.sgd(
                s, i, own[i], penalty=lambda v, theta=theta: 0.7 / 2 * ((v - theta)[trainable] ** 2).sum()
            )
        theta = round.state.server.model
        assert theta.equal(other.state.server.model)
        for model, expected in zip(plain.served(s, round.state), own, strict=True):
            plain.close(model, expected, 1e-4)


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_without_the_pull_it_is_training_alone(buffers):
    (*_, ours), (*_, alone) = (
        [(s, r.state) for r in small.rounds(s)]
        for s in (
            plain.session(parse(m), rounds=3, join=0.67, buffers=buffers) for m in ("ditto(lam=0)", "local")
        )
    )
    took_part = ours[1].memories.keys()
    assert len(took_part) > 1
    for i in took_part:
        plain.close(plain.served(*ours)[i], plain.served(*alone)[i], 1e-6)


def test_a_client_that_never_took_part_is_served_the_common_model():
    s = plain.session(Ditto(), rounds=1, join=0.34)
    (round,) = small.rounds(s)
    absent = [i for i in range(3) if i not in round.state.memories]
    assert len(absent) == 2
    for i in absent:
        assert plain.served(s, round.state)[i].equal(round.state.server.model)


def test_the_personal_model_never_leaves_the_client():
    s = plain.session(Ditto(), rounds=2)
    *_, last = small.rounds(s)
    for reply in last.replies:
        assert not reply.extra
        assert not reply.models
        assert not reply.model.equal(last.state.memories[reply.client].extra["own"])
