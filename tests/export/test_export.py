"""An export stands on its own: it predicts as the run reported, and what is not whole or not its own is
refused by name."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import pfedsim
from pfedsim import Error, seal
from pfedsim.cli.app import app
from pfedsim.data.federation import Federation
from pfedsim.export.write import export, load_federation
from pfedsim.runs.reader import Run


def accuracy(run: Run, client: int, metric: str = "accuracy") -> float:
    return run.client_values(metric)[client]


def test_every_clients_export_scores_exactly_as_the_run_reported(
    done: Run, digits: Federation, tmp_path: Path
) -> None:
    for client, split in enumerate(digits.partition.clients):
        model = pfedsim.load(export(done, client, tmp_path / str(client)))
        named = np.array(model.predict(digits.data.x[split.test]))
        assert (named == digits.data.y[split.test].astype(str)).mean() == accuracy(done, client)
        config = json.loads((tmp_path / str(client) / "config.json").read_text())
        assert config["test"]["served"]["accuracy"] == accuracy(done, client)
        assert config["test"]["finetuned"]["accuracy"] == done.client_values(model="finetuned")[client]
        assert config["test"]["served"]["samples"] == len(split.test)


def test_what_an_export_holds(done: Run, digits: Federation, exported: Path) -> None:
    assert {p.name for p in exported.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "samples.npz",
    }
    config = json.loads((exported / "config.json").read_text())
    assert config["network"] == "lenet5"
    assert config["arguments"] == {"shape": [1, 32, 32], "classes": 10}
    assert config["classes"] == list("0123456789")
    assert config["input"] == {
        "shape": [1, 32, 32],
        "dtype": "uint8",
        "mean": [0.3053],
        "std": [0.3759],
        "fill": None,
        "columns": None,
    }
    assert config["run"]["client"] == 3
    assert config["run"]["data_digest"] == digits.data.digest
    assert config["run"]["models_digest"] == done.summary["models_digest"]
    for name, digest in config["files"].items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == digest
    tensors = load_file(exported / "model.safetensors")
    state = done.client(3).module.state_dict()
    assert all(tensors[name].equal(state[name]) for name in tensors)
    card = (exported / "README.md").read_text()
    assert f"| accuracy | {accuracy(done, 3):.4f} |" in card
    assert done.summary["config_digest"] in card
    with np.load(exported / "samples.npz") as samples:
        assert (samples["x"] == digits.data.x[digits.partition.clients[3].test]).all()


def test_the_module_inside_is_an_ordinary_one(exported: Path, digits: Federation) -> None:
    model = pfedsim.load(exported)
    x = digits.data.x[:5]
    with torch.no_grad():
        scores = model.module(model.inputs(x))
    assert model.scores(x).equal(scores)
    assert model.probabilities(x).sum(1).tolist() == pytest.approx([1] * 5)
    assert model.predict(x) == [model.classes[k] for k in scores.argmax(1)]
    assert model.predict(x / np.float32(255)) == model.predict(x)
    assert model.predict(x[:0]) == []


ALONE = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pfedsim":
            raise ImportError("pfedsim is not here")
sys.meta_path.insert(0, Blocker())
import numpy as np
x = np.load("samples.npz")["x"]
if sys.argv[1] == "onnx":
    import onnxruntime
    run = lambda x: onnxruntime.InferenceSession("model.onnx").run(["scores"], {"x": x})[0]
else:
    import torch
    program = torch.export.load("model.pt2").module()
    run = lambda x: program(torch.from_numpy(x)).detach().numpy()
np.savez(sys.argv[2], all=run(x), one=run(x[:1]), seven=run(x[:7]))
assert not [name for name in sys.modules if name.startswith("pfedsim")]
"""


def test_the_programs_run_without_pfedsim(done: Run, digits: Federation, tmp_path: Path) -> None:
    """On samples as stored, for any number of them, within 1e-5 of the run's model."""
    out = export(done, 3, tmp_path / "out", federation=digits, onnx=True, pt2=True, samples=True)
    config = json.loads((out / "config.json").read_text())
    test = digits.partition.clients[3].test
    model, x = done.client(3), torch.from_numpy(digits.data.x[test])
    with torch.no_grad():
        right = model.module(model.inputs(x)).numpy()
    close = 1e-5 * max(1, np.abs(right).max())
    for kind in ("onnx", "pt2"):
        subprocess.run(
            [sys.executable, "-I", "-c", ALONE, kind, str(tmp_path / "scores.npz")], cwd=out, check=True
        )
        with np.load(tmp_path / "scores.npz") as scores:
            for name, part in (("all", right), ("one", right[:1]), ("seven", right[:7])):
                assert np.abs(scores[name] - part).max() <= close
            assert (scores["all"].argmax(1) == digits.data.y[test]).mean() == accuracy(done, 3)
        assert 0 <= config["checked"][f"model.{kind}"] <= close
    for path in out.iterdir():
        assert str(Path(pfedsim.__file__).parent).encode() not in path.read_bytes(), (
            f"{path.name} names this machine's folders"
        )
    assert pfedsim.load(out).scores(x).numpy() == pytest.approx(right)
    (out / "model.onnx").write_bytes((out / "model.pt2").read_bytes())
    with pytest.raises(Error, match=r"model\.onnx is not the file named in config\.json"):
        pfedsim.load(out)


def test_a_users_own_network_comes_along_and_runs_only_when_trusted(wards: Run, tmp_path: Path) -> None:
    out = export(wards, 1, tmp_path / "out")
    (wards.path.parent / "net.py").rename(wards.path.parent / "gone.py")
    try:
        with pytest.raises(Error, match=r"contains the code of its network.*network\.py"):
            pfedsim.load(out)
        model = pfedsim.load(out, trust=True)
    finally:
        (wards.path.parent / "gone.py").rename(wards.path.parent / "net.py")
    with np.load(wards.path.parent / "wards.npz") as data:
        x, y = data["x"], data["y"]
    test = load_federation(wards).partition.clients[1].test
    assert (np.array(model.predict(x[test])) == y[test]).mean() == accuracy(wards, 1)
    (out / "network.py").write_text((out / "network.py").read_text() + "\n")
    with pytest.raises(Error, match=r"network\.py is not the file named in config\.json"):
        pfedsim.load(out, trust=True)


def test_a_network_of_several_files_is_not_exported(
    wards: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its export would be loaded nowhere but where these files lie."""
    (tmp_path / "part_of_net.py").write_text("SCALE = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    net = wards.path.parent / "net.py"
    before = net.read_text()
    net.write_text(before + "import part_of_net\n")
    monkeypatch.setattr("pfedsim.runs.reader.source_digest", lambda code: wards.config.digests.model)
    try:
        with pytest.raises(Error, match=r"net\.py imports part_of_net\.py, which an export does not hold"):
            export(wards, 1, tmp_path / "out")
    finally:
        net.write_text(before)
    assert not (tmp_path / "out").exists()


def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def edit(folder: Path, **changes: object) -> None:
    config = seal.load(folder / "config.json", "an export")
    (folder / "config.json").write_text(seal.sealed({**config, **changes}))


def test_a_truncated_file_is_refused_by_name(exported: Path, tmp_path: Path) -> None:
    folder = copy(exported, tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(
        Error, match=r"model\.safetensors is not the file named in config\.json .*truncated"
    ):
        pfedsim.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(Error, match=r"is incomplete: model\.safetensors is missing"):
        pfedsim.load(folder)


def test_another_clients_tensors_are_refused_by_name(exported: Path, done: Run, tmp_path: Path) -> None:
    folder, other = copy(exported, tmp_path), export(done, 4, tmp_path / "other")
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(Error, match=r"model\.safetensors is not the file .*belongs to another export"):
        pfedsim.load(folder)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"model_type": "bert", "hidden_size": 768}', "is not an export's description"),
        (seal.sealed({"model_type": "bert"}), "does not describe a model exported by pfedsim"),
        ("[1, 2", "is not an export's description"),
        ("", "is not an export's description"),
    ],
)
def test_a_foreign_folder_is_refused_by_name(tmp_path: Path, config: str, says: str) -> None:
    with pytest.raises(Error, match=r"is not an exported model: it has no config\.json"):
        pfedsim.load(tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(Error, match=says) as refused:
        pfedsim.load(tmp_path)
    assert str(tmp_path / "config.json") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_changed_constant_is_refused(exported: Path, tmp_path: Path) -> None:
    """One digit of mean or std costs points of accuracy, which nobody would notice."""
    folder = copy(exported, tmp_path)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("0.3053", "0.3953"))
    assert (folder / "config.json").read_text() != text
    with pytest.raises(Error, match=r"config\.json is damaged: its content does not match its sha256"):
        pfedsim.load(folder)


def test_a_config_that_does_not_fit_its_tensors_is_refused_by_name(exported: Path, tmp_path: Path) -> None:
    folder = copy(exported, tmp_path)
    edit(folder, classes=list("012"))
    with pytest.raises(
        Error, match=r"cannot be rebuilt: .*'classifier.weight' is .*\(10, 84\), expected .*\(3, 84\)"
    ):
        pfedsim.load(folder)
    edit(
        folder,
        classes=list("0123456789"),
        input={"shape": [1, 32, 32], "dtype": "uint8", "mean": [0.1, 0.2], "std": [1, 1]},
    )
    with pytest.raises(Error, match=r"config\.json .*mean, std and, if given, fill must hold one number"):
        pfedsim.load(folder)
    shutil.copy(exported / "config.json", folder)
    for network in ("os:system", "../evil.py:Net", "nosuch"):
        edit(folder, network=network)
        with pytest.raises(Error, match=r"network|no model 'nosuch'"):
            pfedsim.load(folder)
    edit(folder, network="lenet5", files={"../../etc/passwd": "0"})
    with pytest.raises(Error, match="does not describe a model exported"):
        pfedsim.load(folder)


def test_tensors_of_another_network_are_refused_by_name(exported: Path, tmp_path: Path) -> None:
    folder = copy(exported, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["stranger"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors")
    files = json.loads((folder / "config.json").read_text())["files"]
    edit(
        folder,
        files={
            **files,
            "model.safetensors": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        },
    )
    with pytest.raises(Error, match="'stranger' is not one of its tensors"):
        pfedsim.load(folder)


def test_what_cannot_be_exported_leaves_nothing(done: Run, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(Error, match="already exists"):
        export(done, 0, tmp_path / "full")
    with pytest.raises(Error, match="there is no client 6"):
        export(done, 6, tmp_path / "out")
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "thesis.tex"]


def test_a_network_that_torch_cannot_trace_is_said_in_one_sentence(
    digits: Federation, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Odd(nn.Module):\n    def __init__(self, "
        "classes):\n        super().__init__()\n"
        "        self.flat, self.classifier = nn.Flatten(), nn.Linear(1024, classes)\n\n    def "
        "forward(self, x):\n"
        "        return self.classifier(self.flat(x)) if float(x.detach().mean()) > -99 else "
        "self.classifier(self.flat(-x))\n"
    )
    run = pfedsim.train(
        digits,
        "fedavg",
        tmp_path / "run",
        model=f"{tmp_path / 'odd.py'}:Odd",
        rounds=1,
        epochs=1,
        backend="torch",
    )
    with pytest.raises(Error, match=r"this network cannot be written as torch\.export") as refused:
        export(run, 0, tmp_path / "out", federation=digits, pt2=True)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("out*"))
    assert export(run, 0, tmp_path / "out", federation=digits).is_dir()


def test_a_client_is_named_by_its_number_or_name(wards: Run, tmp_path: Path) -> None:
    x = np.ones((2, 6))
    assert wards.client("b").probabilities(x).equal(wards.client(1).probabilities(x))
    assert (wards.number_of("2"), wards.number_of("c")) == (2, 2)
    words = ["export", str(wards.path), str(tmp_path / "out"), "--client", "b", "--trust"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["run"]["client"] == 1
    with pytest.raises(Error, match=r"there is no client 'bb'; did you mean 'b'\?"):
        wards.client("bb")
    with pytest.raises(Error, match="there is no client 3; known are a, b, c"):
        wards.client(3)


@pytest.mark.filterwarnings("error")
def test_an_array_that_cannot_be_written_is_copied(wards: Run) -> None:
    x = np.ones((2, 6), np.float32)
    x.setflags(write=False)
    assert len(wards.client(0).predict(x)) == 2
