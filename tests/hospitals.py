"""Four hospitals' tables as they come: other separators, encodings, dates, signs for missing cells, and spelling."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NAMES = ("east", "north", "south", "west")


def patients(count: int, seed: int) -> list[dict[str, object]]:
    draw = np.random.default_rng(seed)
    found = []
    for k in range(count):
        age, female = int(draw.integers(30, 85)), bool(draw.integers(2))
        chol = round(float(draw.normal(240, 40)), 1)
        smoker = bool(draw.random() < 0.3)
        risk = 0.08 * (age - 57) + 0.02 * (chol - 240) + smoker + draw.normal()
        day = (2018 + k % 5, int(draw.integers(1, 13)), int(draw.integers(1, 29)))
        ward = ("cardiology", "surgery", "general")[int(draw.integers(3))]
        values = {"id": 1000 + k, "age": age, "female": female, "chol": chol, "smoker": smoker}
        found.append({**values, "day": day, "ward": ward, "ill": risk > 0})
    return found


def write(folder: Path) -> list[Path]:
    """The four files, in the order of NAMES."""
    folder.mkdir(parents=True, exist_ok=True)
    head = ["patient_id", "sex", "age", "chol", "smoker", "admitted", "ward", "outcome"]
    text = {name: [",".join(head)] for name in NAMES}
    text["south"], text["east"] = [";".join(head)], [",".join(h for h in head if h != "chol")]
    for k, p in enumerate(
        patients(80, 1)
    ):  # latin-1, days before months, no chol, empty cells, a rare ward
        y, m, d = p["day"]  # type: ignore[misc]
        ward, age = "Überwachung" if k == 7 else p["ward"], "" if k % 20 == 3 else p["age"]
        row = [
            f"E-{p['id']}",
            "FM"[not p["female"]],
            age,
            str(p["smoker"]).upper(),
            f"{d:02}/{m:02}/{y}",
            ward,
        ]
        text["east"].append(",".join(map(str, [*row, _outcome(p)])))
    for k, p in enumerate(patients(120, 2)):  # ? and NA
        chol, age = "?" if k % 12 == 5 else p["chol"], "NA" if k % 20 == 9 else p["age"]
        row = [
            p["id"],
            "FM"[not p["female"]],
            age,
            chol,
            "yes" if p["smoker"] else "no",
            _iso(p),
            p["ward"],
        ]
        text["north"].append(",".join(map(str, [*row, _outcome(p)])))
    for k, p in enumerate(patients(90, 3)):  # semicolons, decimal commas, a byte order mark, -
        chol = "-" if k % 12 == 5 else str(p["chol"]).replace(".", ",")
        y, m, d = p["day"]  # type: ignore[misc]
        row = [
            p["id"],
            "FM"[not p["female"]],
            p["age"],
            chol,
            "yn"[not p["smoker"]],
            f"{d}.{m}.{y}",
            p["ward"],
        ]
        text["south"].append(";".join(map(str, [*row, _outcome(p)])))
    for p in patients(40, 4):  # all of them ill; small letters
        row = [
            p["id"],
            "fm"[not p["female"]],
            p["age"],
            p["chol"],
            int(bool(p["smoker"])),
            _iso(p),
            p["ward"],
        ]
        text["west"].append(",".join(map(str, [*row, "ill"])))
    codes = {"east": "latin-1", "south": "utf-8-sig"}
    for name in NAMES:
        (folder / f"{name}.csv").write_bytes(
            ("\r\n".join(text[name]) + "\r\n").encode(codes.get(name, "utf-8"))
        )
    return [folder / f"{name}.csv" for name in NAMES]


def _iso(p: dict[str, object]) -> str:
    y, m, d = p["day"]  # type: ignore[misc]
    return f"{y}-{m:02}-{d:02}"


def _outcome(p: dict[str, object]) -> str:
    return "ill" if p["ill"] else "well"
