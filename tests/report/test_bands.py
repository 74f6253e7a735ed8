"""One drawing of curves, for a comparison's picture and for a study's."""

from __future__ import annotations

from matplotlib import pyplot as plt

from pfedsim.report.bands import draw_curve


def test_a_curve_is_the_mean_where_all_have_a_point_and_their_range() -> None:
    _, axes = plt.subplots()
    draw_curve(axes, "a", [{1: 10.0, 2: 20.0, 3: 5.0}, {1: 30.0, 2: 10.0}], {"color": "#000000"})
    (line,), (band,) = axes.lines, axes.collections
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == [20.0, 15.0]
    corners = {tuple(map(float, point)) for path in band.get_paths() for point in path.vertices}
    assert {(1.0, 10.0), (1.0, 30.0), (2.0, 10.0), (2.0, 20.0)} <= corners
    draw_curve(axes, "b", [{1: 1.0}], {"color": "#000000"})
    assert len(axes.collections) == 1  # one line has no range
    plt.close()
