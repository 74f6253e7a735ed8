"""matplotlib as our pictures need it: without a window, and without the settings of the folder we happen to be in."""

from __future__ import annotations

import sys

import matplotlib

# A matplotlibrc of the working directory may be anybody's: text.usetex runs LaTeX with a preamble from there.
if "matplotlib.pyplot" not in sys.modules and matplotlib.matplotlib_fname() == "matplotlibrc":
    matplotlib.rcdefaults()
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # after the backend is chosen

__all__ = ["plt"]
