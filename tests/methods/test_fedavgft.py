import plain
import pytest
import small

from pfedsim.methods import parse


@pytest.mark.parametrize(
    ("spec", "parts"),
    [("fedavgft", ["trainable"]), ("fedavgft:head", ["head"]), ("fedavgft:gradual", ["head", "trainable"])],
)
def test_the_served_model_is_the_common_one_tuned(spec, parts):
    """Three epochs for each part, by plain SGD; the rounds themselves are FedAvg's to the bit."""
    method = parse(f"{spec}(tune_epochs=3)")
    s = plain.session(method, rounds=2)
    (*_, last), (*_, fedavg) = small.rounds(s), small.rounds(plain.session(None, rounds=2))
    assert last.state.server.model.equal(fedavg.state.server.model)
    for i, model in enumerate(plain.served(s, last.state)):
        expected = last.state.server.model
        for part in parts:
            expected = plain.sgd(s, i, expected, epochs=3, moves=getattr(s.fed.layout, part))
        plain.close(model, expected, 1e-4)
        assert not model.equal(last.state.server.model)


def test_tuning_leaves_no_trace():
    """A score between rounds changes nothing that comes after, and clients remember no tuned model."""
    s = plain.session(parse("fedavgft"), rounds=2)
    first, second = small.rounds(s)
    plain.served(s, first.state)
    (again,) = small.rounds(s, first.state)
    assert again.state.server.model.equal(second.state.server.model)
    assert all(not memory.extra for memory in second.state.memories.values())
