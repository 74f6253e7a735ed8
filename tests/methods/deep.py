"""Networks whose classifiers some methods refuse."""

import small
from torch import nn


class Deep(small.Net):
    """A classifier of two layers."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__(shape, classes)
        self.classifier = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, classes))


class NoBias(small.Net):
    """A linear classifier without a bias."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__(shape, classes)
        self.classifier = nn.Linear(8, classes, bias=False)
