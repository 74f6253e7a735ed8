"""TensorBoard: a folder of event files in DIR, shown by `tensorboard --logdir DIR`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Models are copied to `models/` beside the event file, because TensorBoard cannot store them."""

    def __init__(self, place: str, name: str, settings: Mapping[str, Any]) -> None:
        folder, again = Path(place) / name.replace("/", "-"), 1
        while folder.exists():  # two runs in one folder would be drawn as one
            again += 1
            folder = Path(place) / f"{name.replace('/', '-')} ({again})"
        self._folder, self._writer = folder, SummaryWriter(folder)
        for key, value in settings.items():
            self._writer.add_text(f"settings/{key}", json.dumps(value), 0)

    def round(
        self, number: int, figures: Mapping[str, float], spreads: Mapping[str, Sequence[float]]
    ) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        for name, values in spreads.items():
            self._writer.add_histogram(name, np.array(values), number)
        self._writer.flush()

    def artefacts(self, pictures: Sequence[Path], models: Path) -> None:
        for path in pictures:
            pixels = np.asarray(Image.open(path).convert("RGB"))
            self._writer.add_image(f"figures/{path.stem}", pixels, 0, dataformats="HWC")
        shutil.copytree(models, self._folder / "models")

    def close(self, failed: bool) -> None:
        self._writer.close()
