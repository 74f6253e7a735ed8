"""What the paper's twelve methods are held to at length elsewhere, for the other methods on a small table: processes,
interruptions and dropouts change no bit."""

from contextlib import ExitStack

import pytest
import small

from pfedsim.engines.dropouts import Dropouts, Dropping
from pfedsim.engines.pool import Pool
from pfedsim.methods import OTHERS, parse
from pfedsim.runs.state import from_tensors, to_tensors


def run(name, state=None, engine=lambda s: s.engine, **more):
    s = small.session(parse(name), small.table((20, 9, 33, 4, 12)), rounds=4, epochs=2, join=0.6, **more)
    return list(small.rounds(s, state, engine=engine(s)))


def same(a, b):
    x, y = to_tensors(a.state), to_tensors(b.state)
    return x.keys() == y.keys() and all(x[k].nan_to_num(9.0).equal(y[k].nan_to_num(9.0)) for k in x)


@pytest.mark.parametrize("name", OTHERS)
def test_workers_and_interruptions_change_no_bit(name):
    """Two processes; and a run that goes on from its state as files hold it, after every round."""
    serial = run(name)
    with ExitStack() as stack:
        pooled = run(name, engine=lambda s: stack.enter_context(Pool(s.worker, 2)))
    assert all(same(a, b) for a, b in zip(serial, pooled, strict=True))
    for k in range(3):
        tensors = {name: t.clone() for name, t in to_tensors(serial[k].state).items()}
        assert same(run(name, from_tensors(tensors))[-1], serial[-1])


@pytest.mark.parametrize("name", OTHERS)
def test_a_late_client_is_as_one_that_never_answers(name):
    runs = [
        run(name, engine=lambda s, d=dropouts: Dropping(s.engine, d, s.fed.settings.seed))
        for dropouts in (Dropouts(never_clients=(2,)), Dropouts(late_clients=(2,)))
    ]
    assert any(round.events for round in runs[0])
    assert all(same(a, b) for a, b in zip(*runs, strict=True))
    assert 2 not in runs[0][-1].state.memories
