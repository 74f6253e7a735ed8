from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pfedsim.core.layout import layout_of
from pfedsim.errors import Error


class Odd(nn.Module):
    """Names that mean nothing: `bn` is no norm layer, `zebra` and `group` are; the head has norm and two
    linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.Linear(4, 5)
        self.zebra = nn.BatchNorm1d(5)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.group = nn.Sequential(nn.GroupNorm(1, 5), nn.LayerNorm(5), nn.BatchNorm1d(5, affine=False))
        self.classifier_of_old = nn.Linear(5, 5)
        self.answer = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
        self.register_buffer("constant", torch.ones(2))


GROUPS = {
    "head": {
        "answer.0.weight",
        "answer.0.bias",
        "answer.1.weight",
        "answer.1.bias",
        "answer.1.running_mean",
        "answer.1.running_var",
        "answer.2.weight",
        "answer.2.bias",
    },
    "norm": {
        "zebra.weight",
        "zebra.bias",
        "zebra.running_mean",
        "zebra.running_var",
        "group.0.weight",
        "group.0.bias",
        "group.1.weight",
        "group.1.bias",
        "group.2.running_mean",
        "group.2.running_var",
        "answer.1.weight",
        "answer.1.bias",
        "answer.1.running_mean",
        "answer.1.running_var",
    },
    "buffers": {
        "zebra.running_mean",
        "zebra.running_var",
        "group.2.running_mean",
        "group.2.running_var",
        "answer.1.running_mean",
        "answer.1.running_var",
        "constant",
    },
    "trainable": {
        "bn.weight",
        "bn.bias",
        "zebra.weight",
        "zebra.bias",
        "group.0.weight",
        "group.0.bias",
        "group.1.weight",
        "group.1.bias",
        "classifier_of_old.weight",
        "classifier_of_old.bias",
        "answer.0.weight",
        "answer.0.bias",
        "answer.1.weight",
        "answer.1.bias",
        "answer.2.weight",
        "answer.2.bias",
    },
}
GROUPS["body"] = GROUPS["trainable"] - GROUPS["head"]


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_groups_are_found_by_module_type_whatever_the_names(group: str) -> None:
    layout = layout_of(Odd(), "answer")
    mask = getattr(layout, group)
    for name in layout.names:
        inside = layout.view(mask, name)
        assert bool(inside.all()) == (name in GROUPS[group]), name
        assert bool(inside.any()) == (name in GROUPS[group]), name


def test_batch_counters_are_left_out_and_norm_layers_are_listed_with_their_channels() -> None:
    layout = layout_of(Odd(), "answer")
    assert not [name for name in layout.names if "num_batches" in name]
    assert layout.norms == (("zebra", 5), ("group.0", 5), ("group.1", 5), ("group.2", 5), ("answer.1", 7))


def test_rows_are_the_last_linear_layer_of_the_head() -> None:
    module = Odd()
    layout = layout_of(module, "answer")
    theta = layout.flat({k: v for k, v in module.state_dict().items() if "num_batches" not in k})
    assert layout.last == "answer.2.weight"
    assert layout.rows(theta).equal(module.answer[2].weight)


@given(st.integers(0, 2**32))
def test_flat_and_named_are_inverse_and_views_share_memory(seed: int) -> None:
    layout = layout_of(Odd(), "answer")
    theta = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed))
    assert layout.flat(layout.named(theta)).equal(theta)
    layout.view(theta, "zebra.bias")[2] = 99.0
    assert int((theta == 99.0).nonzero()) == layout.starts[layout.names.index("zebra.bias")] + 2


def test_views_of_several_models_at_once() -> None:
    layout = layout_of(Odd(), "answer")
    thetas = torch.randn(3, layout.size)
    for i in range(3):
        assert layout.rows(thetas)[i].equal(layout.rows(thetas[i]))


def test_every_entry_knows_its_tensor() -> None:
    layout = layout_of(Odd(), "answer")
    names = [layout.where(i) for i in range(layout.size)]
    assert [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n] == list(layout.names)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("bn.bias"), "bn.bias"),
        (lambda t: t.update(stranger=torch.zeros(1)), "stranger"),
        (lambda t: t.update({"bn.bias": torch.zeros(4)}), "bn.bias"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change, named: str) -> None:  # type: ignore[no-untyped-def]
    layout = layout_of(Odd(), "answer")
    tensors = dict(layout.named(torch.zeros(layout.size)))
    change(tensors)
    with pytest.raises(Error, match=named):
        layout.flat(tensors)


def test_an_unknown_tensor_is_refused_by_name() -> None:
    layout = layout_of(Odd(), "answer")
    with pytest.raises(Error, match="nosuch"):
        layout.view(torch.zeros(layout.size), "nosuch")


def _changed(**members: nn.Module | Tensor) -> nn.Module:
    module = nn.Module()
    module.first = nn.Linear(2, 2)
    module.classifier = nn.Linear(2, 2)
    for name, member in members.items():
        if isinstance(member, nn.Module):
            setattr(module, name, member)
        else:
            module.register_buffer(name, member)
    return module


def test_tensors_of_another_type_are_refused_by_name() -> None:
    with pytest.raises(Error, match=r"'table' is int64.*float32"):
        layout_of(_changed(table=torch.zeros(2, dtype=torch.int64)), "classifier")
    with pytest.raises(Error, match=r"'wide\.weight' is float64"):
        layout_of(_changed(wide=nn.Linear(2, 2).double()), "classifier")


def test_tied_tensors_are_refused_by_both_names() -> None:
    module = _changed(other=nn.Linear(2, 2))
    module.other.weight = module.first.weight
    with pytest.raises(Error, match=r"'first\.weight' and 'other\.weight' are tied"):
        layout_of(module, "classifier")


def test_a_norm_layer_without_momentum_is_refused_by_name() -> None:
    with pytest.raises(Error, match=r"'steady'.*momentum=None"):
        layout_of(_changed(steady=nn.BatchNorm1d(2, momentum=None)), "classifier")


def test_no_classifier_is_refused_with_the_papers_reason() -> None:
    with pytest.raises(
        Error, match=r"(?s)'tail'.*image segmentation and content generation.*name yours as head"
    ):
        layout_of(_changed(), "tail")
    with pytest.raises(Error, match="no linear layer"):
        layout_of(_changed(tail=nn.ReLU()), "tail")


def test_the_bias_and_the_inside_of_a_module_are_masks_by_name() -> None:
    layout = layout_of(Odd(), "answer")
    theta = torch.arange(layout.size)
    assert theta[layout.bias].equal(layout.view(theta, "answer.2.bias"))
    inside = [n for n in layout.names if n.startswith("group.")]
    assert theta[layout.inside("group")].equal(
        torch.cat([layout.view(theta, n).reshape(-1) for n in inside])
    )
    with pytest.raises(Error, match="no tensor inside 'classifier'"):
        layout.inside("classifier")
    bare = Odd()
    bare.answer = nn.Sequential(nn.Linear(5, 3, bias=False))
    assert not layout_of(bare, "answer").bias.any()
