"""Serial, pool and Ray must write the same bytes: 100 clients of CIFAR-10 with pFedSim, ten rounds, and every method on
digits.

    PFEDSIM_DATA=DIR unshare -rn sh -c 'ip link set lo up; python benchmarks/engines.py --out benchmarks/engines.json'

Without DIR, `--only digits`. Compared is every file of a run that SHA256SUMS lists: models, metrics, events, the final
state. The Ray is one of our own, with two actors on the loopback interface."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pfedsim
from pfedsim.methods import METHODS

ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "pool": {"engine": "pool", "workers": 2},
    "ray": {"engine": "ray", "workers": 2},
}


def compared(federation: Any, method: str, **words: Any) -> dict[str, Any]:
    """One run on each engine: the digest of what it wrote, and its seconds."""
    found: dict[str, Any] = {"method": method, "digests": {}, "seconds": {}}
    for name, engine in ENGINES.items():
        with tempfile.TemporaryDirectory(prefix="pfedsim-engines-") as folder:
            began = time.monotonic()
            run = pfedsim.train(federation, method, Path(folder) / "run", **words, **engine)
            found["seconds"][name] = round(time.monotonic() - began, 1)
            sums = (run.path / "SHA256SUMS").read_bytes()
            found["files"] = len(sums.splitlines())
            found["digests"][name] = hashlib.sha256(sums).hexdigest()
    found["same"] = len(set(found["digests"].values())) == 1
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", choices=["cifar10", "digits"])
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    found = {}
    if asked.only != "digits":
        federation = pfedsim.federate("cifar10", clients=100)
        found["cifar10"] = [compared(federation, "pfedsim", rounds=10)]
    if asked.only != "cifar10":
        federation = pfedsim.federate("digits", clients=10)
        few = {"rounds": 3, "epochs": 2, "join": 0.7}
        found["digits"] = [compared(federation, method, **few) for method in METHODS]
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if all(one["same"] for each in found.values() for one in each) else 1)


if __name__ == "__main__":
    main()
