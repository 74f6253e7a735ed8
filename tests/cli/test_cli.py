"""The command line as a user meets it: right words, wrong words, and what is printed."""

import json
import subprocess
import sys

import pytest

from pfedsim.dev.conformance import CHECKS

QUICK = ["--rounds", "2", "--epochs", "1", "--clients", "4", "--set", "score.finetune=1"]


def pfedsim(*arguments, cwd=None, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "pfedsim", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "lerning_rate=0.1"], "did you mean 'lr'?"),
        (["--data", "nosuch"], "there is no data set 'nosuch'"),
        (["--data", "digit"], "did you mean 'digits'?"),
        (["--alpha", "-1"], "alpha = -1: must be above 0"),
        (["--rounds", "0"], "rounds = 0: must be at least 1"),
        (["--rounds", "ten"], "rounds = 'ten'"),
        (["missing.toml"], "missing.toml cannot be read"),
        (["broken.toml"], "broken.toml is not TOML"),
        (["--method", "mine.py:Mine"], "mine.py, line 2"),
        (["--method", "fedsim"], "did you mean 'pfedsim'?"),
        (["--method", "pfedsim:papr"], "did you mean 'paper'?"),
        (["--set", "pfedsim.roh=1"], "did you mean 'rho'?"),
        (["--set", "rounds"], "should have the form KEY=VALUE"),
        (["--method", "pfedsim(rho=2)"], "pfedsim.rho = 2"),
        (["--method", "pfedsim(warmup=nosuch)"], "there is no method 'nosuch'"),
        (["--partition", "dirichelt"], "did you mean 'dirichlet'?"),
        (["--model", "lenet"], "did you mean 'lenet5'?"),
        (["--device", "gpu"], "device = 'gpu'"),
        (["--method", "fedavg", "--set", "pfedsim.rho=0.1"], "pfedsim.rho = 0.1 has no effect on"),
        (["--partition", "mine.json", "--alpha", "0.5"], "alpha = 0.5 has no effect with"),
        (["--classes-each", "3"], "classes_each = 3 has no effect with the data set's default"),
        (["--partition", "iid", "--set", "alpha=0.5"], "alpha = 0.5 has no effect with"),
        (["--device", "cuda", "--workers", "3"], "workers = 3 has no effect with the device 'cuda'"),
    ],
)
def test_wrong_words_get_one_sentence_without_torch(tmp_path, arguments, says):
    (tmp_path / "broken.toml").write_text("rounds = = 3\n")
    (tmp_path / "mine.py").write_text("x = 1\ndef broken(:\n")
    probe = (
        "import sys; from pfedsim.cli import main\ntry: main()\nfinally: assert "
        "'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, "run", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_compare_refuses_options_of_a_method_that_it_does_not_run(tmp_path):
    words = ["compare", "--methods", "local,fedavg", "--set", "fedprox.mu=1", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pfedsim", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "fedprox.mu = 1 has no effect on the methods local, fedavg" in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_needs_no_torch():
    probe = (
        "import sys; sys.argv = ['pfedsim', '--help']\nfrom pfedsim.cli import "
        "main\ntry: main()\nexcept SystemExit: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe + "print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "False"
    for command in ("run", "compare", "show", "methods", "check"):
        assert f"  {command} " in done.stdout


def test_a_truncated_data_file_is_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(b"\0" * 1000)
    done = pfedsim("run", "--data", "cifar10", "--data-dir", tmp_path, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "data_batch_1.bin has 1,000 bytes" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_run_show_and_run_again(tmp_path):
    first = pfedsim("run", "--method", "pfedsim", *QUICK, "--out", "first", cwd=tmp_path)
    assert "served" in first.stdout
    assert "round 1 of 2" in first.stdout
    assert "finished, accuracy" in first.stdout
    again = pfedsim("run", "--method", "pfedsim", *QUICK, "--out", "first", cwd=tmp_path, check=False)
    assert again.returncode == 2
    assert "--fresh" in again.stderr
    pfedsim("run", "first/config.toml", "--out", "second", "--quiet", cwd=tmp_path)
    for name in (
        "config.toml",
        "metrics.jsonl",
        "clients.csv",
        "summary.json",
        "partition.json",
        "models/base.safetensors",
    ):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    shown = pfedsim("show", "first", "second", cwd=tmp_path)
    pictures = [line for line in shown.stdout.splitlines() if line.endswith(".png")]
    assert not (tmp_path / "first" / "figures").exists()
    assert {p.rpartition("/")[2] for p in pictures} >= {"curves.png", "clients.png"}
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    pfedsim("run", "--method", "fedavg", *QUICK, "--out", "first", "--fresh", "--quiet", cwd=tmp_path)
    assert json.loads((tmp_path / "first" / "summary.json").read_text())["method"] == "FedAvg"


def test_a_finished_runs_file_may_hold_more_than_its_run_needs(tmp_path):
    """config.toml always states alpha and classes_each; a table of another method may stand beside them."""
    words = ["--method", "fedavg", *QUICK, "--partition", "iid"]
    pfedsim("run", *words, "--out", "first", "--quiet", cwd=tmp_path)
    config = tmp_path / "first" / "config.toml"
    assert "alpha" in config.read_text()
    (tmp_path / "mine.toml").write_text(config.read_text() + "\n[pfedsim]\nrho = 0.25\n")
    pfedsim("run", "mine.toml", "--out", "second", "--quiet", cwd=tmp_path)
    models = [
        json.loads((tmp_path / p / "summary.json").read_text())["models_digest"]
        for p in ("first", "second")
    ]
    assert models[0] == models[1]


def test_fresh_deletes_nothing_that_is_not_ours(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    done = pfedsim("run", *QUICK, "--out", "thesis", "--fresh", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert (tmp_path / "thesis" / "chapter1.tex").exists()


def test_fresh_deletes_no_project_that_has_a_config_of_its_own(tmp_path):
    (tmp_path / "config.toml").write_text("rounds = 1\n")
    (tmp_path / "precious.py").write_text("x = 1\n")
    for place in (".", str(tmp_path)):
        done = pfedsim("run", "config.toml", "--fresh", "--out", place, cwd=tmp_path, check=False)
        assert done.returncode == 2
        assert (tmp_path / "precious.py").exists()


def test_an_edited_method_is_not_served_from_an_old_run(tmp_path):
    source = (
        "from dataclasses import dataclass\nfrom pfedsim import "
        "Method\n\n\n@dataclass(frozen=True)\nclass Mine(Method):\n"
        "    def gradient(self, job, theta, batches):\n        return 1 * job.grad(theta, batches[0])\n"
    )
    (tmp_path / "mine.py").write_text(source)
    words = ["compare", "--methods", "mine.py:Mine", *QUICK, "--out", "side"]
    pfedsim(*words, cwd=tmp_path)
    (tmp_path / "mine.py").write_text(source.replace("1 *", "2 *"))
    done = pfedsim(*words, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "the code of mine.py:Mine has changed since side/mine-seed42 was run" in done.stderr
    assert "--rerun mine.py:Mine" in done.stderr
    alone = tmp_path / "side" / "local-only-seed42" / "summary.json"
    before = alone.stat().st_mtime_ns
    old = (tmp_path / "side" / "mine-seed42" / "config.toml").read_text()
    pfedsim(*words, "--rerun", "mine.py:Mine", cwd=tmp_path)
    assert alone.stat().st_mtime_ns == before
    assert (tmp_path / "side" / "mine-seed42" / "config.toml").read_text() != old
    done = pfedsim(*words, "--rerun", "fedavg", cwd=tmp_path, check=False)
    assert "--rerun fedavg: it is not one of the compared methods" in done.stderr


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "    def agregate(self, fed, server, task, replies, rng):\n        return server\n",
            "did you mean 'aggregate'?",
        ),
        (
            "    def aggregate(self, fed, server, task, replies, rng):\n        pass\n",
            "Mine.aggregate failed in round 1: TypeError: it gave NoneType",
        ),
        (
            "    def plan(self, fed, server, sampled):\n        return 'stats', sampled\n",
            "still no 'train'",
        ),
        (
            "    def send(self, fed, server, clients, task):\n        return {}\n",
            "Mine.send failed in round 1",
        ),
        ("    def keeps(self, layout):\n        return None\n", "Mine.keeps failed"),
        (
            "    def gradient(self, job, theta, batches):\n        return theta * float('nan')\n",
            "no client's reply could be used",
        ),
    ],
)
def test_slips_of_authors_are_named(tmp_path, body, says):
    head = (
        "from dataclasses import dataclass\nfrom pfedsim import "
        "Method\n\n\n@dataclass(frozen=True)\nclass Mine(Method):\n"
    )
    (tmp_path / "mine.py").write_text(head + body)
    done = pfedsim("run", "--method", "mine.py:Mine", *QUICK, "--out", "mine", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("place", ["afile", "afile/sub"])
def test_a_file_as_out_is_one_sentence(tmp_path, place):
    (tmp_path / "afile").write_text("x")
    for command in (["run", *QUICK], ["run", *QUICK, "--fresh"], ["compare", *QUICK]):
        done = pfedsim(*command, "--out", place, cwd=tmp_path, check=False)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_json_prints_the_summary_alone(tmp_path):
    done = pfedsim("run", "--method", "fedavg", *QUICK, "--json", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert 0 <= summary["served"]["micro"] <= 1
    assert summary["finetuned"]["epochs"] == 1


def test_compare_adds_local_only_and_reuses_finished_runs(tmp_path):
    words = [
        "compare",
        "--methods",
        "fedavg,pfedsim(rho=0.5),pfedsim(rho=0.5,own=2)",
        "--seeds",
        "42,43",
        *QUICK,
        "--out",
        "side",
    ]
    done = pfedsim(*words, cwd=tmp_path)
    for expected in ("Local-Only", "FedAvg", "pFedSim", "pFedSim(own=2.0)", "worse off", "As served"):
        assert expected in done.stdout, expected
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("side/*/summary.json")}
    assert len(before) == 8
    again = pfedsim(*words, cwd=tmp_path)
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.glob("side/*/summary.json")}
    assert "round" not in again.stdout.split("rounds,")[0].replace("rounds", "")
    for name in (
        "table.md",
        "table.tex",
        "table.csv",
        "gains.csv",
        "figures/curves.png",
        "figures/clients.png",
    ):
        assert (tmp_path / "side" / name).stat().st_size > 0
    other = pfedsim(*words[:-2], "--lr", "0.1", "--out", "side", cwd=tmp_path, check=False)
    assert other.returncode == 2
    assert "other settings" in other.stderr


def test_check_fails_a_method_that_changes_its_input(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom pfedsim import "
        "Method\n\n\n@dataclass(frozen=True)\nclass Mine(Method):\n"
        "    def gradient(self, job, theta, batches):\n        theta += 1\n        return "
        "job.grad(theta, batches[0])\n"
    )
    done = pfedsim("check", "mine.py:Mine", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "FAILED  hooks are pure" in done.stdout
    assert "gradient changed" in done.stdout


@pytest.mark.parametrize("hook", ["keeps(self, layout)", "gradient(self, job, theta, batches)"])
def test_check_prints_a_failure_of_several_checks_once(tmp_path, hook):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom pfedsim import Method\n\n\n@dataclass(frozen=True)\n"
        f"class Mine(Method):\n    def {hook}:\n        raise ValueError('no such [mask]')\n"
    )
    done = pfedsim("check", "mine.py:Mine", cwd=tmp_path, check=False)
    assert done.returncode == 1
    failed, last = done.stdout.splitlines()
    assert failed.startswith("FAILED  hooks are pure, same seed same bits, what is kept stays")
    assert failed.count("no such [mask]") == 1
    assert last == f"0 of {len(CHECKS)} checks passed"


def test_a_failing_hook_is_named_with_its_client(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom pfedsim import "
        "Method\n\n\n@dataclass(frozen=True)\nclass Mine(Method):\n"
        "    def finish(self, job, ends):\n        if job.client == 2:\n            raise ValueError('no "
        "such thing')\n"
        "        return super().finish(job, ends)\n"
    )
    done = pfedsim(
        "run", "--method", "mine.py:Mine", *QUICK, "--join", "1", "--out", "mine", cwd=tmp_path, check=False
    )
    assert done.returncode == 3  # finished, but marked
    said = "Mine.finish failed for client 2 in round 1 (mine.py, line 9): ValueError: no such thing"
    assert said in " ".join((done.stdout + done.stderr).split())
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert summary["incidents"] == {"absent": summary["rounds"]}
    marked = f"had incidents that its settings do not ask for: {summary['rounds']} absent; see events.jsonl"
    for command in (["run", "--method", "mine.py:Mine", *QUICK, "--join", "1", "--resume"], ["show"]):
        again = pfedsim(
            *command, *(["--out", "mine"] if len(command) > 1 else ["mine"]), cwd=tmp_path, check=False
        )
        assert marked in " ".join(again.stdout.split())
        assert again.returncode == (0 if command == ["show"] else 3)
    compared = pfedsim(
        "compare",
        "--methods",
        "mine.py:Mine",
        *QUICK,
        "--join",
        "1",
        "--out",
        "both",
        cwd=tmp_path,
        check=False,
    )
    assert compared.returncode == 3
    assert (
        f"Incidents, which events.jsonl names: Mine, seed 42 ({summary['rounds']} absent)."
        in (tmp_path / "both" / "table.md").read_text()
    )


def test_a_hook_that_fails_for_every_client_stops_the_run(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom pfedsim import Method\n\n\n@dataclass(frozen=True)\n"
        "class Mine(Method):\n    def finish(self, job, ends):\n        raise ValueError('no such thing')\n"
    )
    done = pfedsim("run", "--method", "mine.py:Mine", *QUICK, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "(mine.py, line 8): ValueError: no such thing" in done.stderr


def test_attack_and_defence_are_settings(tmp_path):
    words = ["--set", "attack.kind=sign-flip", "--set", "attack.share=0.2", "--set", "defence.rule=median"]
    pfedsim("run", "--method", "fedavg", *QUICK, *words, "--out", "robust", cwd=tmp_path)
    text = (tmp_path / "robust" / "config.toml").read_text()
    assert '[attack]\nkind = "sign-flip"\nshare = 0.2' in text
    assert '[defence]\nrule = "median"\nshare = 0.2' in text
    refused = pfedsim(
        "run", "--method", "local", *QUICK, "--set", "defence.rule=krum", cwd=tmp_path, check=False
    )
    assert refused.returncode == 2
    assert (
        "defence.rule = 'krum' has no effect on local: no mean of the clients' models is taken"
        in refused.stderr
    )
