"""Signals, an existing folder and the doctor, as a user meets them. The command runs in a forked process,
which needs no new start."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pfedsim.cli import main
from pfedsim.cli.folders import make_room
from pfedsim.errors import Error

QUICK = [
    "--clients",
    "4",
    "--epochs",
    "1",
    "--set",
    "local_steps=2",
    "--set",
    "score.finetune=0",
    "--set",
    "score.every=0",
]


class Command:
    """`pfedsim` with these words, in a process of its own."""

    def __init__(self, *words: object, cwd: Path):
        self.out = cwd / "said"
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            said = os.open(self.out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(said, stream)
            os.chdir(cwd)
            signal.signal(
                signal.SIGINT, signal.default_int_handler
            )  # ignored where the tests run in the background
            sys.argv = ["pfedsim", *map(str, words)]
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = 0
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1 if end.code else 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def wait(self) -> tuple[int, str]:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), self.out.read_text()


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_keeps_its_checkpoint_and_leaves_no_worker(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = Command(
        "run", *QUICK, "--join", "1", "--rounds", "100000", "--workers", "2", "--out", "run", cwd=tmp_path
    )
    until(
        lambda: (
            (tmp_path / "run" / "checkpoint").is_dir()
            and any((tmp_path / "run" / "checkpoint").glob("*.json"))
        )
    )
    workers = workers_of(command.pid)
    assert len(workers) == 2
    os.kill(command.pid, number)
    ended, said = command.wait()
    assert ended == code, said
    assert "pfedsim: stopped; continue with: pfedsim resume run" in said
    until(lambda: not any(map(alive, workers)), 10)
    if number == signal.SIGTERM:
        ended, said = Command("doctor", "run", cwd=tmp_path).wait()
        assert ended == 0, said
        assert "pfedsim resume continues after round" in said
        assert "nothing is wrong" in said


def test_a_killed_run_takes_its_workers_along(tmp_path: Path) -> None:
    command = Command(
        "run", *QUICK, "--join", "1", "--rounds", "100000", "--workers", "2", "--out", "run", cwd=tmp_path
    )
    until(lambda: len(workers_of(command.pid)) == 2)
    workers = workers_of(command.pid)
    os.kill(command.pid, signal.SIGKILL)
    os.waitpid(command.pid, 0)
    until(lambda: not any(map(alive, workers)), 10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_comparison_leaves_nothing_running_and_continues(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["compare", *QUICK, "--methods", "fedavg", "--workers", "2", "--out", "side"]
    command = Command(*words, "--rounds", "100000", cwd=tmp_path)
    runs = [tmp_path / "side" / name for name in ("local-only-seed42", "fedavg-seed42")]
    until(lambda: all(any((run / "checkpoint").glob("*.json")) for run in runs))
    workers = workers_of(command.pid)
    assert len(workers) == 2  # a process for each run
    os.kill(command.pid, number)
    ended, said = command.wait()
    until(lambda: not any(map(alive, workers)), 10)
    if number != signal.SIGKILL:
        assert ended == (130 if number == signal.SIGINT else 143), said
        assert "pfedsim: stopped; run the same command to continue" in said
    command = Command(*words, "--rounds", "100000", cwd=tmp_path)
    until(lambda: all('"resumed": true' in (run / "timings.jsonl").read_text() for run in runs))
    os.kill(command.pid, signal.SIGTERM)
    command.wait()


def test_an_existing_folder_needs_a_word(tmp_path: Path) -> None:
    words = ["run", *QUICK, "--method", "fedavg", "--rounds", "3", "--out", "run"]
    assert Command(*words, "--quiet", cwd=tmp_path).wait() == (0, "run\n")
    code, said = Command(*words, cwd=tmp_path).wait()
    assert code == 2
    assert "--resume" in said
    assert "--fresh" in said
    code, said = Command(*words, "--resume", "--lr", "0.5", cwd=tmp_path).wait()
    assert (code, said) == (
        2,
        "pfedsim: run holds a different run: lr = 0.01, not 0.5; choose another folder, or delete this one\n",
    )
    assert Command("resume", "run", "--quiet", cwd=tmp_path).wait() == (0, "run\n")
    assert Command("resume", "nothing", cwd=tmp_path).wait() == (
        2,
        "pfedsim: there is no folder nothing\n",
    )
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    code, said = Command("doctor", "run", cwd=tmp_path).wait()
    assert code == 1
    assert "WRONG  run/metrics.jsonl is damaged" in said
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    assert Command(*words[:-1], "thesis", "--resume", cwd=tmp_path).wait()[0] == 2
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


@pytest.mark.parametrize("answer", ["resume", "fresh", "quit"])
def test_on_a_terminal_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    import typer

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "timings.jsonl").write_text("")
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: answer)
    monkeypatch.chdir(tmp_path)
    if answer == "quit":
        with pytest.raises(typer.Exit):
            make_room(Path("run"), False, False)
    else:
        assert make_room(Path("run"), False, False) == (answer == "resume")
    assert (tmp_path / "run").exists() == (answer != "fresh")


def test_fresh_deletes_nothing_that_holds_no_run(tmp_path: Path) -> None:
    paper, real, link = tmp_path / "paper", tmp_path / "real", tmp_path / "link"
    (paper / "figures").mkdir(parents=True)
    (paper / "table.tex").write_text("mine")
    with pytest.raises(Error, match="contains more than a pfedsim run"):
        make_room(paper, resume=False, fresh=True)
    real.mkdir()
    (real / "timings.jsonl").touch()
    link.symlink_to(real)
    with pytest.raises(Error, match="is a symbolic link"):
        make_room(link, resume=False, fresh=True)
    assert (paper / "table.tex").is_file()
    assert (real / "timings.jsonl").is_file()
