"""Predictions as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pfedsim import escape


@dataclass(frozen=True)
class Predictions:
    """A model's predictions."""

    names: Sequence[str]
    classes: Sequence[str]
    probabilities: Sequence[Sequence[float]]
    labels: Sequence[str] | None = None

    @property
    def called(self) -> list[int]:
        """The index of the most probable class of each sample."""
        return [max(range(len(row)), key=row.__getitem__) for row in self.probabilities]

    @property
    def right(self) -> int | None:
        """The number of correct predictions; None without labels."""
        return (
            None
            if self.labels is None
            else sum(self.classes[k] == y for k, y in zip(self.called, self.labels, strict=True))
        )

    @property
    def scored(self) -> int:
        """The number of samples with a label."""
        return sum(map(bool, self.labels or ()))

    def table(self) -> Table:
        table = Table("input", *(["label"] if self.labels is not None else []), "class", "probability")
        table.columns[-1].justify = "right"
        for k, best in enumerate(self.called):
            label = [self.labels[k]] if self.labels is not None else []
            words = (self.names[k], *label, self.classes[best], f"{self.probabilities[k][best]:.4f}")
            table.add_row(*map(escape.visible, words))
        return table

    def csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        labels = ["label"] if self.labels is not None else []
        heading = ["input", *labels, "class", "probability", *(f"p({c})" for c in self.classes)]
        writer.writerow(map(escape.cell, heading))
        for k, best in enumerate(self.called):
            label = [self.labels[k]] if self.labels is not None else []
            row = [self.names[k], *label, self.classes[best], self.probabilities[k][best]]
            writer.writerow(map(escape.cell, [*row, *self.probabilities[k]]))
        return file.getvalue()

    def json(self) -> str:
        records: list[dict[str, Any]] = []
        for k, best in enumerate(self.called):
            row = self.probabilities[k]
            record = {"input": self.names[k], "class": self.classes[best], "probability": row[best]}
            record["probabilities"] = dict(zip(self.classes, row, strict=True))
            records.append(record | ({"label": self.labels[k]} if self.labels is not None else {}))
        content: dict[str, Any] = {"predictions": records}
        if self.right is not None:
            content["accuracy"] = self.right / self.scored
        return json.dumps(content, indent=1)
