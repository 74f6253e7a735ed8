"""Standard output that is closed, full or not read, few open files, a read-only file system, damaged logs: one
sentence and a documented exit code (docs/exit-codes.md)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pfedsim import durable
from pfedsim.cli.app import app
from pfedsim.cli.watch import follow
from pfedsim.errors import Error

COMMAND = f"{sys.executable} -m pfedsim"


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("pfedsim", COMMAND)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", **env},
    )


def test_closed() -> None:
    done = shell("pfedsim methods >&-")
    assert done.returncode == 2
    assert done.stderr == "pfedsim: standard output is closed; send it to a file, or to /dev/null\n"
    assert shell("pfedsim methods <&- >&- 2>&-").returncode == 2


@pytest.mark.parametrize("command", ["methods", "--version"])
def test_full(command: str) -> None:
    done = shell(f"pfedsim {command} >/dev/full")
    assert done.returncode == 2
    assert done.stderr == "pfedsim: standard output cannot be written: No space left on device\n"


def test_a_full_standard_error() -> None:
    assert shell("pfedsim run --method nonsense 2>/dev/full").returncode == 2


def test_nobody_reads(tmp_path: Path) -> None:
    done = shell("set -o pipefail; pfedsim methods | head -0")
    assert done.returncode == 141
    assert done.stderr == "pfedsim: standard output cannot be written: nobody reads it\n"


@pytest.mark.slow
def test_nobody_reads_a_run_any_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = f"--clients 4 --rounds 30 --epochs 1 --workers 1 --set score.finetune=0 --out {run}"
    done = shell(f"set -o pipefail; pfedsim run {words} | head -2")
    assert done.returncode == 141
    assert done.stderr.endswith(f"nobody reads it; continue with: pfedsim resume {run}\n")
    assert len(done.stderr.splitlines()) == 1


def test_ascii() -> None:
    done = shell("pfedsim methods fedavg; pfedsim methods", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.isascii()
    shown = shell("pfedsim run --data é.npz", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (2, "pfedsim: there is no file \\xe9.npz\n")


def test_a_locale_without_unicode(tmp_path: Path) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    config = tmp_path / "config.toml"
    config.write_text('method = "é"\n', encoding="utf-8")
    done = shell(f"pfedsim run {config}", **env)
    assert done.returncode == 2
    assert "no method '\\xe9'" in done.stderr


@pytest.mark.slow
def test_few_open_files(tmp_path: Path) -> None:
    done = shell(
        f"ulimit -n 20; pfedsim run --clients 8 --join 1 --rounds 1 --workers 8 --out {tmp_path / 'run'}"
    )
    assert done.returncode == 2
    assert done.stderr == (
        "pfedsim: too many open files: raise the limit with `ulimit -n 1024`, or use fewer --workers\n"
    )


@pytest.mark.parametrize("device", ["cuda:99999999999", "cuda:" + "9" * 30])
def test_huge_device_numbers(device: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--device", device, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, Error)
    assert "CUDA devices here; use the device cpu" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_range_of_seeds_without_end() -> None:
    done = CliRunner().invoke(app, ["compare", "--seeds", "1-99999999999"])
    assert isinstance(done.exception, Error)
    assert "at most 10,000 seeds in a range" in str(done.exception)


def test_doctor_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    opened = os.open

    def read_only(path: str | Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(run)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(durable.os, "open", read_only)
    done = CliRunner().invoke(app, ["doctor", str(run)], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert "nothing is wrong" in done.output
    (run / "timings.jsonl").unlink()
    done = CliRunner().invoke(app, ["doctor", str(run)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "timings.jsonl is missing" in done.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    words = ["--method", "fedavg", "--rounds", "1", "--epochs", "1", "--clients", "4", "--workers", "1"]
    done = CliRunner().invoke(app, ["run", *words, "--out", str(run), "--quiet"])
    assert done.exit_code == 0, done.output
    return run


GOOD = {"round": 1, "train_loss": 1.5, "clients": [0], "bytes_down": 1, "bytes_up": 1}


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "\x1b[31m",
        "[1, 2]",
        "null",
        "[" * 100_000,
        '{"round": "x", "train_loss": 1}',
        '{"train_loss": 1.0}',
        json.dumps({**GOOD, "train_loss": "low"}),
        json.dumps({**GOOD, "clients": 3}),
        '{"split": "test", "round": 1}',
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_watch_on_garbage(line: str, terminal: bool, tmp_path: Path) -> None:
    from rich.console import Console

    (tmp_path / "config.toml").write_text('method = "fedavg"\nrounds = 4\n')
    (tmp_path / "metrics.jsonl").write_text(json.dumps(GOOD) + "\n" + line + "\n")
    (tmp_path / "timings.jsonl").write_text("")
    with pytest.raises(Error, match=r"metrics.jsonl is damaged: .* \(pfedsim doctor"):
        follow(tmp_path, Console(force_terminal=terminal))


def test_watch_on_bytes_and_other_logs(tmp_path: Path) -> None:
    from rich.console import Console

    (tmp_path / "config.toml").write_text('rounds = "many"\n')
    with pytest.raises(Error, match="rounds = 'many' is not a number"):
        follow(tmp_path, Console())
    (tmp_path / "config.toml").write_text("rounds = 4\n")
    for name in ("metrics", "events", "timings"):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"\xff\xfe\n")
        with pytest.raises(Error, match=f"{name}.jsonl is damaged: line 1"):
            follow(tmp_path, Console())
        path.write_text("")
