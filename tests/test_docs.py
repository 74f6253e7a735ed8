"""What the documents say is run as it is written."""

import inspect
import os
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Literal

import hospitals
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from small import job, module, normal, session
from torch.nn.functional import cosine_similarity, cross_entropy
from typer.testing import CliRunner

from pfedsim.cli.app import app
from pfedsim.core import method as method_module
from pfedsim.core.job import Batch, Job
from pfedsim.core.method import Fed, Memory, Message, Phase
from pfedsim.dev.conformance import check
from pfedsim.errors import Notice
from pfedsim.experiments.board import load as load_board
from pfedsim.methods import METHODS, parse
from pfedsim.runs.config import TABLES, Config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "write-a-method.md").read_text()


QUICK = ("pfedsim run", "pfedsim compare", "pfedsim sweep")


def commands(text):
    """Indented lines that call pfedsim, without their remarks."""
    return [
        line.strip().split("  #")[0].strip()
        for line in text.splitlines()
        if line.startswith("    pfedsim ")
    ]


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.S)


def pfedsim(command, cwd, **environment):
    words = [sys.executable, "-m", "pfedsim", *shlex.split(command)[1:]]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})


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
    own = blocks(GUIDE)[0].replace("class FedAvgM", "class MyMethod").replace('"FedAvgM"', '"MyMethod"')
    (tmp_path / "mine.py").write_text(own)
    (tmp_path / "data.py").write_text(
        "import numpy as np\nfrom pfedsim.data import read\n\nd = read('digits')\n"
        "np.savez('mine.npz', x=d.x[:400, 0], y=d.y[:400], client=np.arange(400) % 4)\n"
    )
    subprocess.run([sys.executable, "data.py"], cwd=tmp_path, check=True)
    ran = 0
    for command in commands(README):
        if "cifar10" in command:
            continue
        quick = " --epochs 1 --rounds 2" if command.startswith(QUICK) else ""
        quick = " --rounds 3" if "--extend" in command else quick
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


def test_the_guides_contrastive_loss_is_that_of_the_paper(tmp_path):
    (tmp_path / "moon.py").write_text(
        next(block for block in blocks(GUIDE) if block.startswith("# moon.py"))
    )
    method = parse(f"{tmp_path / 'moon.py'}:Moon(mu=0.7, temperature=0.4)")
    s = session(method)
    draw = torch.Generator().manual_seed(3)
    theta, last = (s.fed.initial + 0.3 * torch.randn(s.fed.layout.size, generator=draw) for _ in range(2))
    one = job(s, memory=Memory(extra={"last": last}))
    one.start = method.begin(one)
    step = method.gradient(one, theta, [one.part("train")])

    x, y = normal(s, 0)
    net, common, before = module(s, theta).train(), module(s).eval(), module(s, last).eval()
    z, zc, zb = (torch.relu(n.bn(n.hidden(x))) for n in (net, common, before))
    near, far = (torch.exp(cosine_similarity(z, other.detach()) / 0.4) for other in (zc, zb))
    loss = cross_entropy(net.classifier(z), y) - 0.7 * torch.log(near / (near + far)).mean()
    wanted = torch.autograd.grad(loss, list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    for name, gradient in zip(names, wanted, strict=True):
        torch.testing.assert_close(s.fed.layout.view(step, name), gradient, rtol=1e-4, atol=1e-6)


FOR_THE_LOOP = {"descend", "batch", "passes", "draw_for"}


def test_the_guide_has_the_signatures_of_job():
    calls = {
        name: rest.replace("\\|", "|")
        for name, rest in re.findall(r"^\| `job\.(\w+)(\(.*?\) -> .*?)` \|", GUIDE, re.M)
    }
    found = {
        name: str(inspect.signature(value)).replace("(self, ", "(").replace("'", "")
        for name, value in vars(Job).items()
        if callable(value) and not name.startswith("_") and name not in FOR_THE_LOOP
    }
    assert calls == found


def test_the_guide_has_the_facts_of_job_and_batch():
    one = job(session())
    facts = {name for name in vars(one) if not name.startswith("_")} | {"labels", "start", "phase"}
    table = GUIDE.partition("| fact |")[2].partition("| call |")[0]
    assert set(re.findall(r"`job\.(\w+)`", table)) == facts
    assert Batch._fields == ("x", "y")
    for row, kind in (
        ("job.message", Message),
        ("job.memory", Memory),
        ("job.phase", Phase),
        ("job.fed", Fed),
    ):
        (line,) = [line for line in table.splitlines() if line.startswith(f"| `{row}` |")]
        assert {field.name for field in fields(kind)} <= set(re.findall(r"`(\w+)`", line)), row


def test_the_guides_options_accept_and_refuse_as_it_says():
    rows = re.findall(r"^\| `(.+?)` \| [^|]+ \| `(.+?)` \| `(.+?)` \|$", GUIDE, re.M)
    assert len(rows) == 7
    for kind, right, wrong in rows:
        adapter = TypeAdapter(eval(kind, {"Literal": Literal, **vars(method_module)}))
        adapter.validate_python(eval(right))
        with pytest.raises(ValidationError):
            adapter.validate_python(eval(wrong))


def test_errors_in_a_hook_read_as_the_guide_says(tmp_path):
    block = blocks(GUIDE)[0]
    (tmp_path / "fedavgm.py").write_text(block.replace("server.model + velocity", "server.model + velocty"))
    (command,) = re.findall(r"^    PFEDSIM_DEBUG=1 (pfedsim run .*)$", GUIDE, re.M)
    (message,) = re.findall(r"^    (pfedsim: FedAvgM.*)$", GUIDE, re.M)
    quick = " --epochs 1 --clients 3 --quiet"
    assert pfedsim(command + quick, tmp_path).stderr == message + "\n"
    full = pfedsim(command + quick + " --out again", tmp_path, PFEDSIM_DEBUG="1").stderr
    assert "Traceback" in full
    assert "model=server.model + velocty" in full


def test_the_guides_options_can_be_set(tmp_path):
    (tmp_path / "fedavgm.py").write_text(blocks(GUIDE)[0])
    (setting,) = re.findall(r"`(--set fedavgm\S+)`", GUIDE)
    words = f"pfedsim run --method fedavgm.py:FedAvgM {setting} --rounds 1 --epochs 1 --clients 3 --out out"
    done = pfedsim(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "beta = 0.9" in (tmp_path / "out" / "config.toml").read_text()
    shown = pfedsim("pfedsim methods fedavgm.py:FedAvgM", tmp_path)
    assert "share of the last update that is kept" in shown.stdout


def test_the_guides_compare_runs(tmp_path):
    (tmp_path / "fedavgm.py").write_text(blocks(GUIDE)[0])
    (command,) = [c for c in commands(GUIDE) if "compare" in c]
    done = pfedsim(command + " --epochs 1", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FedAvgM(beta=0.9)" in done.stdout


def test_every_command_and_method_is_documented():
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"pfedsim {name}" in README, name
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
    block = "\n".join(blocks((ROOT / "docs" / "track.md").read_text()))
    first = "import pfedsim\nrun = pfedsim.train(pfedsim.federate('digits', clients=3), 'fedavg', rounds=1, epochs=1)\n"
    done = subprocess.run(
        [sys.executable, "-c", first + block], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"client +finetuned +served|model +finetuned +served", done.stdout)


def test_the_page_on_reliability_opens_a_worker(tmp_path):
    (block,) = blocks((ROOT / "docs" / "reliability.md").read_text())
    words = [sys.executable, "-c", block + "print(worker.fed.clients)"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "20\n", done.stderr


def test_the_repository_names_no_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert listed
    for name in listed:
        path = ROOT / name
        assert path.stat().st_size < 1 << 20, f"{name} is over 1 MiB"
        if path.suffix in (".py", ".md", ".toml", ".txt", ".cff", "") and name != "tests/test_docs.py":
            text = path.read_text()
            assert not re.search(r"/work/|/root/|/opt/|\.internal\b", text), name


MIGRATE = (ROOT / "docs" / "migrate.md").read_text()


def test_the_migration_page_names_settings_and_options_that_exist():
    known = {*Config.model_fields, *(f"{t}.{k}" for t, kind in TABLES.items() for k in kind.model_fields)}
    names = [
        name
        for row in re.findall(r"^\| (.*?) \|", MIGRATE.partition("### Options of methods")[0], re.M)
        for name in re.findall(r"`([a-z_.]+)(?: = [^`]*)?`", row)
        if not name.startswith(".") and name != "compare" and row != "source"
    ]
    assert len(names) > 30
    assert set(names) <= known
    options = MIGRATE.partition("### Options of methods")[2].partition("### What else")[0]
    rows = re.findall(r"^\| `(\w+)`(?:: (.*?))? \|", options, re.M)
    assert {name for name, _ in rows} <= set(METHODS)
    for name, listed in rows:
        for option in re.findall(r"`(\w+)`", listed):
            if option not in known:
                assert option in {f.name for f in fields(METHODS[name])}, (name, option)


def test_the_conversions_of_the_migration_page_are_python():
    (first, second, third) = blocks(MIGRATE)
    for block in (first, second, third):
        compile(block, "convert.py", "exec")


def test_the_board_of_the_guide_can_be_read(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "boards.md").read_text(), re.S)
    (tmp_path / "mine.toml").write_text(block)
    board = load_board(str(tmp_path / "mine.toml"))
    assert board.names == ["skewed", "even"]
    assert board.words(board.place("even"), "fedavg")["lr_decay"] == 0.99


def test_the_page_on_tables_runs_as_written(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    page = (ROOT / "docs" / "tables.md").read_text()
    hospitals.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFEDSIM_DATA", "sets")
    found = commands(page)
    assert len(found) == 7
    for command in found:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, f"{command}: {done.output} {done.exception}"
    (block,) = blocks(page)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        exec(block, {})
