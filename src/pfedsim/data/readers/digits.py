"""The 1,797 handwritten digits in scikit-learn (UCI optical recognition, Alpaydin and Kaynak), enlarged from
8 x 8 to 32 x 32."""

from __future__ import annotations

import numpy as np

from pfedsim.data.dataset import DataSet
from pfedsim.data.task import Defaults

DEFAULTS = Defaults(clients=20, minimum=10, join=0.5, rounds=20)


def read() -> DataSet:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    small = np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = small.repeat(4, axis=1).repeat(4, axis=2).reshape(-1, 1, 32, 32)  # a pixel becomes 4 x 4
    return DataSet(
        "digits", large, y.astype(np.int64), tuple("0123456789"), (0.3053,), (0.3759,), defaults=DEFAULTS
    )
