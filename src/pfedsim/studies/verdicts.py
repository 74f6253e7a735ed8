"""A function for each claim of the paper: does it hold by the evidence, and by which figures?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean

import numpy as np

from pfedsim.methods import METHODS
from pfedsim.studies import cka, heterogeneity, metrics, overhead, privacy, questions, similarity
from pfedsim.studies import datasets as tables
from pfedsim.studies.evidence import Case, Evidence, common
from pfedsim.studies.grid import MICRO, TUNED, Path, dealt, runs, set_name, spread, title
from pfedsim.studies.lengths import trained
from pfedsim.studies.likeness import MEASURES, SUBSETS, correlations
from pfedsim.studies.paper import paper
from pfedsim.studies.protocol import SEEDS, alphas, base

TRADITIONAL = ("fedavg", "fedprox", "feddyn", "fedgen")
PERSONALISED = tuple(m for m in METHODS if m not in TRADITIONAL and m != "local")


@dataclass(frozen=True)
class Verdict:
    """None: not measured."""

    holds: bool | None
    figures: str = ""

    @property
    def word(self) -> str:
        return {True: "holds", False: "does not", None: "not measured"}[self.holds]


def _where(data: str, alpha: float) -> str:
    return f"{set_name(data)} {dealt(alpha)}"


def _lead(case: Case) -> tuple[float, str]:
    """pFedSim above the best other method, and which that is."""
    best = max((m for m in case if m != "pfedsim"), key=lambda m: case[m])
    return case["pfedsim"] - case[best], best


def _all(checks: list[tuple[bool, str]]) -> Verdict:
    """Holds where every case does; the figures of all, those that fail marked."""
    if not checks:
        return Verdict(None)
    return Verdict(all(ok for ok, _ in checks), "; ".join(text if ok else f"NOT {text}" for ok, text in checks))


def best_in_all_cases(e: Evidence, path: Path = MICRO) -> Verdict:
    checks = []
    for data, alpha, case in e.cases(path):
        lead, best = _lead(case)
        of = "" if len(case) == len(METHODS) else f" of {len(case)} methods"
        every, seeds = lead > 0.005, ""
        if e.whose == "ours":
            found = e.methods(data, alpha)
            leads = [
                min(found["pfedsim"].minus(found[m], path)[k] for m in case if m != "pfedsim") for k in range(len(found["pfedsim"].by_seed))
            ]
            every, seeds = min(leads) > 0.005, f", seeds {found['pfedsim'].seeds}"
        checks.append((every, f"{_where(data, alpha)}: {lead:+.2f} against {title(best)}{of}{seeds}"))
    return _all(checks)


def best_in_all_cases_tuned(e: Evidence) -> Verdict:
    return best_in_all_cases(e, TUNED)


def average_gain(e: Evidence) -> Verdict:
    """Over the paper's own cases, against what the paper has there."""
    theirs = {(d, a): _lead(case)[0] for d, a, case in Evidence(e.store, e.choice, "paper").cases()}
    leads = {(d, a): _lead(case)[0] for d, a, case in e.cases() if len(case) == len(METHODS) and (d, a) in theirs}
    if not leads:
        return Verdict(None)
    ours, printed_there = mean(leads.values()), mean(theirs[case] for case in leads)
    figures = f"{ours:+.2f} over {len(leads)} of the paper's {len(theirs)} cases, where the paper has {printed_there:+.2f}"
    return Verdict(abs(ours - (paper()["accuracy"]["mean_lead"] if e.whose == "paper" else printed_there)) <= 0.5, figures)


def personalised_better_at_small_alpha(e: Evidence) -> Verdict:
    checks = []
    for data, alpha, case in e.cases():
        own, shared = ([(case[m], m) for m in group if m in case] for group in (PERSONALISED, TRADITIONAL))
        if alpha == 0.1 and own and shared:
            low, high = min(own), max(shared)
            checks.append(
                (
                    low[0] > high[0],
                    f"{set_name(data)}: lowest personalised {title(low[1])} {low[0]:.2f}, highest common {title(high[1])} {high[0]:.2f}",
                )
            )
    return _all(checks)


def gain_larger_at_small_alpha(e: Evidence) -> Verdict:
    leads: dict[str, dict[float, float]] = {}
    for data, alpha, case in e.cases():
        if len(case) == len(METHODS):
            leads.setdefault(data, {})[alpha] = _lead(case)[0]
    both = {d: by for d, by in leads.items() if {0.1, 0.5} <= by.keys()}
    return _all([(by[0.1] > by[0.5], f"{set_name(d)}: {by[0.1]:+.2f} and {by[0.5]:+.2f}") for d, by in both.items()])


def fedavg_deteriorates(e: Evidence) -> Verdict:
    by: dict[str, dict[float, float]] = {}
    for data, alpha, case in e.cases():
        if "fedavg" in case:
            by.setdefault(data, {})[alpha] = case["fedavg"]
    both = {d: v for d, v in by.items() if {0.1, 0.5} <= v.keys()}
    return _all([(v[0.5] - v[0.1] >= 5, f"{set_name(d)}: {v[0.1]:.2f} and {v[0.5]:.2f}") for d, v in both.items()])


def better_than_fedap(e: Evidence) -> Verdict:
    found = [(d, a, case["pfedsim"] - case["fedap"]) for d, a, case in e.cases() if "fedap" in case]
    return _all([(gap > 0, f"{_where(d, a)}: {gap:+.2f}") for d, a, gap in found])


def tiny_imagenet(e: Evidence) -> Verdict:
    leads = [(*_lead(case), len(case)) for data, _, case in e.cases() if data == "tiny-imagenet"]
    if not leads:
        return Verdict(None)
    lead, best, count = max(leads)
    return Verdict(lead > 5, f"largest lead {lead:+.2f}, against {title(best)}, of {count} methods")


def rho_one_worst(e: Evidence) -> Verdict:
    found = [(d, a, by) for d, a, by in e.rhos() if 1.0 in by]
    return _all(
        [
            (by[1.0] == min(by.values()), f"{_where(d, a)}: {by[1.0]:.2f}, next lowest {min(v for r, v in by.items() if r < 1):.2f}")
            for d, a, by in found
        ]
    )


def rho_zero_worse(e: Evidence) -> Verdict:
    checks = []
    for d, a, by in e.rhos():
        inner = {r: v for r, v in by.items() if 0 < r < 1}
        if 0.0 in by and inner:
            low = min(inner, key=lambda r: inner[r])
            checks.append((by[0.0] < inner[low], f"{_where(d, a)}: {by[0.0]:.2f}, lowest between {inner[low]:.2f} at {low:g}"))
    return _all(checks)


def rho_oversized(e: Evidence) -> Verdict:
    found = [(d, a, by) for d, a, by in e.rhos() if {0.7, 0.9} <= by.keys()]
    return _all([(by[0.9] < by[0.7], f"{_where(d, a)}: {by[0.9] - by[0.7]:+.2f}") for d, a, by in found])


def rho_flat(e: Evidence) -> Verdict:
    found = [(d, a, max(by.values()) - min(by[r] for r in (0.3, 0.5, 0.7))) for d, a, by in e.rhos() if {0.3, 0.5, 0.7} <= by.keys()]
    return _all([(below <= 2, f"{_where(d, a)}: at most {below:.2f} below the highest") for d, a, below in found])


def _best_rho(e: Evidence, model: str, right: Callable[[float], bool]) -> Verdict:
    best = [(d, a, max(by, key=lambda r: by[r])) for d, a, by in e.rhos() if base(d)["model"] == model]
    return _all([(right(r), f"{_where(d, a)}: best at {r:g}") for d, a, r in best])


def rho_small_models(e: Evidence) -> Verdict:
    return _best_rho(e, "lenet5", lambda r: r >= 0.5)


def rho_large_models(e: Evidence) -> Verdict:
    return _best_rho(e, "mobilenetv2", lambda r: r < 0.5)


def _costs(e: Evidence) -> dict[str, dict[str, dict[str, float]]]:
    """Set and backend -> method -> seconds per sample and bytes received."""
    if e.whose == "paper":
        theirs = paper()["overhead"]
        return {set_name(d): {m: {"xi": v[k][0]} for m, v in theirs["cells"].items()} for k, d in enumerate(theirs["data"])}
    found = {}
    for cell in [c for settings in ({}, {"backend": "torch"}) for c in overhead.plan(replace(e.choice, settings=settings))]:
        if record := e.store.find(cell):
            by = {
                m: {"xi": mean(f["xi"]), "down": f["bytes_down"], "server": f["server_bytes"]} for m, f in record.found["methods"].items()
            }
            by["all"] = {"models": record.found["model_bytes"] * record.found["clients"], "rounds": float(cell.words["rounds"])}
            found[set_name(str(cell.words["data"])) + (" (torch backend)" if "backend" in cell.words else "")] = by
    return found


def overhead_as_fedavg(e: Evidence) -> Verdict:
    ratios = [(d, by["pfedsim"]["xi"] / by["fedavg"]["xi"]) for d, by in _costs(e).items() if {"pfedsim", "fedavg"} <= by.keys()]
    return _all([(abs(r - 1) <= 0.05, f"{d}: {r:.3f} times FedAvg") for d, r in ratios])


def others_slower(e: Evidence) -> Verdict:
    found = [
        (d, m, by[m]["xi"] / by["fedavg"]["xi"]) for d, by in _costs(e).items() for m in ("fedfomo", "fedgen") if {m, "fedavg"} <= by.keys()
    ]
    return _all([(r > 1.05, f"{d}, {title(m)}: {r:.2f} times FedAvg") for d, m, r in found])


def others_send_more(e: Evidence) -> Verdict:
    checks = []
    for d, by in _costs(e).items():
        if all("down" in by.get(m, {}) for m in ("fedavg", "fedfomo", "fedgen", "pfedsim")):
            times = {m: by[m]["down"] / by["fedavg"]["down"] for m in ("fedfomo", "fedgen", "pfedsim")}
            ok = times["fedfomo"] > 1 and times["fedgen"] > 1 and times["pfedsim"] == 1
            checks.append((ok, f"{d}: received, times FedAvg: " + ", ".join(f"{title(m)} {t:.2f}" for m, t in times.items())))
    return _all(checks)


def server_stores_all(e: Evidence) -> Verdict:
    checks = []
    for d, by in _costs(e).items():
        if "all" in by and {"pfedsim", "fedavg"} <= by.keys():
            share, times = by["pfedsim"]["server"] / by["all"]["models"], by["pfedsim"]["server"] / by["fedavg"]["server"]
            text = f"{d}, after {by['all']['rounds']:.0f} rounds: {share:.0%} of all clients' models, {times:.0f} times FedAvg's"
            checks.append((share > 0.5, text))
    return _all(checks)


def classifier_tells_apart(e: Evidence) -> Verdict:
    checks = []
    for cell in cka.plan(e.choice) if e.whose == "ours" else []:
        if dict(cell.extra)["trained"] == "rounds" and (record := e.store.find(cell)):
            values = list(cka.between(record).values())
            ok = values[0] == max(values) and values[-1] == min(values) and values[0] > values[-2] > values[-1]
            checks.append((ok, ", ".join(f"layer {k} {v:.3f}" for k, v in enumerate(values))))
    return _all(checks)


def _four(e: Evidence) -> list[dict[str, list[list[float]]]]:
    plan = similarity.plan(e.choice) if e.whose == "ours" else []
    return [dict(r.found) for c in plan if dict(c.extra)["trained"] == "rounds" and (r := e.store.find(c))]


def order_of_similarities(e: Evidence) -> Verdict:
    found = [[f["CS"][a][b] for a, b in similarity.PAIRS] for f in _four(e)]
    found += [paper()["metrics"]["CS"]] if e.whose == "paper" else []
    printed_ = [[round(x, 2) for x in v] for v in found]
    return _all([(v == sorted(v, reverse=True) and len(set(v)) == 4, ", ".join(f"{x:.2f}" for x in v)) for v in printed_])


APART = 0.1  # of two cosines, one high and one low


def boundaries(e: Evidence) -> Verdict:
    checks = []
    names = list(SUBSETS)
    for f in _four(e):
        for a, b in combinations(range(4), 2):
            alike: list[float] = []
            single: list[float] = []
            for c, cosine in enumerate(f["cosines"][f"{a}{b}"]):  # type: ignore[call-overload]
                (alike if (c in SUBSETS[names[a]]) == (c in SUBSETS[names[b]]) else single).append(cosine)
            if alike and single:
                text = f"{similarity.name(a, b)}: {min(alike):.2f} or more against {max(single):.2f} or less"
                checks.append((min(alike) - max(single) >= APART, text))
    return _all(checks)


def cs_best_measure(e: Evidence) -> Verdict:
    checks = []
    if e.whose == "paper":
        printed_ = paper()["metrics"]
        by = {m: correlations(np.array(printed_["data_similarity"]), np.array(printed_[m]))["pearson"] or 0 for m in MEASURES}
        checks.append((max(by, key=lambda m: by[m]) == "CS", ", ".join(f"{m} {v:.3f}" for m, v in by.items())))
    for cell in metrics.plan(e.choice) if e.whose == "ours" else []:
        if record := e.store.find(cell):
            values = {m: record.found["correlation"][m]["pearson"] for m in MEASURES}
            where = f"{'four subsets' if dict(cell.extra)['clients'] == 'four' else 'all pairs'}, {trained(cell)}"
            ok = values["CS"] is not None and all(v is None or v <= values["CS"] for v in values.values())
            checks.append((ok, f"{where}: " + ", ".join(f"{m} {v:.3f}" for m, v in values.items() if v is not None)))
    return _all(checks)


def phi_between_zero_and_one(e: Evidence) -> Verdict:
    if e.whose == "paper":
        return Verdict(None)
    chosen = e.choice.of(seeds=SEEDS)
    found = [
        (a, r.found["similarity"]["largest"])
        for d in chosen.data
        for a in alphas(d, chosen)
        for r in runs(e.store, chosen, d, "pfedsim", a).by_seed.values()
        if "similarity" in r.found
    ]
    top = {a: max(v for b, v in found if b == a) for a, _ in found}
    return _all([(v <= 1, f"{dealt(a)}: largest {v:.2f}") for a, v in top.items()])


def _above(e: Evidence, others: Sequence[str], path: Path) -> Verdict:
    """pFedSim more than half a point above these, seed by seed on average."""
    checks = []
    chosen = e.choice.of(seeds=SEEDS)
    for data in chosen.data if e.whose == "ours" else []:
        for alpha in chosen.alphas:
            mine = runs(e.store, chosen, data, "pfedsim", alpha)
            for other in others:
                gaps = mine.minus(runs(e.store, chosen, data, other, alpha), path)
                if gaps:
                    checks.append((mean(gaps) > 0.5, f"{_where(data, alpha)}: {spread(gaps, '+')} against {title(other)}"))
    return _all(checks)


def better_than_decoupling(e: Evidence) -> Verdict:
    return _above(e, ("fedper", "fedrep", questions.CONTROL), MICRO)


def better_than_decoupling_tuned(e: Evidence) -> Verdict:
    return _above(e, ("fedper", "fedrep", questions.CONTROL), TUNED)


def similarity_matters(e: Evidence) -> Verdict:
    return _above(e, ("pfedsim:uniform",), TUNED)


def traditional_better_under_feature_shift(e: Evidence) -> Verdict:
    checks = []
    for data, case in e.by_domain():
        shared, own = ([case[m] for m in group if m in case and m != "pfedsim"] for group in (TRADITIONAL, PERSONALISED))
        if min(len(shared), len(own)) > 1:
            checks.append((mean(shared) > mean(own), f"{set_name(data)}: {mean(shared):.2f} against {mean(own):.2f}"))
    return _all(checks)


def best_under_feature_shift(e: Evidence) -> Verdict:
    found = [(data, *_lead(case)) for data, case in e.by_domain()]
    return _all([(round(lead, 2) > 0, f"{set_name(d)}: {lead:+.2f} against {title(best)}") for d, lead, best in found])


def gain_shrinks(e: Evidence) -> Verdict:
    checks = []
    chosen = heterogeneity.defaults(e.choice)
    for data in chosen.data if e.whose == "ours" else []:
        leads = {}
        for alpha in chosen.alphas:
            found = common({m: runs(e.store, chosen, data, m, alpha) for m in heterogeneity.METHODS})
            if len(found) == len(heterogeneity.METHODS):
                leads[alpha] = _lead({m: r.mean() or 0 for m, r in found.items()})
        if {0.1, 10.0} <= leads.keys():
            text = ", ".join(f"{lead:+.2f} at {alpha:g} (against {title(best)})" for alpha, (lead, best) in leads.items())
            checks.append((leads[10.0][0] <= min(1, leads[0.1][0] / 2), f"{set_name(data)}: {text}"))
    return _all(checks)


def low_privacy_risk(e: Evidence) -> Verdict:
    """Table 1 has a low risk for pFedSim and a high one for f-FedAP."""
    if e.whose == "paper":
        return Verdict(None)
    told = {str(c.words["method"]): r.found for c in privacy.plan(e.choice) if (r := e.store.find(c))}
    if not {"pfedsim", "fedap"} <= told.keys():
        return Verdict(None)
    read = {m: {way: got["auroc"] or 0.5 for way, got in found.items() if isinstance(got, dict)} for m, found in told.items()}
    statistics = read["fedap"].pop("statistics, fitted")
    shown = [f"{title(m)}'s {way} {v:.3f}" for m in ("pfedsim", "fedavg") for way, v in read.get(m, {}).items()]
    figures = f"AUROC: {', '.join(shown)}; f-FedAP's statistics {statistics:.3f}"
    return Verdict(max(read["pfedsim"].values()) < min(0.7, statistics), figures)


def nothing_but_parameters(e: Evidence) -> Verdict:
    checks = []
    for data, alpha, _ in e.cases() if e.whose == "ours" else []:
        sent = {m: r.number("bytes_up_per_client_round") for m, r in e.methods(data, alpha).items() if m in ("fedavg", "pfedsim")}
        if len(sent) == 2:
            text = " and ".join(f"{title(m)} {v:,.0f}" for m, v in sent.items())
            checks.append((sent["pfedsim"] == sent["fedavg"], f"{_where(data, alpha)}: bytes sent: {text}"))
    return _all(checks)


def data_statistics(e: Evidence) -> Verdict:
    checks = []
    for data, counts in tables.COUNTS.items() if e.whose == "ours" else []:
        samples, classes, average, *spreads = paper()["datasets"]["cells"][data]
        mine = [tables.sizes(data, alpha) for alpha in (0.1, 0.5)]
        ours = [sum(counts), len(counts), int(mine[0].mean()), *(int(m.std()) for m in mine)]
        checks.append(
            (
                ours == [samples, classes, average, *spreads],
                f"{set_name(data)}: {sum(counts):,} samples, {ours[2]} ({ours[3]}, {ours[4]})"
                + ("" if sum(counts) == samples else f", the paper prints {samples:,}"),
            )
        )
    return _all(checks)


CHECKS: dict[str, Callable[[Evidence], Verdict]] = {
    check.__name__: check
    for check in (
        best_in_all_cases, best_in_all_cases_tuned, average_gain, personalised_better_at_small_alpha, gain_larger_at_small_alpha,
        fedavg_deteriorates, better_than_fedap, tiny_imagenet, rho_one_worst, rho_zero_worse, rho_oversized, rho_flat, rho_small_models,
        rho_large_models,
        overhead_as_fedavg, others_slower, others_send_more, server_stores_all, classifier_tells_apart, order_of_similarities, boundaries,
        cs_best_measure, phi_between_zero_and_one, better_than_decoupling, better_than_decoupling_tuned, similarity_matters,
        traditional_better_under_feature_shift, best_under_feature_shift, gain_shrinks, low_privacy_risk, nothing_but_parameters,
        data_statistics,
    )
}  # fmt: skip
