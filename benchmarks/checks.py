"""What all checks cost: their share of the processor time of each command.

    python benchmarks/checks.py --out benchmarks/checks.json

Every command runs in its own process, imports included. Counted are the sha256 of files and of JSON content, reading
SHA256SUMS, the digest of the samples and the digests of the code ("files and code"); the checks of replies, memories
and server states and the digests of what hooks are given ("replies and hooks"). The larger run has 100 clients with
LeNet5 on 3 x 32 x 32 bytes. One worker, so that everything is counted in one process."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMANDS = {
    "run": "run --data digits --method pfedsim --workers 1 --out run",
    "run, 100 clients": "run --data images.npz --clients 100 --partition iid --method pfedsim --rounds 10 "
    "--workers 1 --out large",
    "show": "show run",
    "show --html": "show run --html",
    "watch": "watch run",
    "export": "export run exported --client 1",
    "export --all": "export run everyone --all",
    "predict": "predict exported samples.npz",
    "run --extend": "run --extend run --rounds 25 --out longer",
}


def child(words: list[str]) -> None:
    """Run one command and print the processor seconds of the checks and of all."""
    from pfedsim import durable, seal
    from pfedsim.cli import main
    from pfedsim.core import purity, server
    from pfedsim.core.wire import Wire
    from pfedsim.data.dataset import DataSet
    from pfedsim.runs import checkpoint, manifest, reader, resume

    spent, depth = {"files": 0.0, "replies": 0.0}, 0

    def timed(function: Callable[..., Any], kind: str = "files") -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal depth
            before, depth = time.thread_time(), depth + 1
            try:
                return function(*arguments, **options)
            finally:
                depth -= 1
                spent[kind] += 0.0 if depth else time.thread_time() - before

        return run

    for module in (durable, checkpoint, resume):
        module.verify = timed(module.verify)  # type: ignore[attr-defined]
    seal.digest = timed(seal.digest)
    reader.sums_of = timed(reader.sums_of)
    manifest._code = timed(manifest._code)
    for name in ("objection", "lengths", "far", "flaw"):
        setattr(server, name, timed(getattr(server, name), "replies"))
    for name in ("proper", "proper_memory"):
        setattr(Wire, name, timed(getattr(Wire, name), "replies"))
    digests = purity._digests
    purity._digests = timed(  # type: ignore[assignment]
        lambda *given: iter(list(digests(*given))), "replies"
    )
    purity._process = timed(purity._process, "replies")
    digest = DataSet.__dict__["digest"]
    digest.func = timed(digest.func)
    sys.argv = ["pfedsim", *words]
    try:
        main()
    finally:
        used = os.times()
        whole = used.user + used.system + used.children_user + used.children_system
        Path("times.json").write_text(json.dumps([spent, whole]))


def measured(command: str, place: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", *command.split()], cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 0, (command, done.stderr)
    checks, whole = json.loads((place / "times.json").read_text())
    return {
        "seconds": whole,
        "files_and_code": checks["files"] / whole,
        "replies_and_hooks": checks["replies"] / whole,
        "share": sum(checks.values()) / whole,
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="a JSON file for the figures")
    asked = options.parse_args()
    import numpy as np

    from pfedsim.data import read

    figures: dict[str, Any] = {"command": "python benchmarks/checks.py " + " ".join(sys.argv[1:])}
    with tempfile.TemporaryDirectory(prefix="pfedsim-checks-") as place:
        digits = read("digits")
        np.savez(Path(place) / "samples.npz", x=digits.x[:100], y=digits.y[:100])
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (30_000, 3, 32, 32), dtype=np.uint8)
        np.savez(Path(place) / "images.npz", x=images, y=draw.integers(0, 10, 30_000))
        for name, command in COMMANDS.items():
            figures[name] = measured(command, Path(place))
    figures["largest_share"] = max(v["share"] for v in figures.values() if isinstance(v, dict))
    print(json.dumps(figures, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
