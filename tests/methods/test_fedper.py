import torch


def test_bodies_are_averaged_by_samples_and_classifiers_stay(session, rounds):
    made = session("fedper", rounds=1)
    (only,) = rounds(made)
    layout = made.fed.layout
    total = sum(r.weight for r in only.replies)
    mean = sum(r.weight / total * r.model.double() for r in only.replies).float()
    torch.testing.assert_close(only.state.server.model[layout.body], mean[layout.body])
    assert only.state.server.model[layout.head].isnan().all()
