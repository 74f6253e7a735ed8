"""What the documents say is run as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pfedsim.cli.app import app
from pfedsim.dev.conformance import check
from pfedsim.methods import METHODS, parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "write-a-method.md").read_text()


def commands(text):
    """Indented lines that call pfedsim, without their remarks."""
    return [
        line.strip().split("  #")[0].strip()
        for line in text.splitlines()
        if line.startswith("    pfedsim ")
    ]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.S)


def pfedsim(command, cwd):
    words = shlex.split(command)[1:]
    return subprocess.run(
        [sys.executable, "-m", "pfedsim", *words], cwd=cwd, capture_output=True, text=True
    )


def test_readme_python_runs_as_written(tmp_path):
    (block,) = blocks(README)
    assert len([line for line in block.splitlines() if line and not line.startswith("import")]) <= 5
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_readme_commands_run_as_written(tmp_path):
    for name in ("fedavgm", "ditto"):
        assert f"{name}.py" in GUIDE
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, shape, "
        "classes):\n        super().__init__()\n"
        "        self.body = nn.Sequential(nn.Flatten(), nn.Linear(1024, 8), nn.ReLU())\n        "
        "self.classifier = nn.Linear(8, classes)\n"
        "\n    def forward(self, x):\n        return self.classifier(self.body(x))\n"
    )
    (tmp_path / "mine.py").write_text(blocks(GUIDE)[0].replace("class FedAvgM", "class MyMethod"))
    (tmp_path / "data.py").write_text(
        "import numpy as np\nfrom pfedsim.data import read\n\nd = read('digits')\n"
        "np.savez('mine.npz', x=d.x[:400, 0], y=d.y[:400], client=np.arange(400) % 4)\n"
    )
    subprocess.run([sys.executable, "data.py"], cwd=tmp_path, check=True)
    ran = 0
    for command in commands(README):
        if "cifar10" in command:
            continue
        quick = " --epochs 1 --rounds 2" if command.startswith(("pfedsim run", "pfedsim compare")) else ""
        done = pfedsim(command + quick, tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        ran += 1
    assert ran >= 7


@pytest.mark.parametrize("block", blocks(GUIDE), ids=lambda b: b.splitlines()[0])
def test_the_guide_is_right(tmp_path, block):
    name = block.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(block)
    kind = re.search(r"class (\w+)\(", block)[1]
    method = parse(f"{tmp_path / name}:{kind}")
    assert [result for result in check(method) if result.why] == []
    code = [
        line for line in block.splitlines() if line.strip() and not line.startswith(("#", "from", "import"))
    ]
    assert len(code) <= 24


def test_the_guides_compare_runs(tmp_path):
    (tmp_path / "fedavgm.py").write_text(blocks(GUIDE)[0])
    (command,) = [c for c in commands(GUIDE) if "compare" in c]
    done = pfedsim(command + " --epochs 1", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FedAvgM(beta=0.9)" in done.stdout


def test_every_command_and_method_is_documented():
    for command in app.registered_commands:
        assert f"pfedsim {command.callback.__name__}" in README, command.callback.__name__
    page = (ROOT / "docs" / "methods.md").read_text()
    for kind in METHODS.values():
        assert f"\n## {kind.title}\n" in page


def test_the_methods_page_is_what_the_command_prints():
    from pfedsim.report.methods import page

    assert (ROOT / "docs" / "methods.md").read_text() == page(), (
        "run: pfedsim methods --markdown > docs/methods.md"
    )


def test_the_data_page_is_right(tmp_path):
    """A table with named clients and the page's own network."""
    page = (ROOT / "docs" / "data.md").read_text()
    (tmp_path / "net.py").write_text(blocks(page)[0])
    (tmp_path / "data.py").write_text(
        "import numpy as np\n\nd = np.random.default_rng(0)\ny = d.integers(0, 3, 120)\n"
        "who = np.array(['north', 'south', 'west'])[np.arange(120) % 3]\n"
        "np.savez('mine.npz', x=d.normal(size=(120, 5)) + y[:, None], y=y, client=who)\n"
    )
    subprocess.run([sys.executable, "data.py"], cwd=tmp_path, check=True)
    done = pfedsim("pfedsim run --data mine.npz --model net.py:Net --rounds 2 --out out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"names": ["north", "south", "west"]' in (tmp_path / "out" / "partition.json").read_text()


def test_the_page_on_tracking_is_right(tmp_path):
    (block,) = blocks((ROOT / "docs" / "track.md").read_text())
    first = "import pfedsim\nrun = pfedsim.train(pfedsim.federate('digits', clients=3), 'fedavg', rounds=1, epochs=1)\n"
    done = subprocess.run(
        [sys.executable, "-c", first + block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"client +finetuned +served|model +finetuned +served", done.stdout)


def test_the_repository_names_no_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert listed
    for name in listed:
        path = ROOT / name
        assert path.stat().st_size < 1 << 20, f"{name} is over 1 MiB"
        if path.suffix in (".py", ".md", ".toml", ".txt", ".cff", "") and name != "tests/test_docs.py":
            text = path.read_text()
            assert not re.search(r"/work/|/root/|/opt/|\.internal\b", text), name
