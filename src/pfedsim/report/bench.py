"""A benchmark's report as JSON, Markdown and a bar chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pfedsim import durable
from pfedsim.dev.bench import Report
from pfedsim.report.canvas import plt
from pfedsim.report.figures import saved
from pfedsim.report.looks import COLOURS

HEADINGS = (
    "local training, one core",
    "samples/s best",
    "median",
    "by CPU time, median",
    "times plain, best",
    "median",
    "times DataLoader, best",
    "median",
    "of the core, best",
    "median",
)


def write(report: Report, folder: Path) -> list[Path]:
    """Write bench.json, bench.md and bench.png."""
    durable.make_folder(folder)
    durable.write(folder / "bench.json", (json.dumps(report.plain(), indent=1) + "\n").encode())
    durable.write(folder / "bench.md", markdown(report).encode())
    return [folder / "bench.json", folder / "bench.md", chart(report, folder / "bench.png")]


def markdown(report: Report) -> str:
    """The report as Markdown tables."""
    m = report.machine
    lines = [
        f"{m['cpu']}, {m['cores']} cores, kernels {m['kernels'] or 'none'}, torch {m['torch']}; one "
        "thread a client. "
        f"The core does {report.peak_gflops:.0f} GFLOP/s at most.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---" + "|---:" * (len(HEADINGS) - 1) + "|",
    ]
    for shape, ways in report.training.items():
        for way, r in ways.items():
            lines.append(
                f"| {shape}: {way} | {r['best']:,.0f} | {r['median']:,.0f} | {r['cpu_median']:,.0f} | "
                f"{r['times_plain_best']:.2f} "
                f"| {r['times_plain_median']:.2f} | {r['times_loader_best']:.2f} | "
                f"{r['times_loader_median']:.2f} "
                f"| {100 * r['share_of_matrix_best']:.0f}% | {100 * r['share_of_matrix_median']:.0f}% |"
            )
    lines += networks(report.networks) + _sizes(report)
    lines += ["", "| eight clients side by side | samples/s best | median |", "|---|---:|---:|"]
    lines += [f"| {name} | {r['best']:,.0f} | {r['median']:,.0f} |" for name, r in report.cores.items()]
    lines += ["", "| scoring 100 x 300 images, one core | images/s best | median |", "|---|---:|---:|"]
    lines += [
        f"| {n} | {r['best']:,.0f} | {r['median']:,.0f} |"
        for n, r in report.scoring.items()
        if n != "native_times_best_torch"
    ]
    lines += ["", "| a round, ten of 100 clients, all cores | seconds |", "|---|---:|"]
    lines += [f"| {name} | {seconds:.3f} |" for name, seconds in report.rounds.items()]
    whole = report.whole_run
    lines += [
        "",
        f"pFedSim, a round at 10,000 clients against one at 100: {report.scale['ratio_median']:.2f} "
        "(median), "
        f"{report.scale['ratio_best']:.2f} (best). Scoring 100 clients: "
        f"{report.scale['seconds_to_score_100']:.2f} s.",
        "",
        f"{whole['rounds']} rounds of ten of 100 clients: FedAvg {whole['times_serial_torch']:.2f} times "
        "the serial torch engine; of the "
        "workers' time not spent in local training: "
        + ", ".join(
            f"{name} {100 * whole['lost_outside_steps'][name]:.1f}%" for name in ("FedAvg", "pFedSim")
        )
        + ".",
        "",
        f"Peak memory of the process and its largest worker: {report.peak_memory_mb:.0f} MB.",
    ]
    return "\n".join(lines) + "\n"


def networks(rows: list[dict[str, Any]]) -> list[str]:
    """Networks on both backends as a Markdown table."""
    lines = [
        "",
        "| one core, CPU time, median | batch | MFLOP a sample | torch, ms a step | of the core | torch backend, "
        "times torch | native, ms | times torch | of the core | scoring, times torch |",
        "|---" + "|---:" * 9 + "|",
    ]
    for r in rows:
        cells = [r["network"], r["batch"], f"{r['mflop']:.1f}", f"{r['torch_ms']:.2f}"]
        cells += [f"{100 * r['torch_share']:.0f}%", f"{r['torch_backend_times']:.2f}"]
        if "native_ms" in r:
            cells += [
                f"{r['native_ms']:.2f}",
                f"{r['native_times']:.2f}",
                f"{100 * r['native_share']:.0f}%",
            ]
            cells.append(f"{r['native_scoring_times']:.2f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _sizes(report: Report) -> list[str]:
    """What the torch backend costs as networks grow."""
    lines = [
        "",
        "| torch backend, CPU time against a plain PyTorch loop | median | best |",
        "|---|---:|---:|",
    ]
    for entries, ways in report.sizes.items():
        for way, times in ways.items():
            size = f"{int(entries) / 1e6:.2f} million entries: {way}"
            lines.append(f"| {size} | {times['cpu_median']:.2f} | {times['cpu_best']:.2f} |")
    return lines


def chart(report: Report, path: Path) -> Path:
    """A bar chart of samples per second, by network shape and implementation."""
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    shapes = list(report.training)
    ways = list(next(iter(report.training.values())))
    for k, way in enumerate(ways):
        at = [s + (k - (len(ways) - 1) / 2) * 0.2 for s in range(len(shapes))]
        medians = [report.training[shape][way]["median"] for shape in shapes]
        bars = axes.bar(at, medians, width=0.18, label=way, color=COLOURS[k])
        labels = [f"{report.training[shape][way]['times_plain_median']:.1f}x" for shape in shapes]
        axes.bar_label(bars, labels, fontsize=8, padding=2)
    axes.set_xticks(range(len(shapes)), [shape.replace(", ", "\n", 1) for shape in shapes])
    axes.set(
        ylabel="samples a second (median)",
        title="Local training of LeNet5 on one core; times the plain PyTorch loop above the bars",
    )
    axes.grid(alpha=0.3, axis="y")
    axes.legend(frameon=False, loc="upper left")
    axes.margins(y=0.15)
    return saved(figure, path)
