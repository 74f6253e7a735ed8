"""Draw a curve with a band, the same way in every picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_curve(
    axes: Axes, name: str, several: Sequence[Mapping[float, float]], style: Mapping[str, Any]
) -> None:
    """Draw the mean of several lines (x -> y) where all have a point, with their range shaded."""
    common = sorted(set.intersection(*(set(line) for line in several)))
    values = np.array([[line[x] for x in common] for line in several])
    axes.plot(common, values.mean(0), label=name, **style)
    if len(values) > 1:
        low, high = values.min(0), values.max(0)
        axes.fill_between(common, low, high, color=style["color"], alpha=0.15, linewidth=0)
