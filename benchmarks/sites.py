"""Runs across sites that are processes on this machine, with kits and TLS, held against the serial engine's bytes.

    python benchmarks/sites.py methods --out benchmarks/sites.json
    python benchmarks/sites.py kills --kills 20 --out benchmarks/sites.json
    python benchmarks/sites.py time --out benchmarks/sites.json

`methods`: every method over 4 sites. `kills`: SIGKILL at random instants to a site with all its processes, to a site's
job alone, to the hub with all its processes, and to the driver. `time`: seconds and bytes of a round by the size of the
model, the poll interval and the number of sites. It needs the environment of `make test-sites`."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tomli_w
from safetensors.torch import load_file

from pfedsim.core.wire import Wire
from pfedsim.methods import METHODS
from pfedsim.runs.config import Config, check
from pfedsim.runs.execute import execute
from pfedsim.runs.reader import Run
from pfedsim.runs.setup import federate, plan
from pfedsim.sites.admin import Admin
from pfedsim.sites.chain import Chain, How
from pfedsim.sites.keeper import Keeper
from pfedsim.sites.kits import HUB
from pfedsim.sites.local import LEAD, Local, build, running
from pfedsim.sites.segment import CHAIN, beside

WORDS: dict[str, Any] = {"data": "digits", "clients": 20, "join": 1.0, "minimum": 20, "rounds": 6}
ALONE = ("predictions.safetensors", "models")  # what only a simulation writes
DIFFER = ("timings.jsonl", "manifest.json", "SHA256SUMS", "summary.json", "state.json", "state.safetensors")
KINDS = ("site", "job", "hub", "driver")


def serially(config: Config, folder: Path) -> Run:
    """The same run on the serial engine."""
    return execute(config.model_copy(update={"engine": "serial", "workers": 1}), folder)


def differences(local: Local, name: str, serial: Run) -> list[str]:
    """What differs between a run across sites and the serial one: files, the server's state, what clients remember,
    and their models."""
    ours, theirs = local.runs / name, serial.path
    found = [str(p.relative_to(theirs)) for p in theirs.rglob("*") if p.is_file()]
    found = [n for n in found if not n.startswith(ALONE) and Path(n).name not in DIFFER]
    wrong = [n for n in found if not same(ours / n, theirs / n)]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (ours, theirs)]
    wrong += [
        f"summary: {k}"
        for k in summaries[1]
        if k != "models_digest" and summaries[0].get(k) != summaries[1][k]
    ]
    states = [load_file(folder / "final" / "state.safetensors") for folder in (ours, theirs)]
    for key, tensor in states[1].items():
        if key.startswith("server/") and states[0][key].numpy().tobytes() != tensor.numpy().tobytes():
            wrong.append(f"state: {key}")
    marks = json.loads((ours / "final" / "state.json").read_text()).get("elsewhere", {})
    run = json.loads((beside(local.runs, name) / CHAIN).read_text())["run"]
    planned = plan(serial.config, federate(serial.config).task, serial.summary["clients"])
    for client, mark in marks.items():
        (site,) = [s for s, own in local.federation.sites.items() if int(client) in own]
        kept = Keeper(local.site(site) / "state", run, Wire(planned.wire.kept)).find(int(client), mark)
        assert kept is not None, (client, mark)
        there = {"kept": kept[0].kept, **{f"extra/{k}": t for k, t in kept[0].extra.items()}}
        for key, tensor in there.items():
            expected = states[1].get(f"client/{client}/{key}")
            if tensor is not None and (
                expected is None or tensor.numpy().tobytes() != expected.numpy().tobytes()
            ):
                wrong.append(f"memory of client {client}: {key}")
    if not planned.method.beside:
        for client in range(serial.summary["clients"]):
            (site,) = [s for s, own in local.federation.sites.items() if client in own]
            own = load_file(
                local.site(site) / "models" / run / f"client-{client:05d}" / "model.safetensors"
            )
            state = serial.client(client).module.state_dict()
            if any(t.numpy().tobytes() != state[k].numpy().tobytes() for k, t in own.items()):
                wrong.append(f"model of client {client}")
    return wrong


def same(a: Path, b: Path) -> bool:
    return a.is_file() and b.is_file() and a.read_bytes() == b.read_bytes()


@contextmanager
def federation(config: Config, sites: int) -> Iterator[tuple[Local, Admin]]:
    with tempfile.TemporaryDirectory(prefix="pfedsim-sites-") as place:
        local = build(config, sites, Path(place) / "here")
        with running(local, lambda said: print(said, flush=True)) as admin:
            yield local, admin


def methods(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every method, one after another, on the same hub and sites."""
    found: dict[str, Any] = {}
    with federation(check({**WORDS, "method": "fedavg"}), 4) as (local, admin):
        for name in arguments.only or METHODS:
            extra = {"epochs": 2} if name == "fedrep" else {"epochs": 1}
            config = check({**WORDS, "method": name, "rounds": 4, **extra})
            began = time.monotonic()
            Chain(admin, local.runs, name, config, How(), lambda said: None).drive()
            took = time.monotonic() - began
            wrong = differences(local, name, serially(config, local.folder / "serial" / name))
            found[name] = {"seconds": round(took, 1), "differs": wrong}
            print(name, found[name], flush=True)
    return found


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)


def kills(arguments: argparse.Namespace) -> dict[str, Any]:
    """Random kills. What is killed is started again as a service manager would; the driver by its command."""
    draw = random.Random(arguments.seed)
    config = check({**WORDS, "method": "pfedsim", "rounds": arguments.rounds, "epochs": 2})
    found: dict[str, Any] = {"kills": [], "runs": []}
    with federation(config, 4) as (local, _):
        file = local.folder / "run.toml"
        file.write_text(
            tomli_w.dumps({**WORDS, "method": "pfedsim", "rounds": arguments.rounds, "epochs": 2})
        )
        serial = serially(config, local.folder / "serial")
        quiet = _timed(local, file, "quiet", [], draw, found)
        print(f"without kills: {quiet:.1f} s", flush=True)
        found["quiet"] = round(quiet, 1)
        wrong = differences(local, "quiet", serial)
        assert not wrong, wrong
        kinds = [KINDS[k % len(KINDS)] for k in range(arguments.kills)]
        draw.shuffle(kinds)
        while kinds:
            own, kinds = kinds[: arguments.each], kinds[arguments.each :]
            name = f"run-{len(found['runs'])}"
            seconds = _timed(local, file, name, own, draw, found)
            wrong = differences(local, name, serial)
            lost = (seconds - quiet) / len(own)
            jobs = len(json.loads((beside(local.runs, name) / CHAIN).read_text())["jobs"])
            found["runs"].append(
                {
                    "kills": own,
                    "seconds": round(seconds, 1),
                    "jobs": jobs,
                    "lost_each": round(lost, 1),
                    "differs": wrong,
                }
            )
            print(found["runs"][-1], flush=True)
            _keep(arguments, "kills", found)
    return found


def _timed(
    local: Local, file: Path, name: str, own: list[str], draw: random.Random, found: dict[str, Any]
) -> float:
    """Seconds of a run in which these are killed, each after a random part of it."""
    words = [sys.executable, "-P", "-m", "pfedsim", "sites", "run", str(file), "--name", name]
    words += ["--hub", str(local.kit(HUB)), "--admin", str(local.kit(LEAD)), "--silence", "5"]
    log = open(local.folder / f"{name}.driver.log", "ab")  # noqa: SIM115
    began = time.monotonic()
    driver = subprocess.Popen(words, stdout=log, stderr=log)
    left = list(own)
    reached = -1
    while driver.poll() is None or left:
        time.sleep(0.1)
        if left and (now := _round(local, name)) > reached and _training(local, name):
            time.sleep(draw.uniform(0, 3.0))
            if (kind := left.pop(0)) == "driver":
                driver.kill()
                driver.wait()
                driver = subprocess.Popen(words, stdout=log, stderr=log)
            else:
                _hit(local, kind, draw)
            found["kills"].append({"kind": kind, "run": name, "round": _round(local, name)})
            print(found["kills"][-1], flush=True)
            reached = now
        if driver.poll() is not None and not (local.runs / name / "summary.json").is_file():
            raise SystemExit(
                f"the driver ended with {driver.returncode}: {local.folder / name}.driver.log\n"
                + (local.folder / f"{name}.driver.log").read_text()[-2000:]
            )
        if driver.poll() is not None and left:
            print(f"finished before {left}", flush=True)
            left = []
    log.close()
    return time.monotonic() - began


def _hit(local: Local, kind: str, draw: random.Random) -> None:
    name = HUB if kind == "hub" else draw.choice(list(local.federation.sites))
    processes = tree(local.processes[name].pid)
    if kind == "job":
        kill(processes[1:])
        return
    kill(processes)
    local.processes[name].wait()
    del local.processes[name]
    time.sleep(0.5)
    local.start(name)


def _round(local: Local, name: str) -> int:
    try:
        return sum(
            '"train_loss"' in line
            for line in (local.runs / name / "metrics.jsonl").read_text().splitlines()
        )
    except OSError:
        return 0


def _training(local: Local, name: str) -> bool:
    """Whether a job of this run lives now."""
    try:
        return time.time() - json.loads((beside(local.runs, name) / "alive.json").read_text())["at"] < 2
    except (OSError, ValueError):
        return False


def times(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and bytes of a round."""
    with tempfile.TemporaryDirectory(prefix="pfedsim-data-") as place:
        draw = np.random.default_rng(0)
        x, y = draw.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8), np.arange(400) % 10
        np.savez(Path(place) / "noise.npz", x=x, y=y)
        return _times(arguments, Path(place) / "noise.npz")


def _times(arguments: argparse.Namespace, data: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": []}
    for model, shape in (("lenet5", "0.25 MB"), ("mobilenetv2", "9 MB")):
        if arguments.only and model not in arguments.only:
            continue
        for sites in (2, 4):
            words = {
                **WORDS,
                "data": str(data),
                "partition": "iid",
                "clients": sites,
                "method": "fedavg",
                "model": model,
                "rounds": 12,
                "local_steps": 1,
                "batch": 8,
                "score": {"every": 0, "finetune": 0},
            }
            config = check(words)
            with federation(config, sites) as (local, admin):
                for poll in (0.05, 0.2, 1.0):
                    name = f"poll-{int(poll * 100)}"
                    before = {n: cpu(p.pid) for n, p in local.processes.items()}
                    began = time.monotonic()
                    Chain(admin, local.runs, name, config, How(poll=poll), lambda said: None).drive()
                    whole = time.monotonic() - began
                    rounds = [t for t in Run(local.runs / name).timings() if "training" in t]
                    steady = sorted(t["seconds"] for t in rounds[2:])
                    lines = [
                        json.loads(line)
                        for line in (local.site("site-1") / "sent.jsonl").read_text().splitlines()
                    ]
                    sent = [line for line in lines if line["what"] == "results"][-1 - 1]
                    found["rounds"].append(
                        {
                            "model": shape,
                            "sites": sites,
                            "poll": poll,
                            "median": round(steady[len(steady) // 2], 2),
                            "training": round(max(t["training"] for t in rounds[2:]), 3),
                            "job": round(whole, 1),
                            "bytes_in": sent["bytes_in"],
                            "bytes_out": sent["bytes_out"],
                            "cpu_parents": round(
                                sum(cpu(p.pid) - before[n] for n, p in local.processes.items()), 2
                            ),
                        }
                    )
                    print(found["rounds"][-1], flush=True)
                    _keep(arguments, "time", found)
    return found


def cpu(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def _keep(arguments: argparse.Namespace, what: str, found: dict[str, Any]) -> None:
    if arguments.out is None:
        return
    path = Path(arguments.out)
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, what: found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["methods", "kills", "time"])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=4, help="kills in one run")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    work = {"methods": methods, "kills": kills, "time": times}[arguments.what]
    _keep(arguments, arguments.what, work(arguments))


if __name__ == "__main__":
    main()
