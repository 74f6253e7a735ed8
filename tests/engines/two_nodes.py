"""A node is killed in the middle of a round, from inside: `python two_nodes.py FOLDER`, in a network namespace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")

from ray.cluster_utils import Cluster

import pfedsim

DIFFER = ("timings.jsonl", "manifest.json", "events.jsonl", "SHA256SUMS", "state.json")
METHOD = '''
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from pfedsim.methods.pfedsim import PFedSim

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mine(PFedSim):
    """In round 3 the first job on the doomed node kills it, and jobs elsewhere wait until it has done so."""

    def begin(self, job):
        doomed, mark = FOLDER / "doomed", FOLDER / "mark"
        if job.round == 2 and doomed.exists():
            if os.getppid() == int(doomed.read_text()):
                mark.touch()
                os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            while not mark.exists():
                time.sleep(0.01)
        return super().begin(job)
'''


def files(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file() and p.name not in DIFFER)
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    (folder / "mine.py").write_text(METHOD)
    federation, method = pfedsim.federate("digits", clients=12), f"{folder / 'mine.py'}:Mine"
    words = {"rounds": 4, "epochs": 1, "join": 1.0, "score": {"every": 0}}
    pfedsim.train(federation, method, folder / "serial", engine="serial", **words)
    (folder / "doomed").write_text(str(second.all_processes["raylet"][0].process.pid))
    run = pfedsim.train(federation, method, folder / "ray", engine="ray", address=cluster.address, **words)
    assert any(event["event"] == "worker died" for event in run.events())
    serial, ray = files(folder / "serial"), files(folder / "ray")
    assert [name for name in serial.keys() | ray.keys() if serial.get(name) != ray.get(name)] == []
    print("same bytes")
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
