from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim import models
from pfedsim.core.layout import layout_of
from pfedsim.errors import Error
from pfedsim.runs.network import initial_model


@pytest.mark.parametrize(
    ("shape", "classes", "trainable", "head"),
    [((3, 32, 32), 10, 62_050, 850), ((1, 28, 28), 62, 48_890, 5_270)],
)
def test_lenet5_has_the_papers_parameters(
    shape: tuple[int, ...], classes: int, trainable: int, head: int
) -> None:
    module = models.build("lenet5", shape, classes)
    layout = layout_of(module, "classifier")
    assert sum(p.numel() for p in module.parameters()) == trainable
    assert (int(layout.trainable.sum()), int(layout.head.sum()), int(layout.body.sum())) == (
        trainable,
        head,
        trainable - head,
    )
    assert int(layout.buffers.sum()) == 44  # running mean and variance of 6 + 16 channels
    assert layout.size == trainable + 44
    assert int((layout.norm & layout.trainable).sum()) == 44


def test_lenet5_is_the_chain_of_the_paper_in_torchs_own_layers() -> None:
    module = models.build("lenet5", (3, 32, 32), 10)
    chain = nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    chain.load_state_dict(dict(zip(chain.state_dict(), module.state_dict().values(), strict=True)))
    x = torch.randn(4, 3, 32, 32)
    for mode in (True, False):
        assert module.train(mode)(x).equal(chain.train(mode)(x))


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 16, 40), (4, 33, 17), (3, 64, 64)])
def test_lenet5_takes_any_image_that_is_large_enough(shape: tuple[int, ...]) -> None:
    assert models.build("lenet5", shape, 5)(torch.zeros(3, *shape)).shape == (3, 5)


@pytest.mark.parametrize("shape", [(1, 15, 32), (3, 32, 8), (32, 32), (20,)])
def test_lenet5_refuses_what_is_too_small_or_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(Error, match="at least 16 x 16"):
        models.build("lenet5", shape, 10)


def test_cnn4_is_the_chain_of_pfllib_in_torchs_own_layers() -> None:
    module = models.build("cnn4", (3, 32, 32), 10)
    chain = nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
    chain.load_state_dict(dict(zip(chain.state_dict(), module.state_dict().values(), strict=True)))
    x = torch.randn(4, 3, 32, 32)
    assert module(x).equal(chain(x))
    assert sum(p.numel() for p in module.parameters()) == 2432 + 51_264 + 819_712 + 5_130
    assert models.build("cnn4", (1, 16, 40), 5)(torch.zeros(3, 1, 16, 40)).shape == (3, 5)
    with pytest.raises(Error, match="cnn4 takes images"):
        models.build("cnn4", (1, 15, 32), 10)


def test_the_initial_model_comes_from_the_seed_alone() -> None:
    _, _, first = initial_model("lenet5", "classifier", (1, 28, 28), 10, 5)
    torch.rand(3)
    _, _, again = initial_model("lenet5", "classifier", (1, 28, 28), 10, 5)
    _, _, other = initial_model("lenet5", "classifier", (1, 28, 28), 10, 6)
    assert first.equal(again)
    assert not first.equal(other)


# users' own

MINE = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.flat = nn.Flatten()
        self.tail = nn.Linear(shape[0] * shape[1], classes)
    def forward(self, x):
        return self.tail(self.flat(x))

class Fixed(Mine):
    def __init__(self):
        super().__init__((2, 3), 4)

class Wide(Mine):
    def __init__(self, shape, classes):
        super().__init__(shape, classes + 1)

class Two(Mine):
    def forward(self, x):
        return super().forward(x), x

class Needy(Mine):
    def __init__(self, width):
        super().__init__((2, 3), width)

class Failing(Mine):
    def forward(self, x):
        raise RuntimeError("sizes do not match")

class NoModule:
    pass
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_networks.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("name", ["Mine", "Fixed"])
def test_a_users_class_from_a_file(mine: Path, name: str) -> None:
    module = models.build(f"{mine}:{name}", (2, 3), 4)
    assert type(module).__name__ == name
    assert module(torch.zeros(5, 2, 3)).shape == (5, 4)


def test_a_users_class_from_a_module(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine.parent))
    mine.rename(mine.with_name("networks_by_module.py"))
    assert type(models.build("networks_by_module:Mine", (2, 3), 4)).__name__ == "Mine"


def test_the_head_may_have_another_name(mine: Path) -> None:
    _, layout, _ = initial_model(f"{mine}:Mine", "tail", (2, 3), 4, 1)
    assert int(layout.head.sum()) == 6 * 4 + 4
    with pytest.raises(Error, match="not suitable for models without a classifier"):
        initial_model(f"{mine}:Mine", "classifier", (2, 3), 4, 1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Wide", r"returns \(2, 5\) for two samples; a classifier of 4 classes returns \(2, 4\)"),
        ("Two", r"returns tuple for two samples"),
        ("Needy", r"call its parameters shape and classes"),
        ("Failing", r"cannot take samples of shape \(2, 3\): sizes do not match"),
        ("NoModule", r"is not a torch\.nn\.Module"),
        ("Mien", r"no class 'Mien'; did you mean 'Mine'\?"),
    ],
)
def test_a_users_class_that_cannot_serve_is_refused(mine: Path, name: str, says: str) -> None:
    with pytest.raises(Error, match=says):
        models.build(f"{mine}:{name}", (2, 3), 4)


def test_names_files_and_modules_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(Error, match="did you mean 'lenet5'"):
        models.build("lenet", (1, 28, 28), 10)
    with pytest.raises(Error, match="there is no file"):
        models.build(f"{tmp_path}/none.py:Net", (1, 28, 28), 10)
    with pytest.raises(Error, match="'no_such_module' cannot be imported"):
        models.build("no_such_module:Net", (1, 28, 28), 10)
    (tmp_path / "broken.py").write_text("class Net(:\n")
    with pytest.raises(Error, match=r"broken\.py, line 1"):
        models.build(f"{tmp_path}/broken.py:Net", (1, 28, 28), 10)
    (tmp_path / "raises.py").write_text("1 / 0\n")
    with pytest.raises(Error, match=r"raises\.py cannot be imported: ZeroDivisionError"):
        models.build(f"{tmp_path}/raises.py:Net", (1, 28, 28), 10)


# MobileNetV2, and weights that others have trained


def torchvisions_names() -> list[str]:
    """torchvision's tensor names, written out from its structure: ConvBNReLU is (0) convolution, (1)
    norm."""

    def norm(path: str) -> list[str]:
        return [
            f"{path}.{t}" for t in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        ]

    names = ["features.0.0.weight", *norm("features.0.1")]
    names += [
        "features.1.conv.0.0.weight",
        *norm("features.1.conv.0.1"),
        "features.1.conv.1.weight",
        *norm("features.1.conv.2"),
    ]
    for k in range(2, 18):
        path = f"features.{k}.conv"
        for place in ("0", "1"):
            names += [f"{path}.{place}.0.weight", *norm(f"{path}.{place}.1")]
        names += [f"{path}.2.weight", *norm(f"{path}.3")]
    return [
        *names,
        "features.18.0.weight",
        *norm("features.18.1"),
        "classifier.1.weight",
        "classifier.1.bias",
    ]


def test_mobilenetv2_has_torchvisions_names_and_parameters() -> None:
    module = models.build("mobilenetv2", (3, 224, 224), 1000)
    assert list(module.state_dict()) == torchvisions_names()
    assert len(module.state_dict()) == 314
    assert sum(p.numel() for p in module.parameters()) == 3_504_872  # as torchvision prints
    assert tuple(module.state_dict()["features.14.conv.1.0.weight"].shape) == (576, 1, 3, 3)


@pytest.mark.parametrize(("classes", "parameters"), [(200, 2_480_072), (20, 2_249_492)])
def test_mobilenetv2_of_the_paper(classes: int, parameters: int) -> None:
    module = models.build("mobilenetv2", (3, 64, 64), classes)
    layout = layout_of(module)
    assert (int(layout.trainable.sum()), int(layout.body.sum())) == (parameters, 2_223_872)
    assert len(layout.norms) == 52
    assert int((layout.norm & layout.trainable).sum()) == int(layout.buffers.sum()) == 34_112
    assert module.features(torch.zeros(1, 3, 64, 64)).shape == (1, 1280, 2, 2)  # a stem of stride 2


def test_mobilenetv2_costs_what_the_paper_says() -> None:
    """Multiplications at 224 x 224 and at 64 x 64, counted from the shapes of every convolution."""
    total: list[int] = []
    for side, classes, millions in ((224, 1000, 300.8), (64, 200, 24.7)):
        module = models.build("mobilenetv2", (3, side, side), classes).eval()
        total.clear()
        for m in module.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):  # an output's cost is one of the weight's rows
                m.register_forward_hook(lambda m, i, o: total.append(o[0].numel() * m.weight[0].numel()))
        with torch.no_grad():
            module(torch.zeros(1, 3, side, side))
        assert sum(total) / 1e6 == pytest.approx(millions, abs=0.05)


def test_mobilenetv2s_blocks_add_their_input_where_shapes_agree() -> None:
    module = models.build("mobilenetv2", (3, 32, 32), 5)
    added = [k for k in range(1, 18) if module.features[k].adds]
    assert added == [3, 5, 6, 8, 9, 10, 12, 13, 15, 16]
    block, x = module.features[3], torch.randn(2, 24, 8, 8)
    assert torch.equal(block(x), x + block.conv(x))
    with pytest.raises(Error, match="colour images"):
        models.build("mobilenetv2", (1, 28, 28), 10)


def test_fedbn_keeps_mobilenetv2s_norm_layers_at_home() -> None:
    from pfedsim.methods import parse

    layout = layout_of(models.build("mobilenetv2", (3, 32, 32), 5))
    kept = parse("fedbn").keeps(layout)
    assert kept.equal(layout.norm)
    whole = [name for name in layout.names if bool(layout.view(kept, name).all())]
    assert len(whole) == 4 * 52


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_pretrained_weights_go_into_all_but_the_classifier(tmp_path: Path, kind: str) -> None:
    import numpy as np
    from safetensors.torch import save_file

    from pfedsim.models import pretrained

    torch.manual_seed(1)
    trained = models.build("lenet5", (1, 28, 28), 50)  # of another number of classes
    state = trained.state_dict()
    if kind == "npz":
        np.savez(tmp_path / "w.npz", **{name: t.numpy() for name, t in state.items()})
    else:
        save_file(state, tmp_path / "w.safetensors")
    _, layout, initial = initial_model("lenet5", "classifier", (1, 28, 28), 10, 5)
    path = pretrained.find(str(tmp_path / f"w.{kind}"), tmp_path)
    theta = pretrained.into(layout, initial, pretrained.load(path), path)
    for name in layout.names:
        if name.startswith("classifier"):
            assert layout.view(theta, name).equal(layout.view(initial, name)), name
        else:
            assert layout.view(theta, name).equal(state[name]), name


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from pfedsim.models import pretrained

    _, layout, initial = initial_model("lenet5", "classifier", (1, 28, 28), 10, 5)
    good = dict(models.build("lenet5", (1, 28, 28), 10).state_dict())
    path = tmp_path / "w.safetensors"
    for change, says in (
        ({"conv1.weight": None}, "it has no 'conv1.weight'"),
        ({"extra": torch.zeros(1)}, "the network has no 'extra'"),
        (
            {"conv1.weight": torch.zeros(6, 3, 5, 5)},
            r"'conv1.weight' has shape \(6, 3, 5, 5\), the network's is \(6, 1, 5, 5\)",
        ),
        ({"fc1.bias": torch.full((120,), float("nan"))}, "'fc1.bias' has values that are not finite"),
    ):
        tensors = {k: v for k, v in {**good, **change}.items() if v is not None}
        with pytest.raises(Error, match=says):
            pretrained.into(layout, initial, tensors, path)
    save_file(good, path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(Error, match="is not a valid file of tensors"):
        pretrained.load(path)
    with pytest.raises(Error, match="there is no such file"):
        pretrained.find("none.npz", tmp_path)
    with pytest.raises(Error, match="get them with `pfedsim data get mobilenet-v2`"):
        pretrained.find("mobilenet-v2", tmp_path)


# tables and signals


@pytest.mark.parametrize(
    ("name", "shape", "norms"),
    [("mlp", (13,), 2), ("mlp", (3, 4), 2), ("cnn1d", (6, 100), 3), ("cnn1d", (1, 4), 3)],
)
def test_small_networks_have_batch_norm_and_a_classifier(
    name: str, shape: tuple[int, ...], norms: int
) -> None:
    module = models.build(name, shape, 7)
    layout = layout_of(module)
    assert len(layout.norms) == norms
    assert int(layout.head.sum()) == 64 * 7 + 7
    assert module(torch.randn(5, *shape)).shape == (5, 7)


def test_cnn1d_sees_order_in_time_and_mlp_every_cell() -> None:
    module = models.build("cnn1d", (2, 32), 3).eval()
    x = torch.randn(1, 2, 32)
    assert not torch.allclose(module(x), module(x.flip(2)))
    with pytest.raises(Error, match="cnn1d takes signals"):
        models.build("cnn1d", (13,), 3)
    table = models.build("mlp", (4,), 3).eval()
    y = torch.randn(1, 4)
    assert all(not torch.allclose(table(y), table(y + torch.eye(4)[k])) for k in range(4))


def with_drawn_norms(module: nn.Module) -> dict[str, Tensor]:
    """Gives norm layers values that matter in eval mode; returns all tensors."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 1.0, 3.0)
            nn.init.normal_(m.bias)
            nn.init.normal_(m.running_mean, 0, 0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.0)
    return module.state_dict()


def normed(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Batch norm in eval mode, channels second."""
    mean, var, scale, shift = (
        weights[f"{name}.{part}"].view(-1, *[1] * (x.ndim - 2))
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(var + 1e-5) * scale + shift


def test_mlp_is_its_equations() -> None:
    torch.manual_seed(3)
    module = models.build("mlp", (2, 3), 4).eval()
    w, x = with_drawn_norms(module), torch.randn(5, 2, 3)
    hidden = x.reshape(5, 6)
    for k in "12":
        hidden = normed(w, f"bn{k}", hidden @ w[f"fc{k}.weight"].T + w[f"fc{k}.bias"]).clamp(min=0)
    expected = hidden @ w["classifier.weight"].T + w["classifier.bias"]
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def test_cnn1d_is_its_equations() -> None:
    torch.manual_seed(3)
    module = models.build("cnn1d", (2, 18), 4).eval()
    w, samples = with_drawn_norms(module), torch.randn(5, 2, 18)
    x = samples
    for k in "123":
        x = F.conv1d(x, w[f"conv{k}.weight"], w[f"conv{k}.bias"], padding=2)
        x = normed(w, f"bn{k}", x).clamp(min=0)
        if k != "3":
            x = x[..., : x.shape[2] // 2 * 2].unflatten(2, (-1, 2)).amax(3)
    expected = x.mean(2) @ w["classifier.weight"].T + w["classifier.bias"]
    torch.testing.assert_close(module(samples), expected, rtol=1e-4, atol=1e-5)


def mobilenetv2_by_hand(weights: dict[str, Tensor], x: Tensor, drop: float = 0.0) -> Tensor:
    """The network in functions, batch norm in eval mode: ReLU6 after every convolution but the narrowing
    ones."""

    def conv(x: Tensor, name: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        return normed(weights, norm, F.conv2d(x, weight, None, stride, weight.shape[-1] // 2, 1, groups))

    def six(x: Tensor) -> Tensor:
        return x.clamp(0, 6)

    x, k = six(conv(x, "features.0.0", "features.0.1", 2)), 0
    for expansion, _, blocks, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for block in range(blocks):
            k += 1
            at, before, place = f"features.{k}.conv", x, 0
            if expansion > 1:
                x, place = six(conv(x, f"{at}.0.0", f"{at}.0.1")), 1
            step = stride if block == 0 else 1
            x = six(conv(x, f"{at}.{place}.0", f"{at}.{place}.1", step, x.shape[1]))
            x = conv(x, f"{at}.{place + 1}", f"{at}.{place + 2}")
            x = x + before if x.shape == before.shape else x
    x = six(conv(x, "features.18.0", "features.18.1")).mean((2, 3))
    return F.linear(F.dropout(x, drop), weights["classifier.1.weight"], weights["classifier.1.bias"])


def test_mobilenetv2_is_its_equations() -> None:
    """Fails with ReLU in place of ReLU6 (norm layers are scaled up, so that activations pass 6) and without
    dropout of a fifth."""
    torch.manual_seed(3)
    module = models.build("mobilenetv2", (3, 32, 32), 7).eval()
    weights, x = with_drawn_norms(module), torch.randn(3, 3, 32, 32)
    nn.init.normal_(module.classifier[1].weight)
    with torch.no_grad():
        torch.testing.assert_close(module(x), mobilenetv2_by_hand(weights, x), rtol=1e-3, atol=1e-3)
        module.classifier.train()
        torch.manual_seed(4)
        dropped = module(x)
        torch.manual_seed(4)
        torch.testing.assert_close(dropped, mobilenetv2_by_hand(weights, x, 0.2), rtol=1e-3, atol=1e-3)


def test_a_fresh_mobilenetv2_classifier_is_small_and_normal() -> None:
    torch.manual_seed(0)
    last = models.build("mobilenetv2", (3, 32, 32), 50).classifier[1]
    assert float(last.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert not last.bias.any()
