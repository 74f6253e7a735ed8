"""Claims about how alike clients are, and about the data (sections 4.1 and 4.2, Table 4)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from pfedsim_paper import cka, metrics, similarity
from pfedsim_paper import datasets as tables
from pfedsim_paper.evidence import LABEL_SHIFTED, Evidence
from pfedsim_paper.grid import runs, set_name
from pfedsim_paper.lengths import trained
from pfedsim_paper.likeness import MEASURES, SUBSETS, correlations
from pfedsim_paper.paper import paper
from pfedsim_paper.protocol import SEEDS
from pfedsim_paper.verdicts.verdict import Verdict, every


def classifier_tells_apart(e: Evidence) -> Verdict:
    checks = []
    for cell in cka.plan(e.choice) if e.whose == "ours" else []:
        if dict(cell.extra)["trained"] == "rounds" and (record := e.store.find(cell)):
            values = list(cka.between(record).values())
            ok = (
                values[0] == max(values)
                and values[-1] == min(values)
                and values[0] > values[-2] > values[-1]
            )
            checks.append((ok, ", ".join(f"layer {k} {v:.3f}" for k, v in enumerate(values))))
    return every(checks)


def _four(e: Evidence) -> list[dict[str, list[list[float]]]]:
    plan = similarity.plan(e.choice) if e.whose == "ours" else []
    return [dict(r.found) for c in plan if dict(c.extra)["trained"] == "rounds" and (r := e.store.find(c))]


def order_of_similarities(e: Evidence) -> Verdict:
    found = [[f["CS"][a][b] for a, b in similarity.PAIRS] for f in _four(e)]
    found += [paper()["metrics"]["CS"]] if e.whose == "paper" else []
    printed_ = [[round(x, 2) for x in v] for v in found]
    return every(
        [
            (v == sorted(v, reverse=True) and len(set(v)) == 4, ", ".join(f"{x:.2f}" for x in v))
            for v in printed_
        ]
    )


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
                text = (
                    f"{similarity.name(a, b)}: {min(alike):.2f} or more against {max(single):.2f} or less"
                )
                checks.append((min(alike) - max(single) >= APART, text))
    return every(checks)


def cs_best_measure(e: Evidence) -> Verdict:
    found: dict[str, dict[str, float | None]] = {}
    if e.whose == "paper":
        printed_ = {
            k: np.array(v) for k, v in paper()["metrics"].items() if k in ("data_similarity", *MEASURES)
        }
        found[""] = {m: correlations(printed_["data_similarity"], printed_[m])["pearson"] for m in MEASURES}
    for cell in metrics.plan(e.choice) if e.whose == "ours" else []:
        if record := e.store.find(cell):
            four = dict(cell.extra)["clients"] == "four"
            where = f"{'four subsets' if four else 'all pairs'}, {trained(cell)}: "
            found[where] = {
                m: metrics.over_four(record, m) if four else record.found["correlation"][m]["pearson"]
                for m in MEASURES
            }
    checks = []
    for where, by in found.items():
        ok = by["CS"] is not None and all(v is None or v <= by["CS"] for v in by.values())
        checks.append((ok, where + ", ".join(f"{m} {v:.3f}" for m, v in by.items() if v is not None)))
    return every(checks)


def phi_between_zero_and_one(e: Evidence) -> Verdict:
    if e.whose == "paper":
        return Verdict(None)
    chosen = e.choice.of(data=LABEL_SHIFTED, seeds=SEEDS)
    checks = []
    for data in chosen.data:
        for alpha in chosen.alphas:
            found = runs(e.store, chosen, data, "pfedsim", alpha).by_seed.values()
            largest = [r.found["similarity"]["largest"] for r in found if "similarity" in r.found]
            checks += (
                [(max(largest) <= 1, f"{e.where(data, alpha)}: largest {max(largest):.2f}")]
                if largest
                else []
            )
    return every(checks)


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
    return every(checks)


CHECKS = (
    classifier_tells_apart,
    order_of_similarities,
    boundaries,
    cs_best_measure,
    phi_between_zero_and_one,
    data_statistics,
)
