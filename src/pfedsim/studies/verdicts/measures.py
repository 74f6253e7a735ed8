"""Claims about how alike clients are, and about the data (sections 4.1 and 4.2, Table 4)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from pfedsim.studies import cka, metrics, similarity
from pfedsim.studies import datasets as tables
from pfedsim.studies.evidence import Evidence
from pfedsim.studies.grid import dealt, runs, set_name
from pfedsim.studies.lengths import trained
from pfedsim.studies.likeness import MEASURES, SUBSETS, correlations
from pfedsim.studies.paper import paper
from pfedsim.studies.protocol import SEEDS, alphas
from pfedsim.studies.verdicts.verdict import Verdict, every


def classifier_tells_apart(e: Evidence) -> Verdict:
    checks = []
    for cell in cka.plan(e.choice) if e.whose == "ours" else []:
        if dict(cell.extra)["trained"] == "rounds" and (record := e.store.find(cell)):
            values = list(cka.between(record).values())
            ok = values[0] == max(values) and values[-1] == min(values) and values[0] > values[-2] > values[-1]
            checks.append((ok, ", ".join(f"layer {k} {v:.3f}" for k, v in enumerate(values))))
    return every(checks)


def _four(e: Evidence) -> list[dict[str, list[list[float]]]]:
    plan = similarity.plan(e.choice) if e.whose == "ours" else []
    return [dict(r.found) for c in plan if dict(c.extra)["trained"] == "rounds" and (r := e.store.find(c))]


def order_of_similarities(e: Evidence) -> Verdict:
    found = [[f["CS"][a][b] for a, b in similarity.PAIRS] for f in _four(e)]
    found += [paper()["metrics"]["CS"]] if e.whose == "paper" else []
    printed_ = [[round(x, 2) for x in v] for v in found]
    return every([(v == sorted(v, reverse=True) and len(set(v)) == 4, ", ".join(f"{x:.2f}" for x in v)) for v in printed_])


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
    return every(checks)


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
    return every(checks)


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
    return every([(v <= 1, f"{dealt(a)}: largest {v:.2f}") for a, v in top.items()])


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
