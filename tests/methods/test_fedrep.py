import pytest
import torch

from pfedsim.core.client import train
from pfedsim.core.job import Job, Work
from pfedsim.core.method import Memory, Message
from pfedsim.errors import Error
from pfedsim.models.lenet5 import LeNet5


def test_each_phase_leaves_the_other_part_as_it_was(session):
    """Bitwise, while the running statistics of the frozen body follow the batches."""
    made = session("fedrep", epochs=3)
    layout, site = made.fed.layout, made.worker
    job = Job(site, Work(1, 0, Message("train", made.fed.initial), "train"), Memory())
    job.start = made.method.begin(job)
    phases = made.method.phases(job)
    assert [phase.epochs for phase in phases] == [2, 1]
    start, (first, second) = job.start.theta, train(made.method, job, phases)
    assert torch.equal(first[layout.body], start[layout.body])
    assert not torch.equal(first[layout.head], start[layout.head])
    assert torch.equal(second[layout.head], first[layout.head])
    assert not torch.equal(second[layout.body], first[layout.body])

    module = LeNet5((1, 32, 32), 10).train()
    module.load_state_dict(layout.named(start), strict=False)
    x, _ = job.part("train")
    with torch.no_grad():
        for _ in range(2):
            for part in x.split(64):
                module(part)
    state = module.state_dict()
    followed = layout.flat({name: state[name] for name in layout.names})
    torch.testing.assert_close(first[layout.buffers], followed[layout.buffers], rtol=1e-5, atol=1e-6)
    assert not torch.equal(second[layout.buffers], first[layout.buffers])


def test_without_an_epoch_for_the_classifier_it_is_refused(session):
    made = session("fedrep(body_epochs=2)", epochs=2)
    with pytest.raises(
        Error, match="epochs = 2 leaves no epoch for the classifier, because body_epochs = 2"
    ):
        made.begin()


def test_the_classifier_stays_at_home(session, rounds):
    made = session("fedrep", epochs=2, rounds=1)
    (only,) = rounds(made)
    assert only.state.server.model[made.fed.layout.head].isnan().all()
    assert only.state.server.model[made.fed.layout.body].isfinite().all()
