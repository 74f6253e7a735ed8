"""Kills actors, nodes and drivers of runs on a Ray cluster with SIGKILL at random instants, and holds every byte of
models and metrics against a run that was never killed.

    unshare -rn sh -c 'ip link set lo up; python benchmarks/ray_kills.py --kills 20 --out benchmarks/ray_kills.json'

Two nodes of one core each, on this machine, in a network of their own. A killed driver is resumed, in turn on the
cluster and without it. A killed node is replaced after the run."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")

from ray.cluster_utils import Cluster

DIFFER = (
    "timings.jsonl",
    "manifest.json",
    "events.jsonl",
    "SHA256SUMS",
    "state.json",
)  # tell what happened
WORDS = ["--clients", "20", "--join", "1", "--rounds", "40", "--epochs", "2", "--set", "score.every=10"]
KINDS = ("actor", "node", "driver")


def files(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file() and p.name not in DIFFER)
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pfedsim", *words, "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> float:
    """When it ended; it must have done so well."""
    said, _ = process.communicate()
    assert process.returncode == 0, (process.returncode, said)
    return time.monotonic()


def actors_of(node: Any) -> list[int]:
    """The processes of actors that this node has started."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for place in Path("/proc").iterdir():
        try:
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(raylet) and b"ray::Host" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


class Trials:
    """Two nodes, and runs on them."""

    def __init__(self, folder: Path, draw: random.Random):
        self.folder, self.draw = folder, draw
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.second = self.cluster.add_node(num_cpus=1)
        self.ray = ["--engine", "ray", "--address", self.cluster.address]

    def run(self, name: str, method: str, kind: str = "", after: float = 0.0) -> tuple[float, bool]:
        """Seconds from the first saved round to the end, and whether the kill came before the end."""
        out = self.folder / name
        process = start("run", "--method", method, "--out", str(out), *WORDS, *self.ray)
        while not (out / "checkpoint" / "00001.json").is_file():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        began = time.monotonic()
        time.sleep(after)
        in_time = process.poll() is None and not (out / "summary.json").is_file()
        if kind and in_time:
            getattr(self, f"kill_{kind}")(process)
        if kind == "driver" and in_time:
            where = self.draw.choice((self.ray, ["--engine", "serial"]))
            process = start("resume", str(out), *where)
        took = ended(process) - began
        if kind == "node" and in_time:
            self.second = self.cluster.add_node(num_cpus=1)
        return took, in_time

    def kill_actor(self, _: Any) -> None:
        running = [pid for node in self.cluster.list_all_nodes() for pid in actors_of(node)]
        os.kill(self.draw.choice(running), signal.SIGKILL)

    def kill_node(self, _: Any) -> None:
        for pid in actors_of(self.second):
            os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(self.second, allow_graceful=False)

    def kill_driver(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--method", default="pfedsim")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    draw = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="ray-kills-"))
    found: list[dict[str, Any]] = []
    ended(
        start(
            "run", "--method", asked.method, "--out", str(folder / "serial"), *WORDS, "--engine", "serial"
        )
    )
    trials = Trials(folder, draw)
    never = [trials.run(f"never-{k}", asked.method)[0] for k in range(3)]
    usual = sorted(never)[1]
    wanted = files(folder / "serial")
    print(f"never killed: {', '.join(f'{s:.1f}' for s in never)} s", flush=True)
    while len(found) < asked.kills:
        name, kind = f"kill-{len(found)}", KINDS[len(found) % 3]
        after = draw.uniform(0.0, 0.9 * usual)
        took, in_time = trials.run(name, asked.method, kind, after)
        got = files(folder / name)
        shutil.rmtree(folder / name)
        if not in_time:
            continue
        differs = sorted(n for n in wanted.keys() | got.keys() if wanted.get(n) != got.get(n))
        found.append(
            {"kind": kind, "after": round(after, 2), "lost": round(took - usual, 1), "differs": differs}
        )
        print(json.dumps(found[-1]), flush=True)
    trials.cluster.shutdown()
    shutil.rmtree(folder)
    lost = {k: sorted(one["lost"] for one in found if one["kind"] == k) for k in KINDS}
    report = {
        "method": asked.method,
        "kills": len(found),
        "different": sum(bool(one["differs"]) for one in found),
        "seconds_never_killed": [round(s, 1) for s in never],
        "seconds_lost": {k: {"median": v[len(v) // 2], "most": v[-1]} for k, v in lost.items() if v},
        "each": found,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")
    sys.exit(1 if report["different"] else 0)


if __name__ == "__main__":
    main()
