import plain
import small
import torch

from pfedsim.methods.fedbabu import FedBABU


def test_bodies_are_averaged_and_classifiers_stay_at_their_start():
    """Two rounds by plain SGD over the body; what is served has been tuned as a whole, which nobody remembers."""
    s = plain.session(FedBABU(tune_epochs=3), rounds=2)
    layout, theta = s.fed.layout, s.fed.initial
    for round in small.rounds(s):
        models = [plain.sgd(s, i, theta, moves=layout.body) for i in range(3)]
        theta = plain.mean(models, [20.0, 9.0, 33.0]).where(~layout.head, s.fed.initial)
        sent = ~layout.head
        plain.close(round.state.server.model[sent], theta[sent], 1e-4)
        for memory in round.state.memories.values():
            assert memory.kept.equal(s.fed.initial[layout.head])
    for i, model in enumerate(plain.served(s, round.state)):
        plain.close(model, plain.sgd(s, i, theta, epochs=3), 1e-3)


def test_the_classifier_does_not_travel_and_weight_decay_does_not_move_it():
    s = plain.session(FedBABU(), rounds=2, decay=0.1, momentum=0.5)
    *_, last = small.rounds(s)
    layout = s.fed.layout
    assert last.state.server.model[layout.head].isnan().all()
    assert last.traffic[0] == (4 * int((~layout.head).sum()),) * 2
    for memory in last.state.memories.values():
        assert memory.kept.equal(s.fed.initial[layout.head])
    assert not torch.equal(last.state.server.model[layout.body], s.fed.initial[layout.body])
