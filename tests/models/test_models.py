from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pfedsim import models
from pfedsim.errors import Error
from pfedsim.layout import layout_of
from pfedsim.runs.session import initial_model


@pytest.mark.parametrize(("shape", "classes", "trainable", "head"), [((3, 32, 32), 10, 62_050, 850), ((1, 28, 28), 62, 48_890, 5_270)])
def test_lenet5_has_the_papers_parameters(shape: tuple[int, ...], classes: int, trainable: int, head: int) -> None:
    module = models.build("lenet5", shape, classes)
    layout = layout_of(module, "classifier")
    assert sum(p.numel() for p in module.parameters()) == trainable
    assert (int(layout.trainable.sum()), int(layout.head.sum()), int(layout.body.sum())) == (trainable, head, trainable - head)
    assert int(layout.buffers.sum()) == 44  # running mean and variance of 6 + 16 channels
    assert layout.size == trainable + 44
    assert int((layout.norm & layout.trainable).sum()) == 44


def test_lenet5_is_the_chain_of_the_paper_in_torchs_own_layers() -> None:
    module = models.build("lenet5", (3, 32, 32), 10)
    chain = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
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
        ("Wide", r"gives \(2, 5\) for two samples; a classifier of 4 classes gives \(2, 4\)"),
        ("Two", r"gives tuple for two samples"),
        ("Needy", r"name its arguments shape and classes"),
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
