"""Store a table over pairs of clients with one byte per pair."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from pfedsim.core.rows import Pairs

NEVER_MET = 255


def packed(pairs: Pairs, clients: int) -> dict[str, Any]:
    """The upper triangle of a symmetric table, row by row, with one byte per pair: 255 for pairs that never met,
    else value / largest * 254."""
    matrix = np.full((clients, clients), np.nan)
    for i in pairs.ids:
        for j, value in pairs.row(i).items():
            matrix[i, j] = value
    upper = matrix[np.triu_indices(clients, 1)]
    top = float(np.nanmax(upper)) if np.isfinite(upper).any() else 0.0
    scaled = np.rint(np.nan_to_num(upper) / (top or 1.0) * 254)
    steps = np.where(np.isnan(upper), NEVER_MET, scaled).astype(np.uint8)
    return {"largest": top, "pairs": base64.b64encode(steps.tobytes()).decode()}


def unpacked(table: dict[str, Any], clients: int) -> np.ndarray:
    """The inverse of `packed`, up to rounding; NaN for pairs that never met and on the diagonal."""
    steps = np.frombuffer(base64.b64decode(table["pairs"]), np.uint8)
    upper = np.where(steps == NEVER_MET, np.nan, steps / 254 * table["largest"])
    matrix = np.full((clients, clients), np.nan)
    matrix[np.triu_indices(clients, 1)] = upper
    return np.where(np.isnan(matrix), matrix.T, matrix)
