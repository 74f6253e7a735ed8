"""Claims about accuracy: who is best, where, and by how much (Tables 3 and 8, appendix C.2)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from pfedsim.methods import TWELVE
from pfedsim.report import mean_std
from pfedsim_paper import heterogeneity, questions
from pfedsim_paper.evidence import LABEL_SHIFTED, Case, Evidence, common
from pfedsim_paper.grid import MICRO, TUNED, Keys, runs, set_name, title
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import SEEDS
from pfedsim_paper.verdicts.verdict import Verdict, every

TRADITIONAL = ("fedavg", "fedprox", "feddyn", "fedgen")
PERSONALISED = tuple(m for m in TWELVE if m not in TRADITIONAL and m != "local")


def _lead(case: Case) -> tuple[float, str]:
    """pFedSim above the best other method, and which that is."""
    best = max((m for m in case if m != "pfedsim"), key=lambda m: case[m])
    return case["pfedsim"] - case[best], best


def best_in_all_cases(e: Evidence, keys: Keys = MICRO) -> Verdict:
    checks = []
    for data, alpha, case in e.cases(keys):
        lead, best = _lead(case)
        of = "" if len(case) == len(TWELVE) else f" of {len(case)} methods"
        ahead, seeds = lead > 0.005, ""
        if e.whose == "ours":
            found = e.methods(data, alpha)
            leads = [
                min(found["pfedsim"].minus(found[m], keys)[k] for m in case if m != "pfedsim")
                for k in range(len(found["pfedsim"].by_seed))
            ]
            lowest = f", lowest {min(leads):+.2f}" if len(leads) > 1 else ""
            ahead, seeds = min(leads) > 0.005, f", seeds {found['pfedsim'].seeds}{lowest}"
        checks.append((ahead, f"{e.where(data, alpha)}: {lead:+.2f} against {title(best)}{of}{seeds}"))
    return every(checks)


def best_in_all_cases_tuned(e: Evidence) -> Verdict:
    return best_in_all_cases(e, TUNED)


def average_gain(e: Evidence) -> Verdict:
    """Over all of the paper's own cases; of some only the figures are told."""
    theirs = {(d, a): _lead(case)[0] for d, a, case in Evidence(e.store, e.choice, "paper").cases()}
    leads = {
        (d, a): _lead(case)[0]
        for d, a, case in e.cases()
        if len(case) == len(TWELVE) and (d, a) in theirs and not e.reduced(d)
    }
    if not leads:
        return Verdict(None)
    ours, printed_there = mean(leads.values()), mean(theirs[case] for case in leads)
    figures = (
        f"{ours:+.2f} over {len(leads)} of the paper's {len(theirs)} cases, "
        f"where the paper has {printed_there:+.2f}"
    )
    return Verdict(
        abs(ours - paper()["accuracy"]["mean_lead"]) <= 0.5 if len(leads) == len(theirs) else None, figures
    )


def personalised_better_at_small_alpha(e: Evidence) -> Verdict:
    checks = []
    for data, alpha, case in e.cases():
        own, shared = ([(case[m], m) for m in group if m in case] for group in (PERSONALISED, TRADITIONAL))
        if alpha == 0.1 and len(own) > 1 and len(shared) > 1:
            means, (lowest, low) = [mean(v for v, _ in group) for group in (own, shared)], min(own)
            text = f"{set_name(data)}: {means[0]:.2f} against {means[1]:.2f}, the lowest {title(low)} with {lowest:.2f}"
            checks.append((means[0] > means[1], text))
    return every(checks)


def gain_larger_at_small_alpha(e: Evidence) -> Verdict:
    leads: dict[str, dict[float, float]] = {}
    for data, alpha, case in e.cases():
        if len(case) == len(TWELVE):
            leads.setdefault(data, {})[alpha] = _lead(case)[0]
    both = {d: by for d, by in leads.items() if {0.1, 0.5} <= by.keys()}
    return every(
        [(by[0.1] > by[0.5], f"{set_name(d)}: {by[0.1]:+.2f} and {by[0.5]:+.2f}") for d, by in both.items()]
    )


def fedavg_deteriorates(e: Evidence) -> Verdict:
    by: dict[str, dict[float, float]] = {}
    for data, alpha, case in e.cases():
        if "fedavg" in case:
            by.setdefault(data, {})[alpha] = case["fedavg"]
    both = {d: v for d, v in by.items() if {0.1, 0.5} <= v.keys()}
    return every(
        [(v[0.5] - v[0.1] >= 5, f"{set_name(d)}: {v[0.1]:.2f} and {v[0.5]:.2f}") for d, v in both.items()]
    )


def better_than_fedap(e: Evidence) -> Verdict:
    found = [(d, a, case["pfedsim"] - case["fedap"]) for d, a, case in e.cases() if "fedap" in case]
    return every([(gap > 0, f"{e.where(d, a)}: {gap:+.2f}") for d, a, gap in found])


ALMOST_TEN = 8  # points


def tiny_imagenet(e: Evidence) -> Verdict:
    leads = [
        (*_lead(case), e.where(data, alpha), len(case))
        for data, alpha, case in e.cases()
        if data == "tiny-imagenet"
    ]
    if not leads:
        return Verdict(None)
    lead, best, where, count = max(leads)
    whole = count == len(TWELVE) and not e.reduced("tiny-imagenet")
    return Verdict(
        lead >= ALMOST_TEN if whole else None,
        f"{where}: {lead:+.2f} against {title(best)}, of {count} methods",
    )


def _above(e: Evidence, others: Sequence[str], keys: Keys) -> Verdict:
    """pFedSim more than half a point above these, seed by seed on average."""
    checks = []
    chosen = e.choice.of(data=LABEL_SHIFTED, seeds=SEEDS)
    for data in chosen.data if e.whose == "ours" else []:
        for alpha in chosen.alphas:
            mine = runs(e.store, chosen, data, "pfedsim", alpha)
            for other in others:
                gaps = mine.minus(runs(e.store, chosen, data, other, alpha), keys)
                if gaps:
                    checks.append(
                        (
                            mean(gaps) > 0.5,
                            f"{e.where(data, alpha)}: {mean_std(gaps, '+')} against {title(other)}",
                        )
                    )
    return every(checks)


def better_than_decoupling(e: Evidence) -> Verdict:
    return _above(e, ("fedper", "fedrep", questions.CONTROL), MICRO)


def better_than_decoupling_tuned(e: Evidence) -> Verdict:
    return _above(e, ("fedper", "fedrep", questions.CONTROL), TUNED)


def similarity_matters(e: Evidence) -> Verdict:
    return _above(e, ("pfedsim:uniform",), TUNED)


def traditional_better_under_feature_shift(e: Evidence) -> Verdict:
    checks = []
    for data, case in e.by_domain():
        shared, own = (
            [case[m] for m in group if m in case and m != "pfedsim"]
            for group in (TRADITIONAL, PERSONALISED)
        )
        if min(len(shared), len(own)) > 1:
            checks.append(
                (mean(shared) > mean(own), f"{set_name(data)}: {mean(shared):.2f} against {mean(own):.2f}")
            )
    return every(checks)


def best_under_feature_shift(e: Evidence) -> Verdict:
    found = [(data, *_lead(case)) for data, case in e.by_domain()]
    return every(
        [
            (round(lead, 2) > 0, f"{set_name(d)}: {lead:+.2f} against {title(best)}")
            for d, lead, best in found
        ]
    )


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
            text = ", ".join(
                f"{lead:+.2f} at {alpha:g} (against {title(best)})" for alpha, (lead, best) in leads.items()
            )
            checks.append((leads[10.0][0] <= min(1, leads[0.1][0] / 2), f"{set_name(data)}: {text}"))
    return every(checks)


CHECKS = (
    best_in_all_cases,
    best_in_all_cases_tuned,
    average_gain,
    personalised_better_at_small_alpha,
    gain_larger_at_small_alpha,
    fedavg_deteriorates,
    better_than_fedap,
    tiny_imagenet,
    better_than_decoupling,
    better_than_decoupling_tuned,
    similarity_matters,
    traditional_better_under_feature_shift,
    best_under_feature_shift,
    gain_shrinks,
)
