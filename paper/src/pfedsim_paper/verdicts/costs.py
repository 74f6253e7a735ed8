"""Claims about what a method costs and what it tells the server (Tables 1 and 7, appendix C.2)."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from pfedsim_paper import overhead, privacy
from pfedsim_paper.evidence import Evidence
from pfedsim_paper.grid import set_name, title
from pfedsim_paper.paper import paper
from pfedsim_paper.shortcomings import RISKY
from pfedsim_paper.verdicts.verdict import Verdict, every


def _costs(e: Evidence) -> dict[str, dict[str, dict[str, float]]]:
    """Set and backend -> method -> seconds per sample and bytes received."""
    if e.whose == "paper":
        theirs = paper()["overhead"]
        return {
            set_name(d): {m: {"xi": v[k][0]} for m, v in theirs["cells"].items()}
            for k, d in enumerate(theirs["data"])
        }
    found = {}
    for cell in [
        c
        for settings in ({}, {"backend": "torch"})
        for c in overhead.plan(replace(e.choice, settings=settings))
    ]:
        if record := e.store.find(cell):
            by = {
                m: {"xi": mean(f["xi"]), "down": f["bytes_down"], "server": f["server_bytes"]}
                for m, f in record.found["methods"].items()
            }
            by["all"] = {
                "models": record.found["model_bytes"] * record.found["clients"],
                "rounds": float(cell.words["rounds"]),
            }
            found[
                set_name(str(cell.words["data"])) + (" (torch backend)" if "backend" in cell.words else "")
            ] = by
    return found


def overhead_as_fedavg(e: Evidence) -> Verdict:
    ratios = [
        (d, by["pfedsim"]["xi"] / by["fedavg"]["xi"])
        for d, by in _costs(e).items()
        if {"pfedsim", "fedavg"} <= by.keys()
    ]
    return every([(abs(r - 1) <= 0.05, f"{d}: {r:.3f} times FedAvg") for d, r in ratios])


def others_slower(e: Evidence) -> Verdict:
    found = [
        (d, m, by[m]["xi"] / by["fedavg"]["xi"])
        for d, by in _costs(e).items()
        for m in ("fedfomo", "fedgen")
        if {m, "fedavg"} <= by.keys()
    ]
    return every([(r > 1.05, f"{d}, {title(m)}: {r:.2f} times FedAvg") for d, m, r in found])


def others_send_more(e: Evidence) -> Verdict:
    checks = []
    for d, by in _costs(e).items():
        if all("down" in by.get(m, {}) for m in ("fedavg", "fedfomo", "fedgen", "pfedsim")):
            times = {m: by[m]["down"] / by["fedavg"]["down"] for m in ("fedfomo", "fedgen", "pfedsim")}
            ok = times["fedfomo"] > 1 and times["fedgen"] > 1 and times["pfedsim"] == 1
            checks.append(
                (
                    ok,
                    f"{d}: received, times FedAvg: "
                    + ", ".join(f"{title(m)} {t:.2f}" for m, t in times.items()),
                )
            )
    return every(checks)


def server_stores_all(e: Evidence) -> Verdict:
    checks = []
    for d, by in _costs(e).items():
        if "all" in by and {"pfedsim", "fedavg"} <= by.keys():
            share, times = (
                by["pfedsim"]["server"] / by["all"]["models"],
                by["pfedsim"]["server"] / by["fedavg"]["server"],
            )
            text = (
                f"{d}, after {by['all']['rounds']:.0f} rounds: {share:.0%} of all "
                f"clients' models, {times:.0f} times FedAvg's"
            )
            checks.append((share > 0.5, text))
    return every(checks)


def low_privacy_risk(e: Evidence) -> Verdict:
    """Table 1 has a low risk for pFedSim and a high one for f-FedAP."""
    if e.whose == "paper":
        return Verdict(None)
    told = {str(c.words["method"]): r.found for c in privacy.plan(e.choice) if (r := e.store.find(c))}
    if not {"pfedsim", "fedap"} <= told.keys():
        return Verdict(None)
    read = {
        m: {way: got["auroc"] or 0.5 for way, got in found.items() if isinstance(got, dict)}
        for m, found in told.items()
    }
    statistics = read["fedap"].pop("statistics, fitted")
    shown = [
        f"{title(m)}'s {way} {v:.3f}"
        for m in ("pfedsim", "fedavg", "fedap")
        for way, v in read.get(m, {}).items()
    ]
    figures = f"AUROC: {', '.join(shown)}; f-FedAP's statistics {statistics:.3f}"
    return Verdict(max(read["pfedsim"].values()) < min(RISKY, statistics), figures)


def nothing_but_parameters(e: Evidence) -> Verdict:
    checks = []
    for data, alpha, _ in e.cases() if e.whose == "ours" else []:
        sent = {
            m: r.number("bytes_up_per_client_round")
            for m, r in e.methods(data, alpha).items()
            if m in ("fedavg", "pfedsim")
        }
        if len(sent) == 2:
            text = " and ".join(f"{title(m)} {v:,.0f}" for m, v in sent.items())
            checks.append(
                (sent["pfedsim"] == sent["fedavg"], f"{e.where(data, alpha)}: bytes sent: {text}")
            )
    return every(checks)


CHECKS = (
    overhead_as_fedavg,
    others_slower,
    others_send_more,
    server_stores_all,
    low_privacy_risk,
    nothing_but_parameters,
)
