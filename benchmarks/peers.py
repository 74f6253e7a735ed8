"""pfedsim beside Flower's simulation, pfl-research and a plain PyTorch loop, on two published works, in turns.

    python benchmarks/peers.py                     both works in full, three times: several hours
    python benchmarks/peers.py --quick             fewer rounds, once
    python benchmarks/peers.py --only W2 "plain loop" pfedsim

The works and the programs are in benchmarks/peers_loops. Each program runs in an environment of its own, made from PyPI
in --cache; pfedsim runs in the environment of this script. All train the same number of samples, one thread each, and
score the last model on the same test samples.

Processor seconds are those of all processes that a program starts: this script looks at them four times a second and
whenever the program says where it is. "Start-up" ends when the libraries are loaded and the data are at hand. A program
that starts its workers later, as Flower does, has that in its first round, so the rate after the first round stands
beside the rate of all. Memory is the highest sum of the processes' proportional set sizes: shared pages count once.
Every run is added to --out; the table and the chart show all that are there."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LOOPS = HERE / "peers_loops"
sys.path.insert(0, str(LOOPS))
from works import WORKS  # noqa: E402 - beside this file, and without pfedsim

TORCH = "torch==2.13.0"
SOURCE = [
    "--extra-index-url",
    "https://download.pytorch.org/whl/cpu",
]  # a build without CUDA, where there is one
ENVIRONMENTS = {
    "plain": [TORCH, "numpy"],
    "flower": [TORCH, "numpy", "flwr[simulation]==1.41.0"],
    "pfl": [TORCH, "numpy", "pfl[pytorch]==0.6.0"],
}
QUICK = {"W1": 2, "W2": 4}  # rounds
TICKS = os.sysconf("SC_CLK_TCK")
Run = dict[str, Any]


@dataclass(frozen=True)
class Program:
    environment: str  # "" for the one of this script
    script: str
    settings: dict[str, str] = field(default_factory=dict)


def ours(backend: str, workers: int) -> Program:
    return Program("", "ours.py", {"PEERS_BACKEND": backend, "PEERS_WORKERS": str(workers)})


PROGRAMS = {
    "plain loop": Program("plain", "plain.py"),
    "pfl-research": Program("pfl", "research.py"),
    "Flower": Program("flower", "flower.py"),
    "pfedsim, torch": ours("torch", 1),
    "pfedsim": ours("auto", 1),
    "pfedsim, two workers": ours("auto", 2),
}


def python_of(program: Program, cache: Path) -> str:
    """The interpreter of this program's environment, which is made where it is missing."""
    if not program.environment:
        return sys.executable
    folder, wanted = cache / program.environment, ENVIRONMENTS[program.environment]
    made = folder / "made.json"
    if not made.is_file() or json.loads(made.read_text()) != wanted:
        print(f"making {folder}: {' '.join(wanted)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *SOURCE]
        subprocess.run([*pip, *wanted], check=True)
        made.write_text(json.dumps(wanted))
    return str(folder / "bin/python")


def images(cache: Path) -> Path:
    """60,000 images of random bytes."""
    path = cache / "images.npy"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(0)
        np.save(path, draw.integers(0, 256, (60_000, 3, 32, 32), dtype=np.uint8))
    return path


class Watcher:
    """Processor seconds and memory of all processes that carry a mark in their environment, ended ones included."""

    def __init__(self, mark: str):
        self._mark, self._ours, self._spent = mark.encode(), {}, {}  # type: ignore[var-annotated]
        self.peak = 0.0
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Until now."""
        with self._lock:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                self._look(pid)
            return float(sum(self._spent.values()))

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _look(self, pid: str) -> None:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            key = pid, words[19]  # a number may come again, with another start
            if key not in self._ours:
                self._ours[key] = self._mark in Path(f"/proc/{pid}/environ").read_bytes()
            if self._ours[key]:
                self._spent[key] = (int(words[11]) + int(words[12])) / TICKS
        except (OSError, IndexError):
            pass

    def _watch(self) -> None:
        while not self._end.wait(0.25):
            self.seconds()
            with self._lock:
                here = [pid for (pid, _), is_ours in self._ours.items() if is_ours]
            self.peak = max(self.peak, sum(map(_megabytes, here)))


def _megabytes(pid: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, IndexError):
        return 0.0


def run(name: str, work: str, rounds: int, cache: Path) -> Run:
    """One program's run of one work."""
    program, mark = PROGRAMS[name], uuid.uuid4().hex
    words = {"WORK": work, "ROUNDS": str(rounds), "DATA": str(images(cache)), "MARK": mark}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = [str(LOOPS)] + (
        [os.environ["PYTHONPATH"]] if not program.environment and "PYTHONPATH" in os.environ else []
    )
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        **{f"PEERS_{key}": value for key, value in words.items()},
        **{
            "PYTHONPATH": ":".join(paths),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_ADDRESS": "local",
            "RAY_TMPDIR": str(cache / "ray"),
        },
        **threads,
        **program.settings,
    }
    command = [python_of(program, cache), str(LOOPS / program.script)]
    watcher, began = Watcher(mark), time.perf_counter()
    marks: list[tuple[str, float, float]] = []
    found, said = {}, []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cache
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            match line.split():
                case ["MARK", what, _]:
                    marks.append((what, watcher.seconds(), time.perf_counter() - began))
                case ["TRAINED", trained, "ACCURACY", accuracy]:
                    found = {"trained": int(trained), "accuracy": float(accuracy)}
    watcher.close()
    if process.returncode or not marks or marks[-1][0] != "end" or not found:
        raise SystemExit(f"{name} failed on {work}:\n{''.join(said[-30:])}")
    if found["trained"] != rounds * WORKS[work].a_round:
        raise SystemExit(
            f"{name} trained {found['trained']} samples in {work}, not {rounds * WORKS[work].a_round}"
        )
    return {
        "program": name,
        "work": work,
        "rounds": rounds,
        **found,
        **_figures(marks, work),
        "peak_mb": watcher.peak,
    }


def _figures(marks: list[tuple[str, float, float]], work: str) -> Run:
    """What a run's marks say: (what, processor seconds, seconds) since the program was started."""
    begin = next(m for m in marks if m[0] == "begin")
    ends = [m for m in marks if m[0] == "round"][: -1 if marks[-2][0] == "round" else None]
    figures: Run = {
        "start_cpu": begin[1],
        "start_wall": begin[2],
        "cpu": marks[-1][1] - begin[1],
        "wall": marks[-1][2] - begin[2],
    }
    if len(ends) > 1:
        trained = (len(ends) - 1) * WORKS[work].a_round
        figures["rate_after_first"] = trained / (ends[-1][1] - ends[0][1])
    return figures


def best_and_median(values: list[float], digits: int = 0) -> str:
    return f"{max(values):,.{digits}f} | {median(values):,.{digits}f}" if values else "| "


def table(runs: list[Run]) -> str:
    """Markdown, a table for each work; ratios are to the plain loop of the same turn."""
    lines: list[str] = []
    for work in dict.fromkeys(run["work"] for run in runs):
        here = [run for run in runs if run["work"] == work]
        turns = sorted({run["turn"] for run in here})
        plain = {r["turn"]: r["trained"] / r["cpu"] for r in here if r["program"] == "plain loop"}
        rounds = sorted({run["rounds"] for run in here})
        lines += [
            f"{work}, {' and '.join(map(str, rounds))} rounds, {len(turns)} turns",
            "",
            "| program | samples per CPU second, best | median | times the plain loop, best | median | after the first "
            "round, best | median | samples per second, best | median | CPU s to start | peak MB |",
            "|---|" + "---:|" * 10,
        ]
        for name in (name for name in PROGRAMS if any(r["program"] == name for r in here)):
            own = [r for r in here if r["program"] == name]
            rates = [r["trained"] / r["cpu"] for r in own]
            times = [r["trained"] / r["cpu"] / plain[r["turn"]] for r in own if r["turn"] in plain]
            after = [r["rate_after_first"] for r in own if "rate_after_first" in r]
            wall = [r["trained"] / r["wall"] for r in own]
            start, peak = median(r["start_cpu"] for r in own), max(r["peak_mb"] for r in own)
            lines.append(
                f"| {name} | {best_and_median(rates)} | {best_and_median(times, 2)} | {best_and_median(after)} | "
                f"{best_and_median(wall)} | {start:.1f} | {peak:,.0f} |"
            )
        lines.append("")
    return "\n".join(lines)


def chart(runs: list[Run], path: Path) -> None:
    """A bar for each program, its median; a dot for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    works = list(dict.fromkeys(run["work"] for run in runs))
    figure, axes = pyplot.subplots(1, len(works), figsize=(5.2 * len(works), 3.2), squeeze=False)
    for axis, work in zip(axes[0], works, strict=True):
        rates: dict[str, list[float]] = {}
        for run in runs:
            if run["work"] == work:
                rates.setdefault(run["program"], []).append(run["trained"] / run["cpu"])
        names = [name for name in reversed(PROGRAMS) if name in rates]
        colours = ["#d55e00" if name.startswith("pfedsim") else "#999999" for name in names]
        axis.barh(names, [median(rates[name]) for name in names], color=colours)
        for name in names:
            axis.plot(rates[name], [name] * len(rates[name]), "k.", markersize=4)
        axis.set_title(f"{work}: samples per CPU second")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="fewer rounds, one turn")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME", help="works and programs")
    options.add_argument("--cache", type=Path, default=Path.home() / ".cache/pfedsim-peers")
    options.add_argument("--out", type=Path, default=HERE / "peers.json")
    asked = options.parse_args()
    if strange := set(asked.only) - {*WORKS, *PROGRAMS}:
        options.error(f"--only {sorted(strange)[0]!r}: there are {', '.join([*WORKS, *PROGRAMS])}")
    works = [work for work in WORKS if work in asked.only] or list(WORKS)
    programs = [name for name in PROGRAMS if name in asked.only] or list(PROGRAMS)
    cache = asked.cache.resolve()
    for name in programs:
        python_of(PROGRAMS[name], cache)
    kept = json.loads(asked.out.read_text()) if asked.out.is_file() else {"runs": []}
    kept |= {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "with": ENVIRONMENTS,
    }
    runs: list[Run] = kept["runs"]
    first = 1 + max((run["turn"] for run in runs), default=0)
    for turn in range(first, first + (1 if asked.quick else asked.turns)):
        for work in works:
            for name in programs:
                done = run(name, work, QUICK[work] if asked.quick else WORKS[work].rounds, cache)
                runs.append({"turn": turn, **done})
                print(json.dumps(runs[-1]), file=sys.stderr)
                asked.out.write_text(json.dumps(kept, indent=1) + "\n")
    asked.out.with_suffix(".md").write_text(table(runs))
    chart(runs, asked.out.with_suffix(".png"))
    print(table(runs))


if __name__ == "__main__":
    main()
