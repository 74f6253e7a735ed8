"""How glibc hands out memory, for the torch backend: samples a second of MobileNetV2's forward and backward
on one core, in turns. `python benchmarks/allocator.py`; two minutes. Linux with glibc 2.35 or later."""

import os
import subprocess
import sys
import time
from statistics import median

KEPT = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
WAYS = {
    "as it is": "",
    "freed memory kept": KEPT,
    "kept, in huge pages": f"{KEPT}:glibc.malloc.hugetlb=1",
}


def steps() -> None:
    """Prints the rate of each of 20 batches, by processor time."""
    import torch
    from torch.nn import functional as F

    from pfedsim.models.mobilenetv2 import MobileNetV2

    torch.set_num_threads(1)
    network, y = MobileNetV2((3, 64, 64), 20).train(), torch.randint(20, (32,))
    x = torch.randn(32, 3, 64, 64).to(memory_format=torch.channels_last)
    for _ in range(23):
        began = time.process_time()
        F.cross_entropy(network(x), y).backward()
        print(32 / (time.process_time() - began))


def main() -> None:
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(3):
        for way, tunables in WAYS.items():
            environment = os.environ | {"GLIBC_TUNABLES": tunables}
            said = subprocess.run(
                [sys.executable, __file__, "steps"],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            rates[way] += [float(line) for line in said.splitlines()][3:]  # the first batches warm up
    first = rates["as it is"]
    for way, found in rates.items():
        print(
            f"{way}: {max(found) / max(first):.2f} times by the best of "
            f"{len(found)}, {median(found) / median(first):.2f} "
            "by the median"
        )


if __name__ == "__main__":
    steps() if "steps" in sys.argv else main()
