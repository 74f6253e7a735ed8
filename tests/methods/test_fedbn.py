import pytest
import torch
from torch import nn

from pfedsim.core.layout import layout_of
from pfedsim.errors import Error
from pfedsim.methods import parse
from pfedsim.methods.fedbn import FedBN


class OddlyNamed(nn.Module):
    """Norm layers whose names do not say so, and a convolution whose name does."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.Conv2d(1, 4, 3)
        self.features = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4))
        self.zebra = nn.LayerNorm(4)
        self.classifier = nn.Linear(4, 10)

    def forward(self, x):
        return self.classifier(self.zebra(self.features(self.bn(x)).mean((2, 3))))


class WithoutNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn1 = nn.Flatten()
        self.classifier = nn.Linear(4, 10)


def test_norm_layers_are_found_by_type():
    """B6.6: fails where they are found by "bn" in the name, as then MobileNetV2 keeps nothing."""
    layout = layout_of(OddlyNamed())
    kept = FedBN().keeps(layout)
    names = {name for name in layout.names if layout.view(kept, name).all()}
    assert names == {
        "features.0.weight",
        "features.0.bias",
        "features.0.running_mean",
        "features.0.running_var",
        "features.3.weight",
        "features.3.bias",
        "zebra.weight",
        "zebra.bias",
    }
    assert not any(layout.view(kept, name).any() for name in set(layout.names) - names)


@pytest.mark.parametrize("name", ["fedbn", "fedap"])
def test_a_network_without_norm_layers_is_refused(name):
    method = parse(name)
    with pytest.raises(
        Error, match=f"{method.title} keeps norm layers at the clients, but this network has none"
    ):
        method.keeps(layout_of(WithoutNorm()))


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_norm_layers_stay_and_the_rest_is_averaged(session, rounds, buffers):
    made = session("fedbn", rounds=1, buffers=buffers)
    (only,) = rounds(made)
    layout, model = made.fed.layout, only.state.server.model
    assert model[layout.norm].isnan().all()
    assert model[~layout.norm].isfinite().all()
    kept = [only.state.memories[r.client].kept for r in only.replies]
    assert len(kept) == 2
    assert not torch.equal(*kept)
